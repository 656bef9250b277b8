package aggregate

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/rackweave/rackweave/verbs"
)

// A connection is a stream of messages in each direction, and outlives the queue pair that carries it. When that fails, or its
// NIC's link does, the worker asks to resume ([Job.Resume]): both sides take their queue pair out of service, so that nothing
// lands late, tell each other how many messages they have received, and connect another pair of queue pairs, on whatever NICs
// they like. What the other has received leaves the ring (ring.go), what it has not is posted again, in order. So every message
// is received exactly once, and slots, folds and epochs notice nothing.

// mending is the part of a connection that this takes.
type mending struct {
	possible   bool // the worker can resume, and the link can fail
	broken     bool // messages wait in the ring: there is no queue pair, or it waits for the worker
	untold     bool // and the worker does not know
	deadline   int64
	attempt    uint64 // the worker's, that made the queue pair; 0: the first
	received   uint64 // messages, over all queue pairs
	receives   int    // posted to the queue pair and not completed
	fruitless  int    // breaks for which the device may blame us, since
	progress   uint64 // was this
	ackTimeout time.Duration
}

// Break is a connection that waits for its worker to resume it.
type Break struct {
	Lane    int
	Attempt uint64 // what the worker's last [Resume] of the lane gave
}

// Breaks tells of a worker's connections that broke.
func (j *Job) Breaks(rank int) <-chan Break { return j.breaks[rank] }

const (
	awayNap      = 200 * time.Microsecond // how long a lane sleeps while it has several queues to look at
	drainLimit   = 500 * time.Millisecond
	drainPause   = time.Millisecond
	drainBatches = 64

	mostFruitless = 8
)

// mendable reports whether another queue pair may do better. Soft-RoCE calls a packet that finds no link an operation error, which
// for other devices is a work request that they do not understand; and what is fatal to one NIC need not be to another. An error
// that is this side's own fault comes again and again.
func (c *conn) mendable(status uint16) bool {
	m := &c.mend
	switch {
	case !m.possible:
		return false
	case status != verbs.WCLocQPOpErr && status != verbs.WCFatalErr:
		return status == verbs.WCFlushErr || status == verbs.WCRetryExcErr
	}
	if p := m.received + c.ring.done; p != m.progress {
		m.progress, m.fruitless = p, 0
	}
	m.fruitless++
	return m.fruitless <= mostFruitless
}

// breakOff takes note that the queue pair has failed: messages wait until the worker resumes the connection.
func (c *conn) breakOff() {
	m := &c.mend
	if !m.broken {
		m.broken = true
		c.lane.broken++
		c.lane.local.Breaks++
		m.deadline = c.lane.now() + int64(c.share.job.engine.cfg.LinkTimeout)
	}
	c.tellBreak()
}

// lose takes note that a completion queue of the lane's is lost, and what it held: the connections on that NIC go on over others,
// where they can. Else it is an error, and the end of the lane.
func (l *Lane) lose(nic int, err error) error {
	if len(l.cqs) == 1 || !l.attr.Has(verbs.DevLink) {
		return err
	}
	l.lost[nic] = true
	for _, c := range l.conns {
		switch {
		case c == nil || c.qp == nil || c.nic != nic || c.dead:
		case c.mend.possible:
			_ = c.qp.Fail() // see takeOut
			c.breakOff()
		default:
			c.share.job.fail(noRank, fmt.Errorf("lane %d: %w", l.index, err))
		}
	}
	return nil
}

// tellBreak tells the worker, later where it has not yet heard of those before.
func (c *conn) tellBreak() {
	select {
	case c.share.job.breaks[c.rank] <- Break{c.lane.index, c.mend.attempt}:
		c.mend.untold = false
	default:
		c.mend.untold = true
	}
}

// mend looks after broken connections: one goes on when the worker has come, and is lost when it does not in time.
func (l *Lane) mend() {
	l.broken = 0
	for _, c := range l.conns {
		if c == nil || !c.mend.broken || c.dead || c.share.ended {
			continue
		}
		switch {
		case c.qp != nil && c.qp.State() == verbs.StateRTS:
			c.goOn()
			continue
		case l.now() > c.mend.deadline:
			c.end(fmt.Errorf("no way to it for %v", c.share.job.engine.cfg.LinkTimeout))
			continue
		}
		if c.mend.untold {
			c.tellBreak()
		}
		l.broken++
	}
}

// goOn posts what the worker has not received to the new queue pair.
func (c *conn) goOn() {
	c.mend.broken = false
	c.lane.local.Moves++
	r := &c.ring
	for i := range r.used {
		wr := &r.wrs[r.index(i)]
		wr.Flags &^= verbs.SendSignaled
		wr.WRID = sendTag | c.wrID()
	}
	r.unposted, c.unsignaled = r.used, 0
	c.post()
	c.replenish() // messages can have come before the lane looked
	if c.share.waiting() {
		c.lane.list(c.share)
	}
}

// Resume is what a worker says to take up a lane's connection again.
type Resume struct {
	Lane     int
	Attempt  uint64 // counts the worker's attempts of the lane, from 1: an older one that comes late is refused
	NIC      int    // of the engine's, for the box's end
	Received uint64 // messages from the box
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

// ErrStale is what an attempt to resume fails with that a later one has overtaken.
var ErrStale = errors.New("stale attempt")

// Resume gives a worker's connection to a lane a new queue pair, which waits for the worker.
func (j *Job) Resume(ctx context.Context, rank int, r Resume) (Resumed, error) {
	if rank < 0 || rank >= j.workers || r.Lane < 0 || r.Lane >= len(j.shares) || r.NIC < 0 || r.NIC >= len(j.pds) {
		return Resumed{}, fmt.Errorf("job %q: resume lane %d of worker %d over NIC %d: the job has %d lanes and %d workers, the aggregator %d NICs",
			j.name, r.Lane, rank, r.NIC, len(j.shares), j.workers, len(j.pds))
	}
	s := j.shares[r.Lane]
	if err := s.lane.try(ctx, func() error { return s.takeOut(rank, &r) }); err != nil {
		return Resumed{}, err
	}
	drained := false
	for end := time.Now().Add(drainLimit); !drained && time.Now().Before(end); {
		if err := s.lane.try(ctx, func() (err error) { drained, err = s.drain(rank, &r); return err }); err != nil {
			return Resumed{}, err
		}
		if !drained {
			time.Sleep(drainPause)
		}
	}
	var out Resumed
	if err := s.lane.try(ctx, func() (err error) { out, err = s.resume(rank, &r); return err }); err != nil {
		return Resumed{}, err
	}
	return out, nil
}

// stale refuses an attempt when a later one has the connection.
func (c *conn) stale(r *Resume) error {
	return fmt.Errorf("job %q: attempt %d to resume lane %d of worker %d: %w: there was attempt %d", c.share.job.name, r.Attempt, c.lane.index, c.rank, ErrStale, c.mend.attempt)
}

// takeOut takes the connection's queue pair out of service; on the lane's goroutine, as the next two.
func (s *share) takeOut(rank int, r *Resume) error {
	c := s.conns[rank]
	switch {
	case c == nil || !c.mend.possible || c.dead || s.ended:
		return fmt.Errorf("job %q: lane %d of worker %d cannot be resumed", s.job.name, s.lane.index, rank)
	case r.Attempt <= c.mend.attempt:
		return c.stale(r)
	}
	c.mend.attempt, c.mend.untold = r.Attempt, false
	if !c.mend.broken {
		c.mend.broken = true
		s.lane.broken++
		c.mend.deadline = s.lane.now() + int64(s.job.engine.cfg.LinkTimeout)
	}
	if c.qp != nil {
		_ = c.qp.Fail() // a dead device cannot even do that; nothing lands once the queue pair is closed
	}
	return nil
}

// drain takes what the queue pair received before it was out of service: the worker may know that it arrived. It reports
// whether that was all.
func (s *share) drain(rank int, r *Resume) (bool, error) {
	c, l := s.conns[rank], s.lane
	if r.Attempt != c.mend.attempt {
		return false, c.stale(r)
	}
	defer l.flush() // the queue is that of others too
	for range drainBatches {
		if c.qp == nil || c.mend.receives <= 0 || l.lost[c.nic] {
			return true, nil
		}
		n, err := l.take(c.nic, l.wc[:])
		if err != nil || n == 0 {
			return false, err
		}
		l.stamp = l.now()
		for i := range l.wc[:n] {
			l.complete(&l.wc[i])
		}
	}
	return false, nil
}

// resume makes the new queue pair.
func (s *share) resume(rank int, r *Resume) (Resumed, error) {
	c := s.conns[rank]
	if r.Attempt != c.mend.attempt {
		return Resumed{}, c.stale(r)
	}
	if err := c.disconnect(); err != nil {
		return Resumed{}, err
	}
	if r.Received < c.ring.done || r.Received > c.ring.reached {
		c.violate("says it received %d messages of lane %d, which sent %d and knows that %d arrived", r.Received, s.lane.index, c.ring.reached, c.ring.done)
		return Resumed{}, s.job.failure.Load().Err
	}
	keep := uint64(0)
	if planted == plantResentTwice && r.Received > c.ring.done {
		keep = 1
	}
	c.sent(int(r.Received - c.ring.done - keep))
	if err := c.aim(r.NIC, r.Regions); err != nil {
		c.violate("resumed lane %d without a key for what it waits for: %v", s.lane.index, err)
		return Resumed{}, err
	}
	c.mend.ackTimeout = r.AckTimeout
	endpoint, err := c.connect(r.NIC, r.Endpoint)
	if err != nil {
		return Resumed{}, err
	}
	return Resumed{AggregatorLane: c.aggregatorLane(endpoint), Received: c.mend.received}, nil
}

// aim gives all that was said about keys the ones of other NICs: of the box's, and of the one that the worker uses now.
func (c *conn) aim(nic int, theirs []verbs.MR) error {
	j := c.share.job
	j.mu.Lock()
	defer j.mu.Unlock()
	c.replyRKey, _ = keyOf(theirs, c.replyAddr, 1)
	for i := range c.dst {
		d := &c.dst[i]
		if key, ok := keyOf(theirs, d.addr, 1); d.rkey != 0 && ok {
			d.rkey = key
		} else {
			*d = destination{} // of memory that the worker has given up
		}
	}
	for i := range c.ring.used {
		wr := &c.ring.wrs[c.ring.index(i)]
		if wr.Length == 0 {
			continue
		}
		key, ok := keyOf(theirs, wr.RAddr, uint64(wr.Length))
		if !ok {
			return fmt.Errorf("%d bytes at 0x%x", wr.Length, wr.RAddr)
		}
		wr.RKey, wr.LKey = key, j.lkeyOf(nic, wr.LAddr, uint64(wr.Length))
	}
	return nil
}

func keyOf(regions []verbs.MR, addr, bytes uint64) (uint32, bool) {
	for i := range regions {
		if r := &regions[i]; addr >= r.Addr && addr-r.Addr <= r.Length && bytes <= r.Length-(addr-r.Addr) {
			return r.RKey, true
		}
	}
	return 0, false
}
