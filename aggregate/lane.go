package aggregate

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/rackweave/rackweave/cgo/kernel"
	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/numa"
	"github.com/rackweave/rackweave/verbs"
)

// pollBatch is how many completions a round takes: few enough that their chunks' results stay in the core's cache until they
// are posted.
const pollBatch = 16

// Work request ids: a send's top bit is set and its low 32 bits count the work requests it completes; below the top bit are
// the connection's generation (15 bits) and its number in the lane (16 bits).
const (
	sendTag   = 1 << 63
	connShift = 32
	connMask  = 0xffff
	genShift  = 48
	genMask   = 0x7fff
)

// ErrClosed is returned for work on a closed lane, job or engine.
var ErrClosed = errors.New("closed")

// LaneConfig places a lane.
type LaneConfig struct {
	Device *verbs.Device
	NIC    int // index of the device's NIC in the plan
	CPU    int // -1: not pinned
	Node   int // NUMA node of its memory; -1: any
}

// Lane is one core's loop: its completion queue, its connections, its shares of the jobs.
type Lane struct {
	cfg    LaneConfig
	index  int
	attr   verbs.Attr
	home   int         // the NIC it is for, of the engine's
	cqs    []*verbs.CQ // by NIC; those of others are polled only while connections are there
	lost   []bool      // by NIC: its queue is (resume.go)
	guests []int       // by NIC: connections there
	depths Depths
	isa    kernel.ISA
	spin   int
	manual bool
	now    func() int64 // ns

	conns     []*conn // by the number in their work request ids
	connGen   uint64
	connCount int
	broken    int // connections that want mending (resume.go)
	turn      int // of the NICs' queues, see poll
	shares    []*share
	busy      []*share // shares with folds ready or a commit under way
	dirty     []*conn  // connections with answers to post or receives to replenish

	wc     [pollBatch]verbs.WC
	update kernel.Update      // the arguments of the update under way
	src    [MaxWorkers]uint64 // and its sources
	local  Counters
	record [chunk.RecordBytes]byte
	stamp  int64 // ns, read once per round
	sample int
	idle   int
	last   int64 // when counters were published

	mu              sync.Mutex
	commands        []func()
	shared          Counters
	publishedGuests []int
	attention       atomic.Bool // commands wait, or a job failed
	stopping        atomic.Bool
	done            chan struct{}
	err             error // why the loop ended, after done
}

// MaxWorkers is the most workers a job can have.
const MaxWorkers = 1024

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
		cfg: cfg, index: index, attr: attr, depths: d, isa: isa, spin: engine.Spin, now: engine.Now, manual: engine.Manual,
		home: slices.Index(nics, cfg.Device), lost: make([]bool, len(nics)),
		guests: make([]int, len(nics)), publishedGuests: make([]int, len(nics)), done: make(chan struct{}),
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

// Counters returns what the lane has published of its work; a manual lane publishes when asked.
func (l *Lane) Counters() Counters {
	if l.manual {
		l.publish()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.shared
}

// Config returns where the lane runs.
func (l *Lane) Config() LaneConfig { return l.cfg }

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
func (l *Lane) wake() { l.cqs[l.home].Wake() }

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
	limit := 100 * time.Millisecond
	if l.Relieve() {
		limit = time.Millisecond
	}
	if l.away() || l.broken > 0 {
		limit = awayNap
	}
	l.publish()
	if l.lost[l.home] {
		time.Sleep(awayNap) // it would wake at once, for ever
		return
	}
	if l.cqs[l.home].Arm(1) != nil {
		return
	}
	if worked, _ := l.Step(); worked {
		return
	}
	l.local.Sleeps++
	l.cqs[l.home].Wait(limit)
}

// away reports whether a connection is on another NIC than the lane's own.
func (l *Lane) away() bool {
	for nic, n := range l.guests {
		if n > 0 && nic != l.home {
			return true
		}
	}
	return false
}

// poll takes completions. Where connections are on several NICs, none of the queues may keep the others waiting.
func (l *Lane) poll() (n int, err error) {
	if !l.away() {
		return l.take(l.home, l.wc[:])
	}
	l.turn++
	for i := 0; i < len(l.cqs) && n < len(l.wc) && err == nil; i++ {
		if nic := (l.turn + i) % len(l.cqs); l.guests[nic] > 0 {
			var more int
			more, err = l.take(nic, l.wc[n:])
			n += more
		}
	}
	return n, err
}

// take takes completions of one NIC's queue.
func (l *Lane) take(nic int, into []verbs.WC) (int, error) {
	if l.lost[nic] {
		return 0, nil
	}
	n, err := l.cqs[nic].Poll(into)
	if err != nil {
		return 0, l.lose(nic, err)
	}
	return n, nil
}

// Step is one round: take completions, fold what is complete, post answers and receives. It reports whether it did anything.
// An error means that a completion queue is lost and no other can do its work: the lane's jobs have failed with it. The
// simulation calls it directly.
func (l *Lane) Step() (bool, error) {
	if l.broken > 0 {
		l.mend()
	}
	n, err := l.poll()
	if err != nil {
		err = fmt.Errorf("lane %d: %w", l.index, err)
		l.failAll(err)
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
		l.announceFailures()
	}
	worked := n > 0 || attention
	for i := 0; i < len(l.busy); {
		s := l.busy[i]
		worked = s.advance() || worked
		if s.waiting() {
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

// flush posts what the round left to post.
func (l *Lane) flush() {
	for i, c := range l.dirty {
		c.flush()
		l.dirty[i] = nil
	}
	l.dirty = l.dirty[:0]
}

func (l *Lane) publish() {
	l.last = l.stamp
	l.local.SlotsHeld = 0
	for _, c := range l.conns {
		if c != nil {
			l.local.SlotsHeld += uint64(c.held)
		}
	}
	l.mu.Lock()
	l.shared = l.local
	copy(l.publishedGuests, l.guests)
	for _, s := range l.shares {
		for r, c := range s.conns {
			if c != nil {
				s.published[r] = c.counters
			}
		}
	}
	l.mu.Unlock()
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

// complete dispatches one completion.
func (l *Lane) complete(wc *verbs.WC) {
	number := int(wc.WRID >> connShift & connMask)
	if number >= len(l.conns) || l.conns[number] == nil || l.conns[number].gen != wc.WRID>>genShift&genMask {
		return // of a connection that was closed meanwhile
	}
	c := l.conns[number]
	if wc.WRID&sendTag == 0 {
		c.mend.receives--
	}
	switch {
	case wc.Status != verbs.WCSuccess:
		c.lost(wc.Status)
	case wc.WRID&sendTag != 0:
		c.sent(int(uint32(wc.WRID)))
	default:
		c.receive(wc)
	}
}

// list puts a share on the lane's list of those with work left.
func (l *Lane) list(s *share) {
	if !s.listed {
		s.listed = true
		l.busy = append(l.busy, s)
	}
}

// announceFailures ends every failed job's traffic in this lane.
func (l *Lane) announceFailures() {
	for _, s := range l.shares {
		if s.job.failure.Load() != nil && !s.ended {
			s.end()
		}
	}
}

func (l *Lane) failAll(err error) {
	for _, s := range l.shares {
		s.job.fail(noRank, err)
	}
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

// address turns an address that the transport reported into a pointer. The memory is not Go's. Inlined into a copy, it makes
// the compiler of Go 1.26.8 fail ("disjointTypes: one of arguments is not a pointer").
//
//go:noinline
func address(a uint64) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&a)) }
