package aggregate

import (
	"errors"
	"fmt"

	"github.com/rackweave/rackweave/aggregate/optim"
	"github.com/rackweave/rackweave/aggregate/reduce"
	"github.com/rackweave/rackweave/cgo/kernel"
	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/hierarchy"
)

var errLateTensors = errors.New("racks that need not come to all meetings have met: register all tensors before")

// turn is the one that a chunk of the lane takes next; ok is false while it is not known.
func (s *share) turn(index uint32) (turn hierarchy.Turn, ok bool) {
	return s.quorum.turns.Turn(s.store.outer.Fragment(int(s.store.chunks[index].number)), s.quorum.chunks[index].done)
}

// meets takes a chunk to its meeting, and reports whether it takes part at once. If not, it is held, or given back. Initial values
// need no meeting.
func (s *share) meets(act *reduce.Action) bool {
	q, c := s.quorum, &s.store.chunks[act.Index]
	if act.Op == chunk.OpBroadcast {
		if c.updates > 0 {
			s.fate.fail(noRank, fmt.Errorf("%w: a broadcast of tensor %q between steps, where racks may be at different ones: broadcast first",
				ErrProtocol, s.store.tensors[c.tensor].name))
		}
		return c.updates == 0
	}
	o := s.store.outer
	if q.turns.Forgotten(o.Fragment(int(c.number)), q.chunks[act.Index].done) {
		s.fate.fail(noRank, fmt.Errorf("%w: tensor %q was not pushed while racks met too often to catch up with: push it from the first step on",
			ErrProtocol, s.store.tensors[c.tensor].name))
		return false
	}
	if !c.stepped {
		fragment := o.Fragment(int(c.number))
		s.comeTo(fragment, o.Meetings(int(c.number), c.updates+1))
	}
	turn, ok := s.turn(act.Index)
	switch {
	case ok && turn.Kind == hierarchy.TakePart:
		return true
	case !ok || turn.Kind == hierarchy.StandIn:
		q.chunks[act.Index].held = true
		q.held = append(q.held, *act)
		s.listStandIn(act.Index)
	default:
		q.chunks[act.Index].aside = true
		s.above.returned = append(s.above.returned, act.Index)
	}
	return false
}

// comeTo tells the leader that the rack has come to a fragment's meeting, unless another chunk has.
func (s *share) comeTo(fragment int, meeting uint32) {
	q := s.quorum
	for at := q.come[fragment].Load(); at < meeting; at = q.come[fragment].Load() {
		if !q.come[fragment].CompareAndSwap(at, at+1) {
			continue
		}
		if !q.turns.Over() {
			q.announce(fragment)
		}
	}
}

// hear takes the leader's next words.
func (s *share) hear(words []hierarchy.Word) {
	q := s.quorum
	for _, w := range words {
		if err := q.turns.Hear(w); err != nil {
			s.fate.fail(noRank, err)
			return
		}
		q.begun = true
		if q.desk != nil && q.desk.told != nil {
			q.desk.told(w, q.turns.Held(w.Fragment), q.turns.Weights())
		}
		s.listStandIns(w.Fragment)
	}
	q.changed = true
}

// listStandIns lists the chunks of a fragment whose next turn is a stand-in, and forgets turns that all have taken.
func (s *share) listStandIns(fragment int) {
	q := s.quorum
	least, idle := q.turns.Told(fragment), false
	for i := range q.chunks {
		if s.store.outer.Fragment(int(s.store.chunks[i].number)) != fragment {
			continue
		}
		if !s.trained(uint32(i)) {
			idle = true
			continue
		}
		least = min(least, q.chunks[i].done)
		s.listStandIn(uint32(i))
	}
	q.turns.Taken(fragment, least, idle)
}

// listStandIn lists a chunk if its next turn is a stand-in. Before its workers have pushed it its initial values may be missing.
func (s *share) listStandIn(index uint32) {
	q := s.quorum
	c := &q.chunks[index]
	if turn, ok := s.turn(index); ok && turn.Kind == hierarchy.StandIn && s.trained(index) && !c.standing && !c.listed {
		c.listed = true
		q.waiting = append(q.waiting, index)
	}
}

// trained reports whether the rack's workers have pushed a chunk.
func (s *share) trained(index uint32) bool {
	return s.store.chunks[index].updates > 0 || s.quorum.chunks[index].held
}

// taken takes note that a chunk has taken its turn.
func (s *share) taken(index uint32) {
	c := &s.quorum.chunks[index]
	c.done++
	c.standing, c.aside = false, false
	s.listStandIn(index)
	s.quorum.changed = true
}

// standInRecalled takes note that a sum was given up, and reports whether it was a stand-in, which is handed up again later.
func (s *share) standInRecalled(index uint32) bool {
	q := s.quorum
	q.sums--
	if !q.chunks[index].standing {
		return false
	}
	q.chunks[index].standing = false
	s.listStandIn(index)
	return true
}

// stoodIn takes note of a meeting's result, and reports whether the rack stood in for the chunk. Then the result is kept for when
// its workers come.
func (s *share) stoodIn(index uint32) bool {
	a, c := s.above, &s.store.chunks[index]
	s.quorum.sums--
	if !s.quorum.chunks[index].standing {
		return false
	}
	b := a.buffer[index]
	wire := uint8(s.store.tensors[c.tensor].wire)
	kernel.Convert(s.isa, s.store.start(c), kernel.F32, a.sums.result(b), wire, uint64(c.elems), false)
	a.sums.release(b)
	a.buffer[index] = noResult
	s.taken(index)
	return true
}

// said is what a rack says with a chunk's sum, and all must say alike: their workers' hyper-parameters. Racks that do not come to
// all meetings may have come to different steps: they say which meeting it is of.
func (s *share) said(index uint32) uint32 {
	if s.quorum == nil {
		return s.machine.HyperSum(index)
	}
	turn, _ := s.turn(index)
	return turn.Meeting
}

// rackWeight scales how far a chunk has come for its meeting.
func (s *share) rackWeight(index uint32) optim.Scalars {
	if s.quorum == nil {
		return s.store.outer.weight
	}
	turn, _ := s.turn(index)
	return optim.Derive(optim.Sum, optim.Hyper{Scale: float64(turn.Weight)}, 1)
}

// outerStep is the outer optimizer's in a chunk's meeting.
func (s *share) outerStep(index uint32) optim.Scalars {
	if s.quorum == nil {
		return s.store.outer.step
	}
	turn, _ := s.turn(index)
	rule, h := OuterRule(s.store.outer.Outer, turn.Total)
	return optim.Derive(rule, h, 1)
}

// differ is the error of two racks that say different things with a chunk's sum.
func (s *share) differ(rack int, c *storedChunk) error {
	a, t := s.above, &s.store.tensors[c.tensor]
	if s.quorum != nil {
		return fmt.Errorf("%w: for tensor %q %s and %s hold meetings of different racks", ErrProtocol, t.name, a.name(rack),
			a.name(a.cfg.Rack))
	}
	return fmt.Errorf("%w: the workers of %s sent other hyper-parameters for tensor %q than those of %s: all must send the same",
		ErrProtocol, a.name(rack), t.name, a.name(a.cfg.Rack))
}

// goOn answers a chunk's workers without a meeting: with what their own step makes of it, or with the result that was kept.
func (s *share) goOn(index uint32, c *storedChunk, src, outs []uint64, stream bool) {
	wire := uint8(s.store.tensors[c.tensor].wire)
	if turn, _ := s.turn(index); turn.Kind == hierarchy.GoOn {
		s.step(&s.store, c, src, wire, outs, stream)
	} else {
		s.step(&s.store, c, src, wire, nil, false)
		kernel.Convert(s.isa, c.addr, kernel.F32, s.store.start(c), kernel.F32, uint64(c.elems), false)
		if s.one[0] = c.addr; len(outs) > 0 {
			kernel.SumTo(s.isa, outs, wire, s.one[:], kernel.F32, uint64(c.elems), false, stream)
		}
	}
	s.taken(index)
}
