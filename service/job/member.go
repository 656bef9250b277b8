package job

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"net/http"
	"net/netip"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"

	"github.com/rackweave/rackweave/aggregate"
	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/codec"
	"github.com/rackweave/rackweave/service/api"
	"github.com/rackweave/rackweave/service/rpc"
	"github.com/rackweave/rackweave/verbs"
)

// Limits of a member.
const (
	maxRunName     = 128
	watchWithin    = 10 * time.Second // from Join to Watch
	connectWithin  = 45 * time.Second // from Join to Connect
	heartbeatEvery = time.Second
	PingTimeout    = 8 * time.Second // of a peer that has sent nothing for a while
	maxRegions     = 1 << 14         // of a worker's memory: a lane searches them when it fails over
)

// Member is one worker of a job.
type Member struct {
	Job       *Job
	Session   string
	Rank      int // in this rack. Until the job starts -1 is any
	First     int // the rank in the whole job of this rack's first worker
	Low       int // the first rank that it may have here
	Ranks     int // how many it may have
	Host      string
	run       string // "": unknown
	hostID    string
	pid       int64
	uid       uint32
	provider  string           // asked for; "": any
	codecs    chan *api.Codecs // to be announced
	providers []string

	Calls atomic.Int32 // under way

	// Guarded by job.mu.
	watched  bool
	dialled  bool          // called Connect
	attached bool          // and is connected
	timers   []*time.Timer // of what it must do in time
	reason   error         // why it was lost; set before Out is closed
	spared   bool          // it was lost, and the job goes on
	Out      chan struct{} // closed when it has left or is lost
}

func (m *Member) String() string {
	if m.Rank < 0 {
		return fmt.Sprintf("a worker on %s (pid %d)", m.Host, m.pid)
	}
	return fmt.Sprintf("worker %d (%s, pid %d)", m.inJob(), m.Host, m.pid)
}

// inJob is the worker's rank in the whole job.
func (m *Member) inJob() int { return m.First + m.Rank }

// welcome returns the answer to a worker whose job has started.
func (m *Member) welcome() *api.JoinResponse {
	j := m.Job
	e := j.Engine
	r := &api.JoinResponse{
		Session: m.Session, Rank: uint32(m.inJob()), Workers: uint32(j.Spec.Total), ChunkBytes: uint32(j.Spec.ChunkBytes),
		Provider: e.Provider, Window: uint32(e.Agg.Window()), SendDepth: uint32(e.Depths.WorkerSend),
		RecvDepth: uint32(e.Depths.WorkerRecv), ByReference: e.ByReference(), LiveHyper: j.Spec.liveHyper(), Mode: j.Spec.Mode.String(),
		WatchWithinMs: uint32(watchWithin.Milliseconds()), HeartbeatMs: uint32(heartbeatEvery.Milliseconds()),
		LinkTimeoutMs: uint32(e.LinkTimeout.Milliseconds()),
	}
	r.Compress = j.Spec.Compress.String()
	r.Gradients, r.Answers = codecOf(j.Spec.Compress.Up), codecOf(j.Spec.Compress.Down)
	j.Spec.Racks.Welcome(r)
	record := j.Spec.Rule.Record(j.Spec.Hyper)
	r.Record = record[:]
	for i, l := range j.Lanes {
		r.Lanes = append(r.Lanes, &api.Lane{Nic: uint32(l.NIC), Core: uint32(l.Core), Weight: l.Weight, Device: e.Names[i]})
	}
	for _, o := range j.Members {
		if o.hostID == m.hostID {
			r.LocalWorkers++
		}
	}
	r.Terms = []string{
		fmt.Sprint("lanes ", chunk.Spread(j.Lanes, 1)), "provider " + r.Provider, fmt.Sprint("a window of ", r.Window),
		fmt.Sprint("chunks of ", r.ChunkBytes), fmt.Sprint("queues of ", r.SendDepth, " and ", r.RecvDepth),
		fmt.Sprint("reading by reference ", r.ByReference), fmt.Sprint("a link timeout in ms of ", r.LinkTimeoutMs),
		fmt.Sprint("rank ", r.Rank), fmt.Sprint("hyper-parameters ", r.Record), fmt.Sprint("workers by rack ", r.RackWorkers),
		fmt.Sprint("pods ", r.Pods), "codecs " + r.Compress,
	}
	j.mu.Lock()
	m.timers = []*time.Timer{m.must(&m.watched, watchWithin, "open its watch stream"), m.must(&m.attached, connectWithin, "connect")}
	j.mu.Unlock()
	return r
}

func codecOf(s codec.Spec) *api.Codec {
	if s.ID == codec.Raw {
		return nil
	}
	return &api.Codec{Id: uint32(s.ID), Stochastic: s.Stochastic, Param: s.Param}
}

// must ends the membership of a worker that has not done something in time.
func (m *Member) must(done *bool, within time.Duration, what string) *time.Timer {
	return time.AfterFunc(within, func() {
		m.Job.mu.Lock()
		late := !*done
		m.Job.mu.Unlock()
		if late {
			m.lost(fmt.Sprintf("it did not %s within %v of joining", what, within))
		}
	})
}

// gone reports whether the member has left or was lost.
func (m *Member) gone() bool { return isClosed(m.Out) }

// left reports whether the member has left by its own call. The caller holds job.mu.
func (m *Member) left() bool { return m.gone() && m.reason == nil }

// Active returns an error if the member has left, or its job has failed.
func (m *Member) Active() error {
	if isClosed(m.Job.Failed) { // comes first: a failure makes the members leave
		return m.Job.FailureError()
	}
	if m.gone() {
		return rpc.Refuse(connect.CodeFailedPrecondition, "%v has left job %q", m, m.Job.Name)
	}
	return nil
}

// Leave ends the membership of a worker that is done, or that says why it cannot go on.
func (m *Member) Leave(ctx context.Context, r *api.LeaveRequest) (*api.LeaveResponse, error) {
	out := &api.LeaveResponse{}
	if r.Failure != "" {
		m.giveUp(rpc.Printable(r.Failure, rpc.MaxTextBytes), r.Blame)
		return out, nil
	}
	if !m.depart(nil) {
		return out, nil
	}
	if isClosed(m.Job.Ended) {
		m.Job.Table.retire(m.Job) // before the last worker gets the answer: it may join the next job of this name at once
	}
	m.Job.Table.Log.Info("worker left", "job", m.Job.Name, "rank", m.Rank)
	ctx, cancel := rpc.Bounded(ctx, 0)
	defer cancel()
	if err := m.Job.Agg.Detach(ctx, m.Rank); err != nil {
		return nil, connect.NewError(connect.CodeInternal, err)
	}
	return out, nil
}

// lost ends the membership of a worker that is lost, and fails the job unless its policy can do without the worker.
func (m *Member) lost(why string) {
	reason := fmt.Errorf("%v is gone: %s", m, why)
	if m.depart(reason) && m.Job.Agg.Lose(m.Rank, reason) {
		m.Job.Table.Log.Warn("worker lost, and the job goes on without it", "job", m.Job.Name, "rank", m.Rank, "err", reason)
		m.Job.spare(m)
	}
}

// spare lets collective calls end without a worker.
func (j *Job) spare(m *Member) {
	j.mu.Lock()
	defer j.mu.Unlock()
	m.spared = true
	for key, g := range j.gatherings {
		if !g.full && j.complete(g) {
			g.full = true
			go j.perform(key, g)
		}
	}
}

// giveUp is lost for a worker that says itself why it cannot go on. Where the job is spread over several aggregators, it may know
// the culprit from another one.
func (m *Member) giveUp(why string, blame *int32) {
	j := m.Job
	if blame == nil || j.Spec.Parts == 0 || *blame < -1 || int(*blame) >= j.Spec.Workers || int(*blame) == m.Rank {
		m.lost(why)
	} else if !m.gone() {
		j.Agg.Fail(int(*blame), fmt.Errorf("%v gave up: %s", m, why))
		m.depart(errFailed)
	}
}

// errFailed is the reason why members of a failed job are gone.
var errFailed = errors.New("the job has failed")

// depart marks a member as gone, and as lost if there is a reason. It reports whether the member was there.
func (m *Member) depart(reason error) bool {
	j := m.Job
	j.mu.Lock()
	defer j.mu.Unlock()
	if m.gone() {
		return false
	}
	m.reason = reason
	close(m.Out)
	for _, t := range m.timers {
		t.Stop()
	}
	if reason == nil {
		j.endGatherings(m)
	}
	if j.gone++; j.gone == len(j.Members) {
		close(j.Ended)
	}
	return true
}

// Follow serves the member's Watch stream until one of both ends.
func (m *Member) Follow(ctx context.Context, stream *connect.ServerStream[api.WatchResponse]) error {
	m.Job.mu.Lock()
	gone, again := m.gone(), m.watched
	m.watched = !gone || again
	m.Job.mu.Unlock()
	switch {
	case gone:
		return rpc.Refuse(connect.CodeNotFound, "%v has left job %q", m, m.Job.Name)
	case again:
		return rpc.Refuse(connect.CodeAlreadyExists, "%v of job %q is watched already", m, m.Job.Name)
	}
	heartbeat := time.NewTicker(heartbeatEvery)
	defer heartbeat.Stop()
	next := &api.WatchResponse{}
	down, changed := m.Job.Engine.Links.State()
	if len(down) > 0 {
		next.Links = &api.Links{Down: down}
	}
	out := m.Out
	for {
		if err := stream.Send(next); err != nil {
			m.lost(disconnected(CallerOf(ctx).Conn.Silent()))
			return err
		}
		next = &api.WatchResponse{}
		select {
		case <-heartbeat.C:
		case <-changed:
			down, changed = m.Job.Engine.Links.State()
			next.Links = &api.Links{Down: down}
		case next.Codecs = <-m.codecs:
		case b := <-m.Job.Agg.Breaks(m.Rank):
			m.Job.Table.Log.Warn("connection broke", "job", m.Job.Name, "rank", m.Rank, "lane", b.Lane)
			next.Links = &api.Links{Down: down, Broken: []*api.BrokenLane{{Lane: uint32(b.Lane), Attempt: b.Attempt}}}
		case <-out:
			switch why := m.reason; {
			case errors.Is(why, errFailed):
				out = nil // the job's failure says why
				continue
			case why != nil:
				return stream.Send(&api.WatchResponse{Failure: &api.Failure{Rank: int32(m.inJob()), Text: why.Error()}})
			}
			return nil
		case <-ctx.Done():
			m.lost(disconnected(CallerOf(ctx).Conn.Silent()))
			return ctx.Err()
		case <-m.Job.Failed:
			f := m.Job.failure
			err := stream.Send(&api.WatchResponse{Failure: &api.Failure{Rank: m.Job.inJob(f.Rank), Text: f.Err.Error()}})
			m.depart(errFailed)
			return err
		}
	}
}

// disconnected returns the text for a call's connection that has ended. A peer that is there answers pings.
func disconnected(silent time.Duration) string {
	if silent >= PingTimeout {
		return fmt.Sprintf("it has missed its heartbeats for %v: it is stopped, or its host cannot be reached", silent.Round(time.Second))
	}
	return "its connection to the control plane closed"
}

// Connect exchanges the endpoints of the worker's queue pairs.
func (m *Member) Connect(ctx context.Context, r *api.ConnectRequest) (*api.ConnectResponse, error) {
	j := m.Job
	j.mu.Lock()
	again := m.dialled
	m.dialled = true
	j.mu.Unlock()
	if again {
		return nil, rpc.Refuse(connect.CodeAlreadyExists, "%v of job %q is connected already", m, j.Name)
	}
	ctx, cancel := rpc.Bounded(ctx, r.TimeoutMs)
	defer cancel()
	lanes := make([]chunk.WorkerLane, len(r.Lanes))
	for i, l := range r.Lanes {
		lanes[i] = chunk.WorkerLane{
			Endpoint: l.Endpoint, ReplyAddr: l.ReplyAddr, ReplyRKey: l.ReplyRkey, Staging: l.Staging,
			AckTimeout: j.Engine.AckTimeout(r.AckTimeoutMs), Resumable: r.Resumable,
		}
	}
	release, err := j.Hold()
	if err != nil {
		return nil, err
	}
	defer release()
	ends, err := j.Agg.Attach(ctx, m.Rank, lanes)
	if err != nil {
		code := connect.CodeInvalidArgument
		if errors.Is(err, aggregate.ErrFull) {
			code = connect.CodeResourceExhausted
		}
		j.Agg.Fail(m.Rank, fmt.Errorf("%v could not be connected: %w", m, err))
		return nil, connect.NewError(code, err)
	}
	j.mu.Lock()
	m.attached = true
	j.mu.Unlock()
	out := &api.ConnectResponse{}
	for _, l := range ends {
		out.Lanes = append(out.Lanes, laneOf(ctx, l))
	}
	return out, nil
}

// Resume resumes a lane over a new queue pair.
func (m *Member) Resume(ctx context.Context, r *api.ResumeRequest) (*api.ResumeResponse, error) {
	j, e := m.Job, m.Job.Engine
	nic, err := e.UsableNIC(r.Nic)
	if err != nil {
		return nil, connect.NewError(connect.CodeUnavailable, err)
	}
	if len(r.Regions) > maxRegions {
		return nil, rpc.Refuse(connect.CodeInvalidArgument,
			"resume lane %d: %d regions of memory, at most %d are taken: allocate fewer, larger ones", r.Lane, len(r.Regions), maxRegions)
	}
	regions := make([]chunk.Region, len(r.Regions))
	for i, g := range r.Regions {
		regions[i] = chunk.Region{Addr: g.Addr, Length: g.Length, RKey: g.Rkey}
	}
	release, err := j.Hold()
	if err != nil {
		return nil, err
	}
	defer release()
	out, err := j.Agg.Resume(ctx, m.Rank, chunk.Resume{
		Lane: int(min(r.Lane, math.MaxInt32)), Attempt: r.Attempt, NIC: nic, Received: r.Received, Endpoint: r.Endpoint, Regions: regions,
		AckTimeout: e.AckTimeout(r.AckTimeoutMs),
	})
	switch {
	case errors.Is(err, aggregate.ErrProtocol):
		return nil, connect.NewError(connect.CodeInvalidArgument, err)
	case err != nil:
		return nil, connect.NewError(connect.CodeUnavailable, err)
	}
	j.Table.Log.Warn("connection resumed", "job", j.Name, "rank", m.Rank, "lane", r.Lane, "to", e.Devices[r.Nic].Attr().Name,
		"primary", e.Names[r.Lane])
	return &api.ResumeResponse{Lane: laneOf(ctx, out.AggregatorLane), Received: out.Received}, nil
}

// laneOf returns the aggregator's end of a lane, where the call has reached the aggregator: its device may listen on every address.
func laneOf(ctx context.Context, l chunk.AggregatorLane) *api.AggregatorLane {
	at := netip.AddrFrom4([4]byte{127, 0, 0, 1}) // of a Unix socket's peer
	if to, ok := ctx.Value(http.LocalAddrContextKey).(*net.TCPAddr); ok {
		at = to.AddrPort().Addr()
	}
	return &api.AggregatorLane{Endpoint: verbs.Located(l.Endpoint, at), SlotAddr: l.SlotAddr, SlotRkey: l.SlotRKey}
}

// Barrier waits until all workers of all racks have called it with the same name.
func (m *Member) Barrier(ctx context.Context, r *api.BarrierRequest) (*api.BarrierResponse, error) {
	if err := rpc.CheckName("barrier", r.Name); err != nil {
		return nil, connect.NewError(connect.CodeInvalidArgument, err)
	}
	ctx, cancel := rpc.Bounded(ctx, r.TimeoutMs)
	defer cancel()
	all := func() (*api.RegisterResponse, error) {
		return nil, m.Job.Spec.Racks.Agree(ctx, "barrier "+r.Name, "barrier", r.Name)
	}
	if _, err := m.Job.gather(ctx, "barrier "+r.Name, m.Rank, nil, all); err != nil {
		return nil, err
	}
	return &api.BarrierResponse{RestoredStep: m.Job.Model.Restored.Load()}, nil
}
