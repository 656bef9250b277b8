// Package control calls the aggregator's control plane for programs without HTTP, which are C programs that rackweave run started.
// They send requests of fixed-size structs (cgo/library/control.h) over a Unix socket, one for each worker, and the package makes
// the calls.
package control

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rackweave/rackweave/client/membership"
	"github.com/rackweave/rackweave/launch"
	"github.com/rackweave/rackweave/service/api"
)

// Proxy makes calls for the workers of a job.
type Proxy struct {
	place     launch.Place
	dir       string
	listeners []net.Listener
	running   sync.WaitGroup
	ctx       context.Context
	cancel    context.CancelFunc
}

// Listen makes a socket for each worker that is started here. Only this user's processes can reach them.
func Listen(place launch.Place) (*Proxy, error) {
	if _, err := api.TrustOf(place.CA); err != nil {
		return nil, err
	}
	p := &Proxy{place: place}
	var err error
	p.ctx, p.cancel = context.WithCancel(context.Background())
	if p.dir, err = os.MkdirTemp("", "rackweave-run-"); err != nil {
		return nil, fmt.Errorf("make a directory for the workers' sockets: %w: set TMPDIR to a directory that can be written", err)
	}
	for i := range place.Started() {
		s := &seat{p: p, rank: place.First + i}
		l, err := net.Listen("unix", p.Path(s.rank))
		if err != nil {
			return nil, errors.Join(fmt.Errorf("make worker %d's socket: %w", s.rank, err), p.Close())
		}
		p.listeners = append(p.listeners, l)
		p.running.Go(func() { s.accept(l) })
	}
	return p, nil
}

// Path returns the path of a worker's socket.
func (p *Proxy) Path(rank int) string { return filepath.Join(p.dir, strconv.Itoa(rank)) }

// Close ends all connections, and with them the membership of workers that have not left.
func (p *Proxy) Close() error {
	p.cancel()
	var errs []error
	for _, l := range p.listeners {
		errs = append(errs, l.Close())
	}
	p.running.Wait()
	return errors.Join(append(errs, os.RemoveAll(p.dir))...)
}

// seat is a worker's place in the job.
type seat struct {
	p     *Proxy
	rank  int
	taken sync.Mutex             // held by the member, because a worker is one member of the job
	last  atomic.Pointer[member] // who took it last
}

// accept serves a worker's connections: one to join by, and one by which codecs come.
func (s *seat) accept(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		s.p.running.Go(func() {
			defer c.Close()
			defer context.AfterFunc(s.p.ctx, func() { c.Close() })()
			(&member{seat: s, offers: newOffers()}).serve(c)
		})
	}
}

// member is one connection's membership in the job.
type member struct {
	*membership.Membership // nil before the worker joins
	*seat
	offers offers
	before offer // the codecs that have gone over this connection
}

// serve answers requests until the connection ends.
func (m *member) serve(c io.ReadWriter) {
	defer func() {
		if m.Membership != nil {
			close(m.offers.end)
			m.Close()
			m.taken.Unlock()
		}
	}()
	for {
		k, payload, err := receive(c)
		if err != nil {
			return
		}
		answer, err := m.answer(k, payload)
		if err != nil {
			err = send(c, kindError, []byte(err.Error()))
		} else {
			err = send(c, k, answer...)
		}
		if err != nil {
			return
		}
	}
}

func (m *member) answer(k kind, payload []byte) ([]any, error) {
	if k != kindJoin && k != kindCodecs && m.Membership == nil {
		return nil, errNotJoined
	}
	switch k {
	case kindJoin:
		return m.join(payload)
	case kindConnect:
		return m.connect(payload)
	case kindRegister:
		return m.register(payload)
	case kindCodecs:
		var r codecsRequest
		if _, err := decode(payload, &r); err != nil {
			return nil, err
		}
		if joined := m.last.Load(); joined != nil {
			return joined.offers.after(&m.before, r.Accepted != 0)
		}
		return nil, errNotJoined
	case kindBarrier, kindLeave, kindPolicy, kindLoss:
		var r tellRequest
		if _, err := decode(payload, &r); err != nil {
			return nil, err
		}
		return nil, m.tell(k, text(r.Text[:]), &r)
	}
	return nil, fmt.Errorf("request of unknown kind %d: the program's librackweave is of another version", k)
}

// tell makes a call that has no answer.
func (m *member) tell(k kind, text string, r *tellRequest) (err error) {
	if k == kindLeave {
		return m.leave(text)
	}
	ctx, cancel, ms := membership.Bound(m.p.ctx, waits(r.TimeoutMS))
	defer cancel()
	what, first := "barrier", m.All[0].RPC
	switch k {
	case kindPolicy:
		what = "set policy"
		_, err = first.SetPolicy(ctx, &api.SetPolicyRequest{Job: m.p.place.Job, Policy: text})
	case kindLoss:
		what = "report loss"
		_, err = first.ReportLoss(ctx, &api.ReportLossRequest{Loss: r.Value})
	default:
		_, err = first.Barrier(ctx, &api.BarrierRequest{Name: text, TimeoutMs: ms})
	}
	return m.Explain(what, err)
}

// leave leaves the job, which fails if there is a reason. A program may learn of a failure on the data path before an aggregator
// reports its cause, which other aggregators must learn.
func (m *member) leave(reason string) error {
	if reason == "" {
		return m.Leave(nil)
	}
	err := errors.New(reason)
	if m.Several() && m.AwaitReason() {
		err = m.Err()
	}
	_ = m.Leave(err) // an aggregator that does not receive it finds the worker lost
	return nil
}

// waits returns the time for which a program waits for a call with a timeout of so many milliseconds. If 0, it is the default.
func waits(ms uint32) time.Duration {
	return cmp.Or(time.Duration(ms)*time.Millisecond, time.Minute)
}

func (m *member) join(payload []byte) ([]any, error) {
	if m.Membership != nil {
		return nil, errors.New("the worker has joined already: a connection joins once")
	}
	var r joinRequest
	if _, err := decode(payload, &r); err != nil {
		return nil, err
	}
	if int(r.NHyper) > len(r.Hyper) {
		return nil, fmt.Errorf("%d hyper-parameters: use at most %d", r.NHyper, len(r.Hyper))
	}
	hyper := map[string]float64{}
	for _, h := range r.Hyper[:r.NHyper] {
		hyper[text(h.Name[:])] = h.Value
	}
	m.taken.Lock()
	at := m.p.place
	access := membership.Access{Server: at.Server, CA: at.CA, Token: at.Token, Insecure: at.Insecure, Timeout: waits(r.TimeoutMS)}
	joined, err := membership.Join(m.p.ctx, membership.Config{Access: access, Codecs: m.offers.recode}, &api.JoinRequest{
		Job: at.Job, Rank: int32(m.rank), Workers: uint32(at.Workers), Mode: text(r.Mode[:]), Policy: text(r.Policy[:]),
		Compress: cmp.Or(text(r.Compress[:]), at.Compress), Optimizer: text(r.Optimizer[:]), Hyper: hyper, ChunkBytes: r.ChunkBytes,
		Provider: text(r.Provider[:]), Providers: strings.Split(text(r.Providers[:]), ","), Pid: int64(r.PID), Uid: r.UID, Run: at.Run,
	})
	if err != nil {
		m.taken.Unlock()
		return nil, err
	}
	m.Membership = joined
	m.last.Store(m)
	j := m.All[0].Info
	a := joinAnswer{
		Rank: j.Rank, Workers: j.Workers, LocalWorkers: j.LocalWorkers, ChunkBytes: j.ChunkBytes, Window: j.Window,
		SendDepth: j.SendDepth, RecvDepth: j.RecvDepth, LinkTimeoutMS: j.LinkTimeoutMs, ByReference: number(j.ByReference),
		LiveHyper: number(j.LiveHyper), Steps: number(j.Mode == "stream"),
		Answers: answersOf(j), Gradients: gradientsOf(j.Gradients),
		NLanes: uint32(len(j.Lanes) * len(m.All)), Decides: number(strings.HasPrefix(strings.TrimSpace(j.Compress), "auto")),
	}
	if a.NLanes > maxLanes || len(j.Record) != len(a.Record) {
		return nil, fmt.Errorf("%d lanes and %d hyper-parameters: rackweave run and aggregator are of different versions", a.NLanes,
			len(j.Record))
	}
	copy(a.Record[:], j.Record)
	copy(a.Provider[:len(a.Provider)-1], j.Provider)
	for i := range a.NLanes {
		a.LaneNICs[i] = j.Lanes[int(i)%len(j.Lanes)].Nic
	}
	return []any{a}, nil
}

// answersOf returns the kind of a job's answers, as in enum rw_answers.
func answersOf(j *api.JoinResponse) uint32 {
	switch {
	case j.Answers == nil:
		return 0
	case j.Mode == "aggregate":
		return 1
	}
	return 2
}

func (m *member) connect(payload []byte) ([]any, error) {
	var r connectRequest
	rest, err := decode(payload, &r)
	if err != nil {
		return nil, err
	}
	own, err := list[endpoint](rest, min(len(rest)/endpointSize, maxLanes))
	if err != nil {
		return nil, err
	}
	req := &api.ConnectRequest{AckTimeoutMs: r.AckTimeoutMS}
	for _, e := range own {
		req.Lanes = append(req.Lanes, &api.WorkerLane{
			Endpoint: e.Bytes[:min(e.Length, endpointBytes)], ReplyAddr: e.Addr, ReplyRkey: e.RKey, Staging: e.Staging,
		})
	}
	ctx, cancel, ms := membership.Bound(m.p.ctx, waits(r.TimeoutMS))
	defer cancel()
	req.TimeoutMs = ms
	ends, err := m.Connect(ctx, req)
	if err != nil {
		return nil, err
	}
	answer := make([]endpoint, len(ends))
	for i, l := range ends {
		e := &answer[i]
		if len(l.Endpoint) > endpointBytes {
			return nil, fmt.Errorf("lane %d's endpoint has %d bytes: rackweave run knows at most %d", i, len(l.Endpoint), endpointBytes)
		}
		e.Size, e.Length, e.Addr, e.RKey = uint32(endpointSize), uint32(len(l.Endpoint)), l.SlotAddr, l.SlotRkey
		copy(e.Bytes[:], l.Endpoint)
	}
	return []any{answer}, nil
}

var wireTypes = map[uint32]string{1: "f32", 2: "bf16", 3: "f16"}

func (m *member) register(payload []byte) ([]any, error) {
	var r registerRequest
	rest, err := decode(payload, &r)
	if err != nil {
		return nil, err
	}
	tensors, err := list[tensor](rest, int(min(r.NTensors, maxBytes)))
	if err != nil {
		return nil, err
	}
	req := &api.RegisterRequest{}
	for i := range tensors {
		t := &tensors[i]
		if int(t.NDim) > len(t.Shape) {
			return nil, fmt.Errorf("tensor %q has %d dimensions: use at most %d", text(t.Name[:]), t.NDim, len(t.Shape))
		}
		req.Tensors = append(req.Tensors, &api.Tensor{
			Name: text(t.Name[:]), Shape: t.Shape[:t.NDim], Dtype: wireTypes[t.WireType], LrMult: &t.LRMult, WdMult: &t.WDMult,
			Sparse: t.Rows > 0, Standard: t.Rows == 2,
		})
	}
	ctx, cancel, ms := membership.Bound(m.p.ctx, waits(r.TimeoutMS))
	defer cancel()
	req.TimeoutMs = ms
	answer, err := m.Register(ctx, req)
	if err != nil {
		return nil, err
	}
	return []any{answer.ChunkLanes}, nil
}
