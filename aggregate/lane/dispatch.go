package lane

import (
	"errors"
	"slices"

	"github.com/rackweave/rackweave/aggregate/reduce"
	"github.com/rackweave/rackweave/aggregate/session"
	"github.com/rackweave/rackweave/verbs"
)

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

const (
	// quantum is the number of bytes that the flow with the most weight may move in a round. Others may move their part of it.
	quantum = 128 << 10
	// messageCost is the cost of a message beside its bytes, in bytes.
	messageCost = 256
	// sortMost bounds the completions that a round takes off the completion queues.
	sortMost = 4096
)

type flows struct {
	l        *Lane
	all      []*Flow
	busy     []*Flow // with pending work
	queued   int     // completions in the flows' queues
	borrowed int     // number of tenants that callers use
	first    int     // index of the flow that is served first in the next round
}

// single reports whether the lane serves one flow only, so that completions need no sorting.
func (s *flows) single() bool { return len(s.all) <= 1 && s.queued == 0 && s.borrowed == 0 }

// sort puts a completion into its flow's queue.
func (s *flows) sort(wc *verbs.WC) {
	if c := s.l.conns.find(wc.WRID); c != nil {
		c.flow.queue.Put(*wc)
		s.queued++
	}
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

// completeNext completes the oldest completion in a flow's queue.
func (l *Lane) completeNext(f *Flow) {
	l.flows.queued--
	wc := f.queue.Take()
	l.complete(&wc)
}

// serve lets every flow with pending work move as many bytes as its weight allows, and reports whether more work can be done at
// once. A flow that moves more than its part of a round owes the rest to the next round.
func (s *flows) serve() (more bool) {
	most := uint64(0)
	for _, f := range s.all {
		if f.due() {
			most = max(most, f.weight)
		} else {
			f.credit = min(f.credit, 0)
		}
	}
	for served := most == 0; !served; {
		for i := range s.all {
			f := s.all[(s.first+i)%len(s.all)]
			if !f.due() {
				continue
			}
			f.credit = min(f.credit+int64(max(quantum*f.weight/most, 1)), quantum)
			if f.credit > 0 {
				served = true
				more = s.serveOne(f) || more
			}
			more = more || f.queue.Len() > 0 || f.credit <= 0
		}
	}
	s.first++
	return more
}

// serveOne lets a flow use its credit, and reports whether it did anything.
func (s *flows) serveOne(f *Flow) (worked bool) {
	l := s.l
	l.serving = f
	before := l.Count.moved()
	if f.listed {
		worked = f.tenant.Advance()
	}
	for f.queue.Len() > 0 && f.credit > int64(l.Count.moved()-before) {
		f.credit -= messageCost
		l.completeNext(f)
		worked = true
	}
	f.credit -= int64(l.Count.moved() - before)
	return worked
}

func (s *flows) forget(f *Flow) {
	is := func(o *Flow) bool { return o == f }
	s.queued -= f.queue.Len()
	f.queue = reduce.Queue[verbs.WC]{}
	s.all = slices.DeleteFunc(s.all, is)
	s.busy = slices.DeleteFunc(s.busy, is)
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
		c.handler.Sent(c, sends)
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
			c.refused(c.Replenish())
			l.Post(c)
		}
	}
	l.dirty = l.dirty[:0]
}

// Post rings a connection's doorbell. It is called on the lane's goroutine.
func (l *Lane) Post(c *Conn) { c.refused(c.Conn.Post()) }

// refused handles the error of a queue pair that accepts no work request, if it is one.
func (c *Conn) refused(err error) {
	if err != nil && c.State == session.Up {
		c.handler.Failed(c, c.Refused(), err)
	}
}

// find returns the connection of a completion, or nil if it was closed meanwhile.
func (t *table) find(wrID uint64) *Conn {
	id := session.Owner(wrID)
	if id.Number >= len(t.all) || t.all[id.Number] == nil || t.all[id.Number].ID != id {
		return nil
	}
	return t.all[id.Number]
}
