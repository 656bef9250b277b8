package aggregate

import (
	"slices"

	"github.com/rackweave/rackweave/aggregate/reduce"
	"github.com/rackweave/rackweave/hierarchy"
)

// advanceTurns lets chunks that were held go on, and stands in where there is room. It reports whether it did anything.
func (s *share) advanceTurns() (worked bool) {
	q := s.quorum
	if q.desk != nil {
		worked = s.advanceDesk()
	}
	if q.changed {
		q.changed = false
		held := q.held
		q.held = q.held[:0] // what is held again goes no further than where it was
		for i := range held {
			act := held[i]
			if turn, ok := s.turn(act.Index); !ok || turn.Kind == hierarchy.StandIn {
				q.held = append(q.held, act)
				continue
			}
			worked = true
			q.chunks[act.Index].held = false
			s.handUp(act)
		}
	}
	for len(q.waiting) > 0 && len(s.above.pending) == 0 && s.roomToStandIn() {
		index := q.waiting[0]
		q.waiting = q.waiting[:copy(q.waiting, q.waiting[1:])]
		s.standIn(index)
		worked = true
	}
	return worked
}

// roomToStandIn reports whether one more stand-in may begin. A rack has as many sums above as its workers could have: others that
// follow it need slots for them.
func (s *share) roomToStandIn() bool {
	return len(s.above.sums.free) > 0 && s.quorum.sums < s.quorum.window
}

// standIn hands up zeros for a chunk.
func (s *share) standIn(index uint32) {
	a, c, q := s.above, &s.store.chunks[index], s.quorum
	q.chunks[index].listed, q.chunks[index].standing = false, true
	q.sums++
	b := a.sums.take(s.stamp)
	a.buffer[index] = b
	clear(bytesAt(a.sums.sum(b), int(s.sumBytes(c, false))))
	n := note{resultAddr: a.sums.result(b), hyperSum: s.said(index)}
	n.write(a.sums.sum(b) + s.sumBytes(c, false))
	a.reducer.Ready(index, false)
	s.carryAbove()
}

// followTurn makes room for a chunk that other racks wait for, and reports whether its workers need not be asked.
func (s *share) followTurn(index uint32) bool {
	q, a := s.quorum, s.above
	if i := slices.IndexFunc(a.pending, func(act reduce.Action) bool { return act.Index == index }); i >= 0 {
		act := a.pending[i]
		copy(a.pending[1:], a.pending[:i])
		a.pending[0] = act
		if len(a.sums.free) == 0 {
			a.reducer.Yield()
			s.carryAbove()
		}
		return true
	}
	if q.chunks[index].standing {
		return true
	}
	i := slices.Index(q.waiting, index)
	if i < 0 {
		return false
	}
	if !s.roomToStandIn() {
		a.reducer.Yield()
		s.carryAbove()
		i = slices.Index(q.waiting, index)
	}
	if s.roomToStandIn() {
		q.waiting = slices.Delete(q.waiting, i, i+1)
		s.standIn(index)
		return true
	}
	copy(q.waiting[1:], q.waiting[:i])
	q.waiting[0] = index
	return true
}

// giveBackHeld gives the chunk that was held last back to its workers, so that they have room for one that other racks wait for.
// It reports whether there was one.
func (s *share) giveBackHeld() bool {
	q := s.quorum
	if q == nil || len(q.held) == 0 {
		return false
	}
	index := q.held[len(q.held)-1].Index
	q.held = q.held[:len(q.held)-1]
	q.chunks[index].held = false
	s.machine.Recalled(s.stamp, index)
	s.carryOut()
	return true
}
