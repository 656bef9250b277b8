package lane

import (
	"slices"

	"github.com/rackweave/rackweave/aggregate/reduce"
	"github.com/rackweave/rackweave/verbs"
)

// Flow is a tenant's place in a lane.
type Flow struct {
	lane   *Lane
	tenant Tenant
	weight uint64
	credit int64                  // bytes that the flow may move now; if negative, bytes that it owes
	queue  reduce.Queue[verbs.WC] // completions that arrived for the flow

	listed   bool      // on the lane's list of flows with pending work
	borrowed bool      // a caller uses the tenant, and the lane leaves it alone
	parked   []command // wait while the tenant is borrowed
	dead     bool      // the tenant panicked, and its state may be torn
	ticked   int64     // ns, the last tick that counted
}

// Dead reports whether the tenant panicked. It is called on the lane's goroutine.
func (f *Flow) Dead() bool { return f.dead }

// Schedule makes the lane call the tenant's Advance in the next round if the tenant has pending work. It is called on the lane's
// goroutine.
func (f *Flow) Schedule() {
	if !f.listed && f.tenant.Pending() {
		f.listed = true
		f.lane.flows.busy = append(f.lane.flows.busy, f)
	}
}

func (f *Flow) due() bool { return !f.borrowed && (f.queue.Len() > 0 || f.listed) }

const (
	// quantum is the number of bytes that the flow with the most weight may move in a round. Others may move their part of it.
	quantum = 128 << 10
	// messageCost is the cost of a message beside its bytes, in bytes.
	messageCost = 256
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
