// Package control speaks to the aggregator's control plane for programs that speak no HTTP: C programs that rackweave run started.
// They send requests of fixed-size structs (cgo/library/control.h) over a Unix socket, one for each worker, and it makes the calls.
package control

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"connectrpc.com/connect"

	"github.com/rackweave/rackweave/service/api"
)

// Config says which job the workers join.
type Config struct {
	Server     string // URL of the aggregator, or of several that the job is spread over, with commas between them
	CA         string // file with the certificates to trust, or sha256:FINGERPRINT, for https; empty: the system's
	Job, Token string
	Run        string // tells this run from others under the same job's name
	Workers    int
}

// Proxy makes calls for the workers of a job.
type Proxy struct {
	cfg       Config
	dir       string
	listeners []net.Listener
	running   sync.WaitGroup
	ctx       context.Context
	cancel    context.CancelFunc

	mu         sync.Mutex
	transports map[string]*http.Transport // by whom they trust
}

// Listen makes a socket for each worker. Only this user's processes can reach them.
func Listen(cfg Config) (*Proxy, error) {
	p := &Proxy{cfg: cfg, transports: map[string]*http.Transport{}}
	_, err := p.transport(cfg.CA)
	if err != nil {
		return nil, err
	}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	if p.dir, err = os.MkdirTemp("", "rackweave-run-"); err != nil {
		return nil, fmt.Errorf("make a directory for the workers' sockets: %w: set TMPDIR to a directory that can be written", err)
	}
	for rank := range cfg.Workers {
		l, err := net.Listen("unix", p.Path(rank))
		if err != nil {
			return nil, errors.Join(fmt.Errorf("make worker %d's socket: %w", rank, err), p.Close())
		}
		p.listeners = append(p.listeners, l)
		p.running.Go(func() { p.accept(l, rank) })
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
	for _, t := range p.transports {
		t.CloseIdleConnections()
	}
	return errors.Join(append(errs, os.RemoveAll(p.dir))...)
}

// transport returns what carries calls to aggregators that are known by a CA.
func (p *Proxy) transport(ca string) (*http.Transport, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if t := p.transports[ca]; t != nil {
		return t, nil
	}
	trust, err := api.TrustOf(ca)
	if err != nil {
		return nil, err
	}
	p.transports[ca] = &http.Transport{TLSHandshakeTimeout: 5 * time.Second, TLSClientConfig: trust}
	return p.transports[ca], nil
}

// accept serves a worker's connections, one at a time: a worker is one member of the job.
func (p *Proxy) accept(l net.Listener, rank int) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		stop := context.AfterFunc(p.ctx, func() { c.Close() })
		m := &member{p: p, rank: rank, pid: os.Getpid(), uid: os.Geteuid(), membership: &membership{
			transport: p.transport, server: p.cfg.Server, ca: p.cfg.CA, token: p.cfg.Token, ctx: p.ctx,
			ended: make(chan struct{}), gone: make(chan struct{}),
		}}
		if peer, err := credentials(c.(*net.UnixConn)); err == nil {
			m.pid, m.uid = int(peer.Pid), int(peer.Uid)
		}
		m.serve(c)
		stop()
		c.Close()
	}
}

// credentials returns who has connected.
func credentials(c *net.UnixConn) (who *syscall.Ucred, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	if ctl := raw.Control(func(fd uintptr) {
		who,
			err = syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED)
	}); ctl != nil {
		return nil, ctl
	}
	return who, err
}

// member is one connection's membership in the job.
type member struct {
	*membership
	p        *Proxy
	rank     int
	pid, uid int // of the program
}

// serve answers requests until the connection ends.
func (m *member) serve(c io.ReadWriter) {
	defer m.lose()
	for {
		k, payload, err := receive(c)
		if err != nil {
			return
		}
		answer, err := m.answer(k, payload)
		if err != nil {
			err = send(c, kindError, []byte(m.explained(err).Error()))
		} else {
			err = send(c, k, answer...)
		}
		if err != nil {
			return
		}
	}
}

// explained is why the job has failed, if it has, rather than what follows from that.
func (m *member) explained(err error) error {
	if code := connect.CodeOf(err); code == connect.CodeAborted || code == connect.CodeUnauthenticated { // the session has ended
		select {
		case <-m.ended:
		case <-time.After(blameWait):
		}
	}
	if f := m.failure.Load(); f != nil {
		return fmt.Errorf("job %q has failed: %s", m.p.cfg.Job, f.Text)
	}
	return plain(err)
}

var errNotJoined = errors.New("the worker has not joined: call rw_join first")

func (m *member) answer(k kind, payload []byte) ([]any, error) {
	if k != kindJoin && len(m.aggregators) == 0 {
		return nil, errNotJoined
	}
	switch k {
	case kindJoin:
		return m.join(payload)
	case kindConnect:
		return m.connect(payload)
	case kindRegister:
		return m.register(payload)
	case kindBarrier:
		var r barrierRequest
		if _, err := decode(payload, &r); err != nil {
			return nil, err
		}
		ctx, cancel := m.bounded(r.TimeoutMS)
		defer cancel()
		_, err := m.aggregators[0].rpc.Barrier(ctx, &api.BarrierRequest{Name: text(r.Name[:]), TimeoutMs: r.TimeoutMS})
		return nil, err
	case kindPolicy:
		var r policyRequest
		if _, err := decode(payload, &r); err != nil {
			return nil, err
		}
		ctx, cancel := m.bounded(0)
		defer cancel()
		_, err := m.aggregators[0].rpc.SetPolicy(ctx, &api.SetPolicyRequest{Job: m.p.cfg.Job, Policy: text(r.Policy[:])})
		return nil, err
	case kindLoss:
		var r lossRequest
		if _, err := decode(payload, &r); err != nil {
			return nil, err
		}
		ctx, cancel := m.bounded(0)
		defer cancel()
		_, err := m.aggregators[0].rpc.ReportLoss(ctx, &api.ReportLossRequest{Loss: r.Loss})
		return nil, err
	case kindLeave:
		var r leaveRequest
		if _, err := decode(payload, &r); err != nil {
			return nil, err
		}
		ctx, cancel := m.bounded(0)
		defer cancel()
		return nil, m.leave(ctx, text(r.Failure[:]))
	}
	return nil, fmt.Errorf("request of unknown kind %d: the program's librackweave is of another version", k)
}

// bounded gives a call a deadline a little after the aggregator's own, whose error says what was waited for.
func (m *member) bounded(ms uint32) (context.Context, context.CancelFunc) {
	return context.WithTimeout(m.p.ctx, waits(ms)+2*time.Second)
}

// waits is how long a program waits for a call that it gives so many milliseconds; 0: as long as is usual.
func waits(ms uint32) time.Duration {
	if ms == 0 {
		return time.Minute
	}
	return time.Duration(ms) * time.Millisecond
}

func (m *member) join(payload []byte) ([]any, error) {
	if len(m.aggregators) > 0 {
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
	optimizer, mode, policy := text(r.Optimizer[:]), text(r.Mode[:]), text(r.Policy[:])
	switch {
	case mode != "":
	case policy != "":
		mode = "stream"
	case optimizer != "":
		mode = "eager"
	default:
		mode = "aggregate"
	}
	host, _ := os.Hostname()
	ctx, cancel := m.bounded(r.TimeoutMS)
	defer cancel()
	err := m.enrol(ctx, &api.JoinRequest{
		Job: m.p.cfg.Job, Rank: int32(m.rank), Workers: uint32(m.p.cfg.Workers), Mode: mode,
		Policy: policy, Optimizer: optimizer, Hyper: hyper, ChunkBytes: r.ChunkBytes,
		Provider: text(r.Provider[:]), Providers: strings.Split(text(r.Providers[:]), ","),
		HostId: api.HostID(), Host: host, Pid: int64(m.pid), Uid: uint32(m.uid),
		Spreads: true, Run: m.p.cfg.Run,
	}, waits(r.TimeoutMS))
	if err != nil {
		return nil, err
	}
	j := m.aggregators[0].info
	a := joinAnswer{
		Rank: j.Rank, Workers: j.Workers, LocalWorkers: j.LocalWorkers, ChunkBytes: j.ChunkBytes, Window: j.Window,
		SendDepth: j.SendDepth, RecvDepth: j.RecvDepth, LinkTimeoutMS: j.LinkTimeoutMs, ByReference: number(j.ByReference),
		LiveHyper: number(j.LiveHyper), Steps: number(mode == "stream"),
		NLanes: uint32(len(j.Lanes) * len(m.aggregators)),
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
	if j.Provider == "tcp" {
		peers, err := m.peers(ctx)
		if err != nil {
			return nil, err
		}
		if len(peers) >= len(a.Options) {
			return nil, fmt.Errorf("addresses of %d aggregators: a program in C has room for %d bytes of them", len(m.aggregators),
				len(a.Options)-1)
		}
		copy(a.Options[:], peers)
	}
	return []any{a}, nil
}

func number(b bool) uint32 {
	if b {
		return 1
	}
	return 0
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
	req := &api.ConnectRequest{TimeoutMs: r.TimeoutMS, AckTimeoutMs: r.AckTimeoutMS}
	for _, e := range own {
		req.Lanes = append(req.Lanes, &api.WorkerLane{
			Endpoint: e.Bytes[:min(e.Length, endpointBytes)], ReplyAddr: e.Addr, ReplyRkey: e.RKey, Staging: e.Staging,
		})
	}
	ctx, cancel := m.bounded(r.TimeoutMS)
	defer cancel()
	ends, err := m.attach(ctx, req)
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
	req := &api.RegisterRequest{TimeoutMs: r.TimeoutMS}
	for i := range tensors {
		t := &tensors[i]
		if int(t.NDim) > len(t.Shape) {
			return nil, fmt.Errorf("tensor %q has %d dimensions: use at most %d", text(t.Name[:]), t.NDim, len(t.Shape))
		}
		req.Tensors = append(req.Tensors, &api.Tensor{
			Name: text(t.Name[:]), Shape: t.Shape[:t.NDim], Dtype: wireTypes[t.WireType], LrMult: &t.LRMult, WdMult: &t.WDMult,
		})
	}
	ctx, cancel := m.bounded(r.TimeoutMS)
	defer cancel()
	lanes, err := m.declare(ctx, req)
	if err != nil {
		return nil, err
	}
	return []any{lanes}, nil
}
