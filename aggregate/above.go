package aggregate

import (
	"fmt"

	"github.com/rackweave/rackweave/aggregate/reduce"
	"github.com/rackweave/rackweave/cgo/kernel"
	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/hierarchy"
)

// handUp makes this rack's sum of a chunk, or waits for a buffer.
func (s *share) handUp(act reduce.Action) {
	a := s.above
	if s.quorum != nil && !s.meets(&act) {
		return
	}
	if len(a.pending) > 0 || len(a.sums.free) == 0 || a.holds(act.Index) {
		a.pending = append(a.pending, act)
		return
	}
	s.sumUp(&act)
}

func (s *share) sumUp(act *reduce.Action) {
	a, c := s.above, &s.store.chunks[act.Index]
	b := a.sums.take(s.stamp)
	a.buffer[act.Index] = b
	broadcast := act.Op == chunk.OpBroadcast
	n := note{resultAddr: s.answerTo(c, b, broadcast), hyperSum: s.said(act.Index)}
	wire := uint8(s.store.tensors[c.tensor].wire)
	switch {
	case !broadcast:
		src := s.src[:len(s.links)]
		for rank := range src {
			src[rank] = s.machine.Sources(act, rank).Payload
		}
		if s.store.outer != nil {
			s.stepAlone(&s.store, c, src, a.sums.sum(b), s.rackWeight(act.Index))
			break
		}
		a.one[0] = a.sums.sum(b)
		kernel.SumTo(s.isa, a.one[:], a.cfg.core(), src, wire, uint64(c.elems), false, false)
	case a.cfg.root() >= 0:
		kernel.Convert(s.isa, a.sums.sum(b), wire, s.machine.Sources(act, a.cfg.root()).Payload, wire, uint64(c.elems), false)
		n.flags |= noteValues
	}
	n.write(a.sums.sum(b) + s.sumBytes(c, broadcast))
	if s.quorum != nil && !broadcast {
		s.quorum.sums++
	}
	a.reducer.Ready(act.Index, broadcast)
	s.carryAbove()
}

// carryAbove does what the reducer's last event asked for.
func (s *share) carryAbove() {
	a := s.above
	actions := a.reducer.Actions()
	for i := range actions {
		act := &actions[i]
		switch act.Kind {
		case hierarchy.Combine:
			if s.readNotes(act) {
				s.combine(act)
			}
		case hierarchy.Finish:
			if s.readNotes(act) {
				s.finishAbove(act)
			}
		case hierarchy.SendPartial:
			s.sendSum(act)
		case hierarchy.SendResult:
			s.sendResult(act)
		case hierarchy.SendRequest:
			s.notice(act.Peer, noticeRequest, act.Index)
		case hierarchy.SendRecall:
			s.notice(act.Peer, noticeRecall, act.Index)
		case hierarchy.SendNACK:
			s.notice(act.Peer, noticeNACK, act.Index)
		case hierarchy.SendTaken:
			s.notice(act.Peer, noticeTaken, act.Index)
		case hierarchy.Follow:
			a.wanted = append(a.wanted, act.Index)
		case hierarchy.Discard:
			a.sums.release(a.buffer[act.Index])
			a.buffer[act.Index] = noResult
			if s.quorum != nil && s.standInRecalled(act.Index) {
				continue
			}
			a.recalled = append(a.recalled, act.Index)
		case hierarchy.Return:
			b := a.buffer[act.Index]
			a.result[act.Index] = b
			a.sums.hold(b, len(a.reducer.Route(act.Index).Children))
			if s.quorum != nil && !act.Broadcast && s.stoodIn(act.Index) {
				continue
			}
			a.returned = append(a.returned, act.Index)
		case hierarchy.Violate:
			s.local.Dropped++
			s.fate.fail(noRank, fmt.Errorf("%w (%s)", act.Err, a.name(act.Peer)))
		}
		if s.fate.failure.Load() != nil {
			return
		}
	}
}

// sumOf is where an input of a chunk that was gathered lies.
func (s *share) sumOf(rack int, index uint32) uint64 {
	a := s.above
	if rack == a.cfg.Rack {
		return a.sums.sum(a.buffer[index])
	}
	return a.links[rack].slots.addr() + uint64(a.reducer.Slot(rack))*a.slotBytes
}

// readNotes takes note of where the results of a gathered chunk go, and checks that all racks' workers sent the same
// hyper-parameters.
func (s *share) readNotes(act *hierarchy.Action) bool {
	a, c := s.above, &s.store.chunks[act.Index]
	compare := !act.Broadcast && s.store.mode == Eager
	own := s.said(act.Index)
	for _, rack := range a.reducer.Route(act.Index).Children {
		n := readNote(s.sumOf(rack, act.Index) + s.sumBytes(c, act.Broadcast))
		*a.reply(a.buffer[act.Index], rack) = n.resultAddr
		if compare && n.hyperSum != own {
			s.fate.fail(noRank, s.differ(rack, c))
			return false
		}
	}
	return true
}

// inputs lists where the sums of a gathered chunk lie, in order; of groups of several, where their sum lies, which it makes.
func (s *share) inputs(index uint32) []uint64 {
	a, c := s.above, &s.store.chunks[index]
	groups := a.reducer.Route(index).Groups
	a.folded = a.folded[:0]
	for _, g := range groups {
		a.src = a.src[:0]
		for _, rack := range g {
			a.src = append(a.src, s.sumOf(rack, index))
		}
		if len(groups) == 1 {
			return a.src
		}
		if len(g) > 1 {
			a.one[0] = a.src[0]
			kernel.SumTo(s.isa, a.one[:], kernel.F32, a.src, kernel.F32, uint64(c.elems), false, false)
		}
		a.folded = append(a.folded, a.src[0])
	}
	return a.folded
}

// values finds the initial values among the inputs of a gathered chunk; 0: none of these racks has the root.
func (s *share) values(index uint32) uint64 {
	a, c := s.above, &s.store.chunks[index]
	for _, g := range a.reducer.Route(index).Groups {
		for _, rack := range g {
			if at := s.sumOf(rack, index); readNote(at+s.sumBytes(c, true)).flags&noteValues != 0 {
				return at
			}
		}
	}
	return 0
}

// combine adds the children's sums to this rack's.
func (s *share) combine(act *hierarchy.Action) {
	a, c := s.above, &s.store.chunks[act.Index]
	own := s.sumOf(a.cfg.Rack, act.Index)
	if !act.Broadcast {
		in := s.inputs(act.Index)
		a.one[0] = own
		kernel.SumTo(s.isa, a.one[:], kernel.F32, in, kernel.F32, uint64(c.elems), false, false)
		return
	}
	at := s.values(act.Index)
	if at == 0 || at == own {
		return
	}
	wire := uint8(s.store.tensors[c.tensor].wire)
	kernel.Convert(s.isa, own, wire, at, wire, uint64(c.elems), false)
	n := note{resultAddr: a.sums.result(a.buffer[act.Index]), flags: noteValues}
	n.write(own + s.sumBytes(c, true))
}

// finishAbove makes the result of a chunk that this rack owns.
func (s *share) finishAbove(act *hierarchy.Action) {
	a, c := s.above, &s.store.chunks[act.Index]
	result := a.sums.result(a.buffer[act.Index])
	if act.Broadcast {
		if a.commit.refreshing {
			kernel.Convert(s.isa, result, uint8(s.store.tensors[c.tensor].out), c.addr, kernel.F32, uint64(c.elems), false)
			return
		}
		at := s.values(act.Index)
		if at == 0 {
			s.fate.fail(noRank, fmt.Errorf("%w: a broadcast of tensor %q without its root's values", ErrProtocol,
				s.store.tensors[c.tensor].name))
			return
		}
		s.remember(c)
		s.outs[0] = result
		s.broadcast(&s.store, c, at, s.outs[:1], false)
		if s.store.outer != nil {
			s.begin(&s.store, c)
		}
		return
	}
	in, core := s.inputs(act.Index), a.cfg.core()
	s.outs[0] = result
	switch {
	case s.store.outer != nil:
		s.stepOuter(&s.store, c, in, result, s.outerStep(act.Index))
	case s.store.mode == Aggregate:
		s.sum(&s.store, c, in, core, s.outs[:1], false)
	case s.store.mode == TwoPhase:
		if c.dirty && len(in) > 1 { // the racks' sums come first, as in a chain
			a.one[0] = s.store.scratch
			kernel.SumTo(s.isa, a.one[:], kernel.F32, in, core, uint64(c.elems), false, false)
			in, core = a.one[:], kernel.F32
		}
		s.accumulate(&s.store, c, in, core, (s.machine.CommitEpoch()+1)&1)
	default:
		if c.history != nil {
			in, core = s.gradient(act.Index, c, in), kernel.F32
			s.remember(c)
		}
		s.step(&s.store, c, in, core, s.outs[:1], false)
	}
}

// deliver takes a chunk's result for this rack's workers.
func (s *share) deliver(act *reduce.Action, c *storedChunk, src, outs []uint64, stream bool) {
	a := s.above
	if s.quorum != nil && s.quorum.chunks[act.Index].aside {
		s.goOn(act.Index, c, src, outs, stream)
		return
	}
	broadcast := s.machine.Sources(act, 0).Op == chunk.OpBroadcast
	if s.store.mode == TwoPhase && !broadcast {
		c.stale = true
		return
	}
	a.one[0] = a.sums.result(a.buffer[act.Index])
	wire := uint8(s.store.tensors[c.tensor].wire)
	kind := uint8(s.store.tensors[c.tensor].out)
	if broadcast {
		kind = wire
	}
	switch {
	case s.store.outer != nil:
		s.meet(&s.store, c, a.one[0])
		if s.quorum != nil && !broadcast {
			s.taken(act.Index)
		}
	case s.mirrored(c) && !broadcast:
		s.mirror(act.Index, c)
	case c.addr != 0 && int(c.owner) != a.cfg.Rack:
		s.remember(c)
		kernel.Convert(s.isa, c.addr, kernel.F32, a.one[0], kind, uint64(c.elems), false)
	}
	if len(outs) > 0 {
		kernel.SumTo(s.isa, outs, wire, a.one[:], kind, uint64(c.elems), false, stream)
	}
}

// delivered takes note that the workers have been given a chunk's result.
func (s *share) delivered(index uint32) {
	a := s.above
	if a.buffer[index] == noResult {
		return // it went on without the other racks
	}
	a.sums.release(a.buffer[index])
	a.buffer[index] = noResult
}

// sumWaiting makes sums that waited for a buffer, or for the end of a hold, and reports whether it did.
func (s *share) sumWaiting() (worked bool) {
	a := s.above
	for len(a.pending) > 0 && len(a.sums.free) > 0 && s.machine.State() == reduce.Running && !a.holds(a.pending[0].Index) {
		act := a.pending[0]
		a.pending = a.pending[:copy(a.pending, a.pending[1:])]
		s.sumUp(&act)
		worked = true
	}
	return worked
}
