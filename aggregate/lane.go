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
	idle    int
	last    int64 // when counters were published, ns

	mu              sync.Mutex
	commands        []func()
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
	}
	l.published = l.local
}

// Do runs f on the lane's goroutine, between rounds, and waits for it.
func (l *Lane) Do(ctx context.Context, f func()) error {
	if l.manual {
		f()
		return nil
	}
	ran := make(chan struct{})
	l.mu.Lock()
	l.commands = append(l.commands, func() { f(); close(ran) })
	l.mu.Unlock()
	l.notify()
	select {
	case <-ran:
		return nil
	case <-l.done:
		return ErrClosed
	case <-ctx.Done():
		return ctx.Err()
	}
}

// later runs f on the lane's goroutine, between rounds. Any goroutine; a lane's own, too.
func (l *Lane) later(f func()) {
	l.mu.Lock()
	l.commands = append(l.commands, f)
	l.mu.Unlock()
	l.notify()
}

// try is Do for what can fail. When ctx ends first the lane may still be about to run f: nothing that f sets may be looked at.
func (l *Lane) try(ctx context.Context, f func() error) error {
	var err error
	if doErr := l.Do(ctx, func() { err = f() }); doErr != nil {
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
	if !s.listed && s.machine.Waiting() {
		s.listed = true
		l.busy = append(l.busy, s)
	}
}

// flush posts what the round left to post.
func (l *Lane) flush() {
	for i, k := range l.dirty {
		k.dirty = false
		if s := l.seats[k.ID().Number].share; s != nil {
			s.flush(k)
		}
		l.dirty[i] = nil
	}
	l.dirty = l.dirty[:0]
}

func (l *Lane) runCommands() {
	l.mu.Lock()
	commands := l.commands
	l.commands = nil
	l.mu.Unlock()
	for _, f := range commands {
		f()
	}
}

// join takes a share into the lane.
func (l *Lane) join(s *share) {
	l.shares = append(l.shares, s)
	l.mu.Lock()
	l.publishedByRank[s] = make([]WorkerCounters, len(s.links))
	l.mu.Unlock()
}

func (l *Lane) close() error {
	var errs []error
	for _, cq := range l.cqs {
		errs = append(errs, cq.Close())
	}
	return errors.Join(errs...)
}
