package aggregate

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rackweave/rackweave/aggregate/session"
	"github.com/rackweave/rackweave/cgo/kernel"
	"github.com/rackweave/rackweave/numa"
	"github.com/rackweave/rackweave/verbs"
)

// pollBatch is how many completions a round takes: few enough that their chunks' results stay in the core's cache until they
// are posted.
const pollBatch = 16

const (
	awayNap   = 200 * time.Microsecond // how long a lane sleeps while it has several queues to look at
	tickEvery = time.Millisecond       // how often a stalled job is looked at while nothing comes
	longNap   = 100 * time.Millisecond // how long a lane sleeps when nothing is due
)

// LaneConfig places a lane.
type LaneConfig struct {
	Device *verbs.Device
	NIC    int // index of the device's NIC in the plan
	CPU    int // -1: not pinned
	Node   int // NUMA node of its memory; -1: any
}

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
		cqLost: make([]bool, len(nics)), on: make([]int, len(nics)), publishedOn: make([]int, len(nics)), publishedByRank: map[*share][]WorkerCounters{},
		core: core{lane: index, now: engine.Now, arithmetic: arithmetic{isa: isa}}, done: make(chan struct{}),
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

// run is the lane's loop until stop. It says first whether it has its core; without, it does not run.
func (l *Lane) run(pinned chan<- error) {
	defer close(l.done)
	var err error
	if l.cfg.CPU >= 0 {
		if err = numa.Pin(l.cfg.CPU); err != nil {
			err = fmt.Errorf("lane %d: %w", l.index, err)
		}
	}
	if pinned <- err; err != nil {
		return
	}
	for !l.stopping.Load() {
		worked, err := l.Step()
		if err != nil {
			l.err = err
			l.stopping.Store(true)
		}
		if worked {
			l.idle = 0
			continue
		}
		if l.idle++; l.idle > l.spin {
			l.sleep()
		}
	}
	l.runCommands()
}

// sleep waits for the next completion. A stalled job is looked at every millisecond; otherwise the wait is only bounded.
func (l *Lane) sleep() {
	limit := longNap
	if l.Tick() {
		limit = tickEvery
	}
	if l.away() || l.broken {
		limit = awayNap
	}
	l.publish()
	if l.cqLost[l.primary] {
		time.Sleep(awayNap) // it would wake at once, for ever
		return
	}
	if l.cqs[l.primary].Arm(1) != nil {
		return
	}
	if worked, _ := l.Step(); worked {
		return
	}
	l.local.Sleeps++
	l.cqs[l.primary].Wait(limit)
}

// Tick looks for workers whose orders keep each other waiting, and breaks such a stall; it reports whether there is one, so that
// the lane looks again soon. A lane calls it before it sleeps; the simulation calls it directly.
func (l *Lane) Tick() bool {
	l.stamp = l.now()
	stalled := false
	for _, s := range l.shares {
		// What comes in wakes the lane for ticks in between: they do not count, as others have not had a processor since.
		counts := l.manual || l.stamp-s.lookedAt >= int64(tickEvery)
		if counts {
			s.lookedAt = l.stamp
		}
		stalled = s.tick(counts) || stalled
	}
	l.flush()
	return stalled
}

// recount counts the connections of every NIC, after one has changed.
func (l *Lane) recount() {
	clear(l.on)
	for i := range l.seats {
		if k := l.seats[i].link; k != nil && k.NIC() >= 0 {
			l.on[k.NIC()]++
		}
	}
}

// away reports whether a connection is on another NIC than the lane's own.
func (l *Lane) away() bool {
	for nic, n := range l.on {
		if n > 0 && nic != l.primary {
			return true
		}
	}
	return false
}

// poll takes completions. Where connections are on several NICs, none of the queues may keep the others waiting.
func (l *Lane) poll() (n int, err error) {
	if !l.away() {
		return l.take(l.primary, l.wc[:])
	}
	l.nextNIC++
	for i := 0; i < len(l.cqs) && n < len(l.wc) && err == nil; i++ {
		if nic := (l.nextNIC + i) % len(l.cqs); l.on[nic] > 0 {
			var more int
			more, err = l.take(nic, l.wc[n:])
			n += more
		}
	}
	return n, err
}

// take takes completions of one NIC's queue.
func (l *Lane) take(nic int, into []verbs.WC) (int, error) {
	if l.cqLost[nic] {
		return 0, nil
	}
	n, err := l.cqs[nic].Poll(into)
	if err != nil {
		return 0, l.loseQueue(nic, err)
	}
	return n, nil
}

// loseQueue takes note that a completion queue is lost, with what it held: the connections on that NIC fail over to others,
// where they can. Else it is an error, and the end of the lane.
func (l *Lane) loseQueue(nic int, err error) error {
	if len(l.cqs) == 1 || !l.attr.Has(verbs.DevLink) {
		return err
	}
	l.cqLost[nic] = true
	for i := range l.seats {
		s, k := l.seats[i].share, l.seats[i].link
		switch {
		case k == nil || k.NIC() != nic || k.State() == session.Closed:
		case k.Resumable():
			k.TakeOut()
			s.breakOff(k)
		default:
			s.fate.fail(noRank, fmt.Errorf("lane %d: %w", l.index, err))
		}
	}
	return nil
}

// Step is one round: take completions, fold what is complete, post answers and receives. It reports whether it did anything.
// An error means that a completion queue is lost and no other can do its work: the lane's jobs have failed with it. The
// simulation calls it directly.
func (l *Lane) Step() (bool, error) {
	if l.broken {
		l.recover()
	}
	n, err := l.poll()
	if err != nil {
		err = fmt.Errorf("lane %d: %w", l.index, err)
		for _, s := range l.shares {
			s.fate.fail(noRank, err)
		}
		return false, err
	}
	attention := l.attention.Load()
	if n == 0 && len(l.busy) == 0 && !attention {
		return false, nil
	}
	l.stamp = l.now()
	for i := range l.wc[:n] {
		l.complete(&l.wc[i])
	}
	if attention {
		l.attention.Store(false)
		l.runCommands()
		for _, s := range l.shares {
			if s.fate.failure.Load() != nil {
				s.end()
			}
		}
	}
	worked := n > 0 || attention
	for i := 0; i < len(l.busy); {
		s := l.busy[i]
		worked = s.advance() || worked
		if s.machine.Waiting() {
			i++
			continue
		}
		s.listed = false
		l.busy[i] = l.busy[len(l.busy)-1]
		l.busy[len(l.busy)-1] = nil
		l.busy = l.busy[:len(l.busy)-1]
	}
	l.flush()
	if worked {
		l.local.Rounds++
	}
	if l.stamp-l.last > int64(time.Millisecond) {
		l.publish()
	}
	return worked, nil
}

// complete dispatches one completion.
func (l *Lane) complete(wc *verbs.WC) {
	id := session.Owner(wc.WRID)
	if id.Number >= len(l.seats) || l.seats[id.Number].link == nil || l.seats[id.Number].link.ID() != id {
		return // of a connection that was closed meanwhile
	}
	s, k := l.seats[id.Number].share, l.seats[id.Number].link
	sends, isSend := session.IsSend(wc.WRID)
	ok := wc.Status == verbs.WCSuccess
	if !isSend {
		k.Completed(ok)
	}
	switch {
	case !ok:
		s.failed(k, wc.Status)
	case isSend:
		s.sent(k, sends)
	default:
		l.touch(k)
		s.receive(k, wc)
	}
	l.list(s)
}

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

// recover looks after broken connections: one goes on when its worker has come, and is lost when it does not come in time.
func (l *Lane) recover() {
	l.broken = false
	for i := range l.seats {
		s, k := l.seats[i].share, l.seats[i].link
		if k == nil || k.State() != session.Broken && k.State() != session.Resuming || s.fate.failure.Load() != nil {
			continue
		}
		up, err := k.Recover()
		switch {
		case err != nil:
			s.refused(k, err)
		case up:
			l.local.Failovers++
			l.list(s)
			continue
		case l.now() > k.deadline:
			s.lose(k, fmt.Errorf("no path to it for %v", time.Duration(s.linkNS)))
			continue
		}
		if k.untold {
			s.tell(k)
		}
		l.broken = true
	}
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

// leave takes a share off the lane, with its connections.
func (l *Lane) leave(s *share) error {
	var errs []error
	for _, k := range s.links {
		if k != nil {
			errs = append(errs, l.drop(k))
		}
	}
	s.machine.End(noRank)
	l.shares = slices.DeleteFunc(l.shares, func(o *share) bool { return o == s })
	l.busy = slices.DeleteFunc(l.busy, func(o *share) bool { return o == s })
	l.mu.Lock()
	delete(l.publishedByRank, s)
	l.mu.Unlock()
	return errors.Join(errs...)
}

// seat gives a connection the place that vacant found.
func (l *Lane) seat(s *share, k *link) {
	n := k.ID().Number
	if n == len(l.seats) {
		l.seats = append(l.seats, seat{})
	}
	l.seats[n] = seat{s, k}
}

// connect makes a connection's queue pair on a NIC, which waits for the worker.
func (l *Lane) connect(s *share, k *link, nic int, pd *verbs.PD, peer []byte) (endpoint []byte, err error) {
	defer l.recount()
	if l.cqLost[nic] {
		return nil, fmt.Errorf("lane %d, NIC %d: %w: connect over another NIC, or start the aggregator anew", l.index, nic, ErrQueueLost)
	}
	return k.Connect(session.Path{NIC: nic, PD: pd, CQ: l.cqs[nic]}, peer)
}

// vacant returns the id of the next connection.
func (l *Lane) vacant() (id session.ID, err error) {
	taken := 0
	id.Number = len(l.seats)
	for i := len(l.seats) - 1; i >= 0; i-- {
		if l.seats[i].link == nil {
			id.Number = i
		} else {
			taken++
		}
	}
	if taken == l.depths.MaxConns {
		return id, fmt.Errorf("lane %d serves %d connections, all its completion queue can hold: %w", l.index, taken, ErrFull)
	}
	l.gen++
	id.Gen = l.gen & session.GenMask
	return id, nil
}

// drop takes a connection off the lane.
func (l *Lane) drop(k *link) error {
	n := k.ID().Number
	if n >= len(l.seats) || l.seats[n].link != k {
		return nil
	}
	k.Close()
	l.rung += k.Doorbells
	l.seats[n] = seat{}
	l.dirty = slices.DeleteFunc(l.dirty, func(o *link) bool { return o == k })
	defer l.recount()
	return k.Disconnect()
}

func (l *Lane) stop() {
	l.stopping.Store(true)
	l.notify()
	<-l.done
}

func (l *Lane) close() error {
	var errs []error
	for _, cq := range l.cqs {
		errs = append(errs, cq.Close())
	}
	return errors.Join(errs...)
}

// Audit checks what must hold in a lane between two rounds, for tests and the simulation: every slot, fold, result buffer and
// send-queue entry is accounted for once. It names the first thing that does not hold. On the lane's goroutine.
func (l *Lane) Audit() error {
	for _, s := range l.shares {
		if err := s.audit(); err != nil {
			return fmt.Errorf("lane %d: job %q: %w", l.index, s.name, err)
		}
		if s.machine.Waiting() && !s.listed {
			return fmt.Errorf("lane %d: job %q: something waits and the lane does not know", l.index, s.name)
		}
	}
	return nil
}
