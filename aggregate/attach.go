package aggregate

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/rackweave/rackweave/aggregate/reduce"
	"github.com/rackweave/rackweave/aggregate/session"
	"github.com/rackweave/rackweave/verbs"
)

// WorkerLane is what a worker says of its end of a lane's connection.
type WorkerLane struct {
	Endpoint  []byte
	ReplyAddr uint64 // its staging buffers, of a chunk each; by reference answers go to where payloads lie instead
	ReplyRKey uint32
	Staging   uint32 // how many: the window, or fewer by reference
	// How long the aggregator retries a message that is not acknowledged; 0: the contract's default.
	AckTimeout time.Duration
	// The worker can resume the connection over other NICs when its queue pair fails.
	Resumable bool
}

// AggregatorLane is what the worker needs of the aggregator's end.
type AggregatorLane struct {
	Endpoint []byte
	SlotAddr uint64
	SlotRKey uint32
}

// Attach connects a worker to every lane: it makes the queue pairs and slots, posts the receives and waits, passive, for the
// worker to connect. Each rank attaches once.
func (j *Job) Attach(ctx context.Context, rank int, lanes []WorkerLane) ([]AggregatorLane, error) {
	if rank < 0 || rank >= j.workers || len(lanes) != len(j.shares) {
		return nil, fmt.Errorf("job %q: attach worker %d over %d lanes: the job has %d workers, the aggregator %d lanes",
			j.name, rank,
			len(lanes), j.workers, len(j.shares))
	}
	if err := j.open(); err != nil {
		return nil, err
	}
	out := make([]AggregatorLane, len(lanes))
	for i, l := range j.lanes {
		slots, err := j.memory.allocate(slotRegion, i, l.cfg.Node, int64(j.window*j.chunkBytes),
			verbs.AccessLocalWrite|verbs.AccessRemoteWrite|verbs.AccessForPeer(peerOf(rank)), l.lazySlots())
		if err != nil {
			return nil, err
		}
		w := &lanes[i]
		k := &link{rank: rank, slots: slots, replyAddr: w.ReplyAddr, replyRKey: w.ReplyRKey,
			staging: uint64(w.Staging) * uint64(j.chunkBytes)}
		if err := l.try(ctx, j.shares[i], func() (err error) { out[i], err = j.attach(l, j.shares[i], k, w); return err }); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// peerOf is how the verbs know a worker: only it can write its slots.
func peerOf(rank int) int { return 1 + rank }

// lazySlots reports whether the lane's slots take no memory: payloads are read where they lie.
func (l *Lane) lazySlots() bool { return l.attr.Has(verbs.DevByReference) }

// attach opens a connection; on the lane's goroutine.
func (j *Job) attach(l *Lane, s *share, k *link, w *WorkerLane) (AggregatorLane, error) {
	if s.links[k.rank] != nil {
		return AggregatorLane{}, fmt.Errorf("job %q: worker %d is attached already", j.name, k.rank)
	}
	id, err := l.vacant()
	if err != nil {
		return AggregatorLane{}, err
	}
	inline := 0
	if l.attr.Has(verbs.DevCopiesAtPost) && int(l.attr.MaxInline) >= j.chunkBytes {
		inline = j.chunkBytes
	}
	k.Conn = session.New(session.Config{
		ID: id, Peer: peerOf(k.rank), SendDepth: l.depths.AggregatorSend, RecvDepth: l.depths.AggregatorRecv, MaxInline: inline,
		ByReference: l.attr.Has(verbs.DevByReference), Resumable: w.Resumable && l.attr.Has(verbs.DevLink),
		Timeout: j.timeouts.peer, AckTimeout: w.AckTimeout, MaxBatch: pollBatch,
		InlineCompletionPeriod: l.depths.AggregatorSend / 4,
	})
	l.seat(s, k)
	endpoint, err := l.connect(s, k, l.primary, j.memory.pds[l.primary], w.Endpoint)
	if err != nil {
		return AggregatorLane{}, errors.Join(err, l.drop(k))
	}
	k.dst = make([]destination, len(s.store.tensors))
	if s.pace != nil {
		k.stream.fit(&s.store)
	}
	s.links[k.rank] = k
	s.machine.Attach(k.rank, int(w.Staging))
	return k.aggregatorLane(endpoint), nil
}

func (k *link) aggregatorLane(endpoint []byte) AggregatorLane {
	return AggregatorLane{Endpoint: endpoint, SlotAddr: k.slots.addr(), SlotRKey: k.slots.mrs[k.NIC()].RKey}
}

// Resume is what a worker says to take up a lane's connection again.
type Resume struct {
	Lane     int
	Attempt  uint64 // counts the worker's attempts of the lane, from 1: an older one that comes late is refused
	NIC      int    // of the engine's, for the aggregator's end
	Received uint64 // messages from the aggregator
	Endpoint []byte
	// The worker's memory, as the NIC that it uses knows it: Addr, Length and RKey.
	Regions    []verbs.MR
	AckTimeout time.Duration
}

// Resumed is the aggregator's answer.
type Resumed struct {
	AggregatorLane
	Received uint64 // messages from the worker
}

const (
	drainLimit   = 500 * time.Millisecond
	drainPause   = time.Millisecond
	drainBatches = 64
)

// Resume gives a worker's connection to a lane a new queue pair, which waits for the worker: both ends take their queue pair out
// of service, tell each other how many messages they have received, and go on over the new pair ([session]).
func (j *Job) Resume(ctx context.Context, rank int, r Resume) (Resumed, error) {
	if rank < 0 || rank >= j.workers || r.Lane < 0 || r.Lane >= len(j.shares) || r.NIC < 0 || r.NIC >= len(j.memory.pds) {
		return Resumed{}, fmt.Errorf("job %q: resume lane %d of worker %d over NIC %d: the job has %d lanes and %d workers, the aggregator %d NICs",
			j.name, r.Lane, rank, r.NIC, len(j.shares), j.workers, len(j.memory.pds))
	}
	l := j.lanes[r.Lane]
	if err := l.try(ctx, j.shares[r.Lane], func() error { return j.takeOut(rank, &r) }); err != nil {
		return Resumed{}, err
	}
	drained := false
	for end := time.Now().Add(drainLimit); !drained && time.Now().Before(end); {
		if err := l.try(ctx, j.shares[r.Lane], func() (err error) { drained, err = j.drain(rank, &r); return err }); err != nil {
			return Resumed{}, err
		}
		if !drained {
			time.Sleep(drainPause)
		}
	}
	var out Resumed
	if err := l.try(ctx, j.shares[r.Lane], func() (err error) { out, err = j.reconnect(rank, &r); return err }); err != nil {
		return Resumed{}, err
	}
	return out, nil
}

// stale refuses an attempt when a later one has the connection.
func (j *Job) stale(k *link, r *Resume) error {
	return fmt.Errorf("job %q: attempt %d to resume lane %d of worker %d: %w: there was attempt %d", j.name, r.Attempt, r.Lane,
		k.rank,
		ErrStale, k.attempt)
}

// takeOut takes the connection's queue pair out of service; on the lane's goroutine, as the next two.
func (j *Job) takeOut(rank int, r *Resume) error {
	l, s := j.lanes[r.Lane], j.shares[r.Lane]
	k := s.links[rank]
	switch {
	case k == nil || !k.Resumable() || k.State() == session.Closed || s.machine.State() != reduce.Running:
		return fmt.Errorf("job %q: lane %d of worker %d cannot be resumed", j.name, r.Lane, rank)
	case r.Attempt <= k.attempt:
		return j.stale(k, r)
	}
	k.attempt, k.untold = r.Attempt, false
	if k.State() == session.Up {
		k.deadline = l.now() + s.linkNS
	}
	l.broken = true
	k.TakeOut()
	return nil
}

// drain takes what the queue pair received before it was out of service: the worker may know that it arrived. It reports
// whether that was all.
func (j *Job) drain(rank int, r *Resume) (bool, error) {
	l, k := j.lanes[r.Lane], j.shares[r.Lane].links[rank]
	if r.Attempt != k.attempt {
		return false, j.stale(k, r)
	}
	l.dispatch(j.shares[r.Lane])
	defer l.flush() // the queue is that of others too
	for range drainBatches {
		nic := k.NIC()
		if nic < 0 || k.Outstanding() <= 0 || l.cqLost[nic] {
			return true, nil
		}
		n, err := l.take(nic, l.wc[:])
		if err != nil || n == 0 {
			return false, err
		}
		l.stamp = l.now()
		for i := range l.wc[:n] {
			l.deal(&l.wc[i])
		}
		l.dispatch(j.shares[r.Lane])
	}
	return false, nil
}

// reconnect makes the new queue pair.
func (j *Job) reconnect(rank int, r *Resume) (Resumed, error) {
	l, s := j.lanes[r.Lane], j.shares[r.Lane]
	k := s.links[rank]
	if r.Attempt != k.attempt {
		return Resumed{}, j.stale(k, r)
	}
	l.dispatch(s)
	if err := k.Disconnect(); err != nil {
		return Resumed{}, err
	}
	violate := func(format string, args ...any) (Resumed, error) {
		s.machine.Violate(rank, format, args...)
		s.carryOut()
		return Resumed{}, fmt.Errorf("job %q: %w", j.name, j.fate.failure.Load().Err)
	}
	n, err := k.Arrived(r.Received)
	if err != nil {
		return violate("says of lane %d: %w", r.Lane, err)
	}
	s.sent(k, n)
	l.list(s)
	if err := k.aim(r.NIC, r.Regions, &j.memory); err != nil {
		return violate("resumed lane %d without a key for what it waits for: %w", r.Lane, err)
	}
	k.SetAckTimeout(r.AckTimeout)
	endpoint, err := l.connect(s, k, r.NIC, j.memory.pds[r.NIC], r.Endpoint)
	if err != nil {
		return Resumed{}, err
	}
	return Resumed{AggregatorLane: k.aggregatorLane(endpoint), Received: k.Received()}, nil
}
