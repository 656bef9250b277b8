package lane

import (
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/rackweave/rackweave/aggregate/session"
	"github.com/rackweave/rackweave/numa"
	"github.com/rackweave/rackweave/verbs"
)

const (
	spin      = 64                     // empty rounds before a lane sleeps
	awayNap   = 200 * time.Microsecond // sleep of a lane that polls several queues
	tickEvery = time.Millisecond       // interval between checks of a stalled job while no completion arrives
	longNap   = 100 * time.Millisecond // longest sleep of an idle lane
	sortMost  = 4096                   // largest number of completions that a round deals to several flows
)

// Run runs the lane's loop until Stop. It first sends an error or nil for pinning the thread to its core. After an error it does
// not run.
func (l *Lane) Run(pinned chan<- error) {
	defer close(l.done)
	var err error
	if l.CPU >= 0 {
		if err = numa.Pin(l.CPU); err != nil {
			err = fmt.Errorf("lane %d: %w", l.Index, err)
		}
	}
	if pinned <- err; err != nil {
		return
	}
	debug.SetPanicOnFault(true) // a fault in memory that a worker has unmapped fails its job
	for !l.ending.Load() {
		if err := l.turn(); err != nil {
			l.err = err
			l.ending.Store(true)
		}
	}
	l.commands.runAll()
}

// turn runs one round of the lane's loop and sleeps if the round did nothing. A panic ends the job that the lane was serving. An
// error ends the lane.
func (l *Lane) turn() (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = l.contain(v)
		}
	}()
	worked, err := l.Step()
	if err != nil {
		return err
	}
	if worked {
		l.idle = 0
	} else if l.idle++; l.idle > spin {
		l.sleep()
	}
	return nil
}

// Step runs one round: it takes completions and hands each to its connection's handler, lets flows continue what waited for room,
// and posts answers and receives. It reports whether it did anything. An error means that a completion queue is lost and that no
// other can do its work. The lane's jobs have failed then. The simulation calls Step directly.
func (l *Lane) Step() (bool, error) {
	if l.broken {
		l.recover()
	}
	l.serving = nil
	n, err := l.queues.poll()
	single := l.flows.single()
	if err == nil && !single {
		err = l.queues.sortAll()
	}
	if err != nil {
		err = fmt.Errorf("lane %d: %w", l.Index, err)
		l.failAll(err)
		return false, err
	}
	attention := l.commands.some.Load()
	if n == 0 && len(l.flows.busy) == 0 && !attention && l.flows.queued == 0 {
		return false, nil
	}
	l.Stamp = l.Now()
	if single {
		l.queues.completeAll()
	}
	if attention {
		l.commands.some.Store(false)
		l.commands.runAll()
		for _, f := range l.flows.all {
			if !f.borrowed && f.tenant.Failure() != nil {
				l.serving = f
				f.tenant.End()
			}
		}
	}
	worked := n > 0 || attention
	if !single {
		worked = l.flows.serve() || worked
	}
	for i := 0; i < len(l.flows.busy); {
		f := l.flows.busy[i]
		if single && !f.borrowed { // which a command of this round may have done
			l.serving = f
			worked = f.tenant.Advance() || worked
		}
		if f.borrowed || f.tenant.Pending() {
			i++
			continue
		}
		f.listed = false
		l.flows.busy[i] = l.flows.busy[len(l.flows.busy)-1]
		l.flows.busy[len(l.flows.busy)-1] = nil
		l.flows.busy = l.flows.busy[:len(l.flows.busy)-1]
	}
	l.flush()
	if worked {
		l.Count.Rounds++
	}
	if l.Stamp-l.last > int64(time.Millisecond) {
		l.Publish()
	}
	return worked, nil
}

func (l *Lane) complete(wc *verbs.WC) {
	c := l.conns.find(wc.WRID)
	if c == nil {
		return
	}
	l.serving = c.flow
	sends, isSend := session.IsSend(wc.WRID)
	ok := wc.Status == verbs.WCSuccess
	if !isSend {
		c.Completed(ok)
	}
	switch {
	case !ok && c.State == session.Up:
		c.handler.Failed(c, c.Survives(wc.Status), errors.New(wc.Status.String()))
	case !ok:
	case isSend:
		c.handler.Delivered(c, sends)
	default:
		l.Touch(c)
		c.handler.Receive(c, wc)
	}
	c.flow.Schedule()
}

// Touch puts a connection on the list to flush at the end of the round. It is called on the lane's goroutine.
func (l *Lane) Touch(c *Conn) {
	if !c.dirty {
		c.dirty = true
		l.dirty = append(l.dirty, c)
	}
}

func (l *Lane) flush() {
	for i, c := range l.dirty {
		if c == nil {
			continue // flushed by a round that panicked later
		}
		l.dirty[i], c.dirty = nil, false
		if l.conns.has(c) {
			l.serving = c.flow
			c.postFailed(c.Replenish())
			l.Post(c)
		}
	}
	l.dirty = l.dirty[:0]
}

// Post rings a connection's doorbell. It is called on the lane's goroutine.
func (l *Lane) Post(c *Conn) { c.postFailed(c.Conn.Post()) }

// postFailed handles the error of a queue pair that accepts no work request. If err is nil, it does nothing.
func (c *Conn) postFailed(err error) {
	if err != nil && c.State == session.Up {
		c.handler.Failed(c, c.SurvivesPost(), err)
	}
}

// queues holds a lane's completion queues, one per NIC, and the completions that a round took off them. The lane's own NIC is
// always polled, and others only while connections are on them.
type queues struct {
	l       *Lane
	cqs     []*verbs.CQ
	lost    []bool // by NIC
	on      []int  // connections by NIC
	primary int    // index of the lane's own NIC
	rotate  int    // index of the NIC that is polled first, if several are polled
	wc      [pollBatch]verbs.WC
	next    int // index of the first completion that is not dispatched
	polled  int
}

// away reports whether a connection is on another NIC than the lane's own.
func (q *queues) away() bool {
	for nic, n := range q.on {
		if n > 0 && nic != q.primary {
			return true
		}
	}
	return false
}

// poll takes completions, unless a round that panicked left some. Where connections are on several NICs, it polls them in turn, so
// that no queue keeps the others waiting.
func (q *queues) poll() (n int, err error) {
	if q.next < q.polled {
		return q.polled - q.next, nil
	}
	q.next = 0
	q.polled, err = q.pollAll()
	return q.polled, err
}

func (q *queues) pollAll() (n int, err error) {
	if !q.away() {
		return q.take(q.primary, q.wc[:])
	}
	q.rotate++
	for i := 0; i < len(q.cqs) && n < len(q.wc) && err == nil; i++ {
		if nic := (q.rotate + i) % len(q.cqs); q.on[nic] > 0 {
			var more int
			more, err = q.take(nic, q.wc[n:])
			n += more
		}
	}
	return n, err
}

// take takes completions off one NIC's queue. If the queue is lost, its connections fail over to other NICs where they can.
// Otherwise take returns an error, which ends the lane.
func (q *queues) take(nic int, into []verbs.WC) (int, error) {
	if q.lost[nic] {
		return 0, nil
	}
	n, err := q.cqs[nic].Poll(into)
	if err == nil {
		return n, nil
	}
	if len(q.cqs) == 1 || !q.l.Attr.Has(verbs.DevLink) {
		return 0, err
	}
	q.lost[nic] = true
	for _, c := range q.l.conns.all {
		if c != nil && c.NIC() == nic {
			c.handler.QueueLost(c, err)
		}
	}
	return 0, nil
}

// sortAll sorts the polled completions by flow, and polls for more.
func (q *queues) sortAll() (err error) {
	for taken := 0; ; {
		for q.next < q.polled {
			q.next++
			q.l.flows.sort(&q.wc[q.next-1])
		}
		if taken += q.polled; q.polled < len(q.wc) || taken >= sortMost {
			return nil
		}
		q.next = 0
		if q.polled, err = q.pollAll(); err != nil {
			return err
		}
	}
}

func (q *queues) completeAll() {
	for q.next < q.polled {
		q.next++
		q.l.complete(&q.wc[q.next-1])
	}
}

// sleep waits for the next completion, for at most a millisecond if a job is stalled, and otherwise for at most longNap.
func (l *Lane) sleep() {
	limit := longNap
	if l.Tick() {
		limit = tickEvery
	}
	if l.queues.away() || l.broken {
		limit = awayNap
	}
	l.Publish()
	if l.queues.lost[l.queues.primary] {
		time.Sleep(awayNap) // waiting would return at once, for ever
		return
	}
	if l.queues.cqs[l.queues.primary].Arm(1) != nil {
		return
	}
	if worked, _ := l.Step(); worked {
		return
	}
	l.Count.Sleeps++
	l.queues.cqs[l.queues.primary].Wait(limit)
}

// Tick looks for workers whose orders keep each other waiting, and breaks such a stall. It reports whether a job is stalled, so
// that the lane checks again soon. A lane calls it before it sleeps. The simulation calls it directly.
func (l *Lane) Tick() bool {
	l.Stamp = l.Now()
	stalled := false
	for _, f := range l.flows.all {
		if f.borrowed {
			continue
		}
		l.serving = f
		// Completions wake the lane between ticks. Such ticks do not count, because other threads have not had a processor since.
		counted := l.Manual || l.Stamp-f.ticked >= int64(tickEvery)
		if counted {
			f.ticked = l.Stamp
		}
		stalled = f.tenant.Tick(counted) || stalled
	}
	l.flush()
	return stalled
}

// Stop ends the loop and returns the error that had ended it before, if any.
func (l *Lane) Stop() error {
	l.ending.Store(true)
	l.Notify()
	<-l.done
	return l.err
}
