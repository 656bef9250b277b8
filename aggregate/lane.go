package aggregate

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/rackweave/rackweave/cgo/kernel"
	"github.com/rackweave/rackweave/verbs"
)

// seat is a connection's place in its lane.
type seat struct {
	share *share
	link  *link
}

// command is what another goroutine asks a lane to do, for a share or for none.
type command struct {
	share *share
	run   func()
	done  chan<- error // takes the panic that it ended with, if any; nil: nobody waits
}

// Lane is one core's loop: its completion queue, its connections, its shares of the jobs.
type Lane struct {
	cfg     LaneConfig
	index   int
	attr    verbs.Attr
	primary int         // the NIC it is for, of the engine's
	cqs     []*verbs.CQ // by NIC; those of others are polled only while connections are there
	cqLost  []bool      // by NIC
	depths  Depths
	spin    int
	manual  bool

	core
	seats   []seat // by the number in work request ids; without a link: free
	gen     int    // of the connection opened last
	shares  []*share
	busy    []*share // shares with something that waits
	on      []int    // connections by NIC
	nextNIC int      // whose queue is polled first, where several are
	wc      [pollBatch]verbs.WC
	queued  int       // completions in inboxes
	lent    int       // shares that callers have borrowed
	parked  []command // for those
	first   int       // whose turn comes first, where shares take turns
	next    int       // of wc, those before it are dispatched
	polled  int       // how many of wc were polled
	serving *share    // whose work is under way; nil: the lane's own
	idle    int
	watch   func(func()) func() // around commands, for tests; nil: nothing is
	last    int64               // when counters were published, ns

	placed          atomic.Int64 // bytes of all jobs' chunks
	mu              sync.Mutex
	commands        []command
	published       Counters
	publishedOn     []int // connections by NIC
	publishedByRank map[*share][]WorkerCounters
	attention       atomic.Bool // commands wait, or a job failed
	stopping        atomic.Bool
	done            chan struct{}
	err             error // why the loop ended, after done
}

func newLane(index int, cfg LaneConfig, nics []*verbs.Device, engine Config) (*Lane, error) {
	attr := cfg.Device.Attr()
	maxQPWR, maxCQE := attr.MaxQPWR, attr.MaxCQE
	for _, nic := range nics {
		maxQPWR, maxCQE = min(maxQPWR, nic.Attr().MaxQPWR), min(maxCQE, nic.Attr().MaxCQE)
	}
	d, err := QueueDepths(engine.Window, engine.MaxConns, maxQPWR, maxCQE)
	if err != nil {
		return nil, fmt.Errorf("lane %d on %s: %w", index, attr.Name, err)
	}
	isa, err := kernel.Default()
	if err != nil {
		return nil, err
	}
	l := &Lane{
		cfg: cfg, index: index, attr: attr, depths: d, spin: engine.Spin, manual: engine.Manual, primary: slices.Index(nics, cfg.Device),
		cqLost: make([]bool, len(nics)), on: make([]int, len(nics)), publishedOn: make([]int, len(nics)),
		publishedByRank: map[*share][]WorkerCounters{}, core: core{lane: index, now: engine.Now, arithmetic: arithmetic{isa: isa}},
		done: make(chan struct{}),
	}
	for _, nic := range nics {
		cq, err := nic.CreateCQ(d.CQ)
		if err != nil {
			return nil, errors.Join(err, l.close())
		}
		l.cqs = append(l.cqs, cq)
	}
	return l, nil
}

// Config returns where the lane runs.
func (l *Lane) Config() LaneConfig { return l.cfg }

// Counters returns what the lane has published of its work; a manual lane publishes when asked.
func (l *Lane) Counters() Counters {
	if l.manual {
		l.publish()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.published
}

// publish copies the counters to where other goroutines read them.
func (l *Lane) publish() {
	l.last = l.stamp
	l.local.SlotsHeld, l.local.FoldsOpen, l.local.Doorbells = 0, 0, l.rung
	l.mu.Lock()
	defer l.mu.Unlock()
	copy(l.publishedOn, l.on)
	for _, s := range l.shares {
		if s.lent {
			continue
		}
		l.serving = s
		l.local.FoldsOpen += uint64(s.machine.Open())
		l.local.Deferred += s.machine.Deferred() - s.deferred
		s.deferred = s.machine.Deferred()
		for rank, k := range s.links {
			if k == nil {
				continue
			}
			l.local.SlotsHeld += uint64(s.machine.Held(rank))
			l.local.Doorbells += k.Doorbells
			w, st := k.counters, s.machine.Stats(rank)
			w.Chunks, w.LastArrivals, w.LatenessNS = st.Chunks, st.LastArrivals, st.LatenessNS
			l.publishedByRank[s][rank] = w
		}
		if s.above != nil {
			s.above.publish()
		}
	}
	l.published = l.local
}

// Do runs f on the lane's goroutine, between rounds, and waits for it. It returns a panic of f as an error.
func (l *Lane) Do(ctx context.Context, f func()) error { return l.do(ctx, nil, f) }

// do is Do for a share: a panic of f ends its job. In a manual lane nothing is contained, so that tests and the simulation see
// every panic.
func (l *Lane) do(ctx context.Context, s *share, f func()) (err error) {
	if l.manual {
		l.serving = s
		f()
		return nil
	}
	done := make(chan error, 1)
	l.enqueue(command{s, f, done})
	select {
	case err := <-done:
		return err
	case <-l.done:
		return ErrClosed
	case <-ctx.Done():
		return ctx.Err()
	}
}

// later runs f for a share on the lane's goroutine, between rounds. Any goroutine; a lane's own, too.
func (l *Lane) later(s *share, f func()) { l.enqueue(command{share: s, run: f}) }

func (l *Lane) enqueue(c command) {
	l.mu.Lock()
	l.commands = append(l.commands, c)
	l.mu.Unlock()
	l.notify()
}

func (l *Lane) takeCommands() []command {
	l.mu.Lock()
	defer l.mu.Unlock()
	commands := l.commands
	l.commands = nil
	return commands
}

// try is do for what can fail. When ctx ends first the lane may still be about to run f: nothing that f sets may be looked at.
func (l *Lane) try(ctx context.Context, s *share, f func() error) error {
	var err error
	if doErr := l.do(ctx, s, func() { err = f() }); doErr != nil {
		return doErr
	}
	return err
}

// notify makes the lane look at its commands and failed jobs. Any goroutine.
func (l *Lane) notify() {
	l.attention.Store(true)
	l.wake()
}

// wake makes the lane look again, or not sleep now. Any goroutine.
func (l *Lane) wake() { l.cqs[l.primary].Wake() }

// list puts a share on the lane's list of those with something that waits.
func (l *Lane) list(s *share) {
	if !s.listed && s.waiting() {
		s.listed = true
		l.busy = append(l.busy, s)
	}
}

// flush posts what the round left to post.
func (l *Lane) flush() {
	for i, k := range l.dirty {
		if k == nil {
			continue // flushed by a round that panicked later
		}
		l.dirty[i], k.dirty = nil, false
		if s := l.seats[k.ID().Number].share; s != nil {
			l.serving = s
			s.flush(k)
		}
	}
	l.dirty = l.dirty[:0]
}

// join takes a share into the lane.
func (l *Lane) join(s *share) {
	l.shares = append(l.shares, s)
	l.mu.Lock()
	l.publishedByRank[s] = make([]WorkerCounters, len(s.links))
	l.mu.Unlock()
}

// forget takes a share off the lane's lists.
func (l *Lane) forget(s *share) {
	is := func(o *share) bool { return o == s }
	l.queued -= s.inbox.n
	s.inbox = inbox{}
	l.shares = slices.DeleteFunc(l.shares, is)
	l.busy = slices.DeleteFunc(l.busy, is)
	l.mu.Lock()
	delete(l.publishedByRank, s)
	l.mu.Unlock()
}

func (l *Lane) close() error {
	var errs []error
	for _, cq := range l.cqs {
		errs = append(errs, cq.Close())
	}
	return errors.Join(errs...)
}
