package aggregate

import (
	"fmt"

	"github.com/rackweave/rackweave/aggregate/reduce"
	"github.com/rackweave/rackweave/cgo/kernel"
	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/hierarchy"
	"github.com/rackweave/rackweave/verbs"
)

// handUp makes this rack's sum of a chunk, or waits for a buffer.
func (s *share) handUp(act reduce.Action) {
	a := s.above
	if len(a.pending) > 0 || len(a.sums.free) == 0 {
		a.pending = append(a.pending, act)
		return
	}
	s.sumUp(&act)
}

func (s *share) sumUp(act *reduce.Action) {
	a, c := s.above, &s.store.chunks[act.Index]
	b := a.sums.take(s.stamp)
	a.buffer[act.Index] = b
	init := act.Op == chunk.OpBroadcast
	n := note{resultAddr: a.sums.result(b), hyperSum: s.machine.HyperSum(act.Index)}
	wire := uint8(s.store.tensors[c.tensor].wire)
	switch {
	case !init:
		src := s.src[:len(s.links)]
		for rank := range src {
			src[rank] = s.machine.Sources(act, rank).Payload
		}
		a.one[0] = a.sums.sum(b)
		kernel.SumTo(s.isa, a.one[:], kernel.F32, src, wire, uint64(c.elems), false, false)
	case a.cfg.root() >= 0:
		kernel.Convert(s.isa, a.sums.sum(b), wire, s.machine.Sources(act, a.cfg.root()).Payload, wire, uint64(c.elems), false)
		n.flags |= noteValues
	}
	n.write(a.sums.sum(b) + s.sumBytes(c, init))
	a.reducer.Ready(act.Index, init)
	s.carryAbove()
}

// sumBytes is the length of a chunk's sum, or of its initial values.
func (s *share) sumBytes(c *storedChunk, init bool) uint64 {
	if init {
		return uint64(s.store.wireBytes(c))
	}
	return uint64(c.elems) * 4
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
			s.notice(act, noticeRequest)
		case hierarchy.SendRecall:
			s.notice(act, noticeRecall)
		case hierarchy.SendNACK:
			s.notice(act, noticeNACK)
		case hierarchy.SendTaken:
			s.notice(act, noticeTaken)
		case hierarchy.Follow:
			a.wanted = append(a.wanted, act.Index)
		case hierarchy.Discard:
			a.sums.release(a.buffer[act.Index])
			a.buffer[act.Index] = noResult
			a.recalled = append(a.recalled, act.Index)
		case hierarchy.Return:
			b := a.buffer[act.Index]
			a.result[act.Index] = b
			a.sums.hold(b, len(a.reducer.Route(act.Index).Children))
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
	compare := !act.Init && s.store.mode == Eager
	own := s.machine.HyperSum(act.Index)
	for _, rack := range a.reducer.Route(act.Index).Children {
		n := readNote(s.sumOf(rack, act.Index) + s.sumBytes(c, act.Init))
		*a.reply(a.buffer[act.Index], rack) = n.resultAddr
		if compare && n.hyperSum != own {
			s.fate.fail(noRank, fmt.Errorf("%w: the workers of %s sent other hyper-parameters for tensor %q than those of %s: all must send the same",
				ErrProtocol, a.name(rack), s.store.tensors[c.tensor].name, a.name(a.cfg.Rack)))
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
	if !act.Init {
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
	if act.Init {
		at := s.values(act.Index)
		if at == 0 {
			s.fate.fail(noRank, fmt.Errorf("%w: a broadcast of tensor %q without its root's values", ErrProtocol,
				s.store.tensors[c.tensor].name))
			return
		}
		s.outs[0] = result
		s.broadcast(&s.store, c, at, s.outs[:1], false)
		return
	}
	in := s.inputs(act.Index)
	s.outs[0] = result
	if s.store.mode == Aggregate {
		s.sum(&s.store, c, in, kernel.F32, s.outs[:1], false)
	} else {
		s.step(&s.store, c, in, kernel.F32, s.outs[:1], false)
	}
}

// deliver takes a chunk's result for this rack's workers.
func (s *share) deliver(act *reduce.Action, c *storedChunk, outs []uint64, stream bool) {
	a := s.above
	a.one[0] = a.sums.result(a.buffer[act.Index])
	wire := uint8(s.store.tensors[c.tensor].wire)
	if c.addr != 0 && int(c.owner) != a.cfg.Rack {
		kernel.Convert(s.isa, c.addr, kernel.F32, a.one[0], wire, uint64(c.elems), false)
	}
	if len(outs) > 0 {
		kernel.SumTo(s.isa, outs, wire, a.one[:], wire, uint64(c.elems), false, stream)
	}
}

// delivered takes note that the workers have been given a chunk's result.
func (s *share) delivered(index uint32) {
	a := s.above
	a.sums.release(a.buffer[index])
	a.buffer[index] = noResult
}

// sendSum sends this rack's sum to the chunk's parent.
func (s *share) sendSum(act *hierarchy.Action) {
	a, c := s.above, &s.store.chunks[act.Index]
	k := a.links[act.Peer]
	op := opSum
	if act.Init {
		op = opInit
	}
	b := a.buffer[act.Index]
	s.touch(k)
	wr := k.Put(chunk.Pack(op, act.Epoch, act.Index), noResult)
	wr.LAddr, wr.LKey = a.sums.sum(b), a.sums.region.mrs[max(k.NIC(), 0)].LKey
	wr.RAddr, wr.RKey = k.replyAddr+uint64(act.Slot)*a.slotBytes, k.replyRKey
	wr.Length = uint32(s.sumBytes(c, act.Init)) + noteBytes
	s.counted(k, wr)
}

// sendResult sends a chunk's result to a rack whose sum is part of it.
func (s *share) sendResult(act *hierarchy.Action) {
	a, c := s.above, &s.store.chunks[act.Index]
	k := a.links[act.Peer]
	op := opResult
	if act.Init {
		op = opInitResult
	}
	b := a.result[act.Index]
	s.touch(k)
	wr := k.Put(chunk.Pack(op, act.Epoch, act.Index), b)
	wr.LAddr, wr.LKey = a.sums.result(b), a.sums.region.mrs[max(k.NIC(), 0)].LKey
	wr.RAddr, wr.RKey = *a.reply(b, act.Peer), k.resultRKey
	wr.Length = uint32(s.store.wireBytes(c))
	s.counted(k, wr)
}

// notice sends word of a chunk to another rack, without a payload.
func (s *share) notice(act *hierarchy.Action, what uint8) {
	k := s.above.links[act.Peer]
	s.touch(k)
	k.Put(chunk.Pack(chunk.OpNotice, what, act.Index), noResult)
}

func (s *share) counted(k *link, wr *verbs.SendWR) {
	k.counters.SentBytes += uint64(wr.Length)
	s.local.AboveSentBytes += uint64(wr.Length)
}

// receiveAbove handles a message of another rack's aggregator.
func (s *share) receiveAbove(k *link, wc *verbs.WC) {
	a := s.above
	op, epoch, index := chunk.Unpack(wc.Imm)
	k.counters.RecvBytes += uint64(wc.ByteLen)
	s.local.AboveRecvBytes += uint64(wc.ByteLen)
	if op == chunk.OpAbort {
		s.peerEnded(k, epoch, index)
		return
	}
	if int(index) >= len(s.store.chunks) {
		s.peerViolates(k, "sent chunk %d of lane %d, which has %d", index, s.lane, len(s.store.chunks))
		return
	}
	if op == chunk.OpNotice {
		s.noticed(k, epoch, index)
		return
	}
	c := &s.store.chunks[index]
	init := op == opInit || op == opInitResult
	expect := uint64(s.store.wireBytes(c))
	if op == opSum || op == opInit {
		expect = s.sumBytes(c, init) + noteBytes
	}
	if uint64(wc.ByteLen) != expect {
		s.peerViolates(k, "sent %d bytes with %v of chunk %d of lane %d, expected %d", wc.ByteLen, op, index, s.lane, expect)
		return
	}
	switch op {
	case opSum, opInit:
		a.reducer.Partial(k.rank, index, epoch, init)
	case opResult, opInitResult:
		a.reducer.Result(k.rank, index, epoch, init)
	default:
		s.peerViolates(k, "sent operation %v", op)
		return
	}
	k.counters.Chunks++
	s.carryAbove()
}

// noticed handles a notice of another rack's.
func (s *share) noticed(k *link, what uint8, index uint32) {
	a := s.above
	switch what {
	case noticeRequest:
		a.reducer.Requested(k.rank, index)
	case noticeRecall:
		a.reducer.Recall(k.rank, index)
	case noticeNACK:
		a.reducer.NACKed(k.rank, index)
	case noticeTaken:
		a.reducer.Taken(k.rank, index)
	default:
		s.peerViolates(k, "sent notice %d", what)
		return
	}
	s.carryAbove()
}

func (s *share) peerViolates(k *link, format string, args ...any) {
	s.local.Dropped++
	s.fate.fail(noRank, fmt.Errorf("%w: %s %w", hierarchy.ErrProtocol, s.above.name(k.rank), fmt.Errorf(format, args...)))
}

// peerEnded takes note that the job has ended in another rack.
func (s *share) peerEnded(k *link, how uint8, blame uint32) {
	a := s.above
	a.left[k.rank] = true
	if how == peerLeft {
		a.someLeft = true
		return
	}
	err := fmt.Errorf("the job failed in %s: see its aggregator", a.name(k.rank))
	if blame != chunk.IndexMask {
		err = fmt.Errorf("the job failed in %s: worker %d caused it", a.name(k.rank), blame)
	}
	s.fate.fail(noRank, err)
}

// sentAbove takes note that n messages to another rack have arrived.
func (s *share) sentAbove(k *link, n int) {
	for range n {
		if b := k.Sent(); b != noResult {
			s.above.sums.release(b)
		}
	}
	s.above.reducer.Sent(k.rank, n)
	s.carryAbove()
}

// sumWaiting makes sums that waited for a buffer, and reports whether it did.
func (s *share) sumWaiting() (worked bool) {
	a := s.above
	for len(a.pending) > 0 && len(a.sums.free) > 0 && s.machine.State() == reduce.Running {
		act := a.pending[0]
		a.pending = a.pending[:copy(a.pending, a.pending[1:])]
		s.sumUp(&act)
		worked = true
	}
	return worked
}

// missLeft fails the job when a chunk waits for racks whose workers have left.
func (s *share) missLeft() {
	a := s.above
	if a.someLeft && s.fate.failure.Load() == nil && a.sums.oldest() < s.stamp-int64(leftGrace) {
		var names []string
		for rack, left := range a.left {
			if left {
				names = append(names, a.name(rack))
			}
		}
		s.fate.fail(noRank, fmt.Errorf("the workers of %v have left the job, and others wait for their gradients", names))
	}
}

// tellPeers tells the other racks that the job has ended here.
func (s *share) tellPeers(how uint8, blame uint32) {
	s.above.told = true
	for _, k := range s.above.links {
		if k != nil && k.QP() != nil && k.QP().State() == verbs.StateRTS && k.Held() < k.Depth() && !s.above.left[k.rank] {
			s.touch(k)
			k.Put(chunk.Pack(chunk.OpAbort, how, blame), noResult)
		}
	}
}

// flushed reports whether all that the other racks are sent has arrived, or can not; told: also how the job has ended.
func (s *share) flushed(told bool) bool {
	if told && !s.above.told {
		return false
	}
	for rack, k := range s.above.links {
		if k != nil && k.QP() != nil && k.QP().State() == verbs.StateRTS && (k.Held() > 0 || s.above.reducer.Owes(rack)) {
			return false
		}
	}
	return true
}
