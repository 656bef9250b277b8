package aggregate

import (
	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/hierarchy"
	"github.com/rackweave/rackweave/verbs"
)

// sumBytes is the length of a chunk's sum, or of its initial values.
func (s *share) sumBytes(c *storedChunk, broadcast bool) uint64 {
	if broadcast {
		return uint64(s.store.wireBytes(c))
	}
	return uint64(c.elems) * uint64(chunk.DType(s.above.cfg.core()).Size())
}

// resultBytes is the length of a chunk's result: that of a two-phase push says only that it is part of the step. What workers
// broadcast crosses in the wire's type.
func (s *share) resultBytes(c *storedChunk, broadcast bool) uint32 {
	switch {
	case s.store.mode == TwoPhase && !broadcast:
		return 0
	case broadcast && !s.above.commit.refreshing:
		return uint32(s.store.wireBytes(c))
	}
	return c.elems * uint32(s.store.tensors[c.tensor].out.Size())
}

// answerBytes is the length of the answer to a rack's sum of a chunk.
func (s *share) answerBytes(c *storedChunk, broadcast, toBuddy bool) uint32 {
	if toBuddy && !broadcast {
		return c.elems * uint32(chunk.F32.Size())
	}
	return s.resultBytes(c, broadcast)
}

// sendSum sends this rack's sum to the chunk's parent.
func (s *share) sendSum(act *hierarchy.Action) {
	a, c := s.above, &s.store.chunks[act.Index]
	op := opSum
	if act.Broadcast {
		op = opBroadcast
	}
	k := a.links[act.Peer]
	wr := verbs.SendWR{
		LAddr: a.sums.sum(a.buffer[act.Index]), Length: uint32(s.sumBytes(c, act.Broadcast)) + noteBytes,
		RAddr: k.replyAddr + uint64(act.Slot)*a.slotBytes, RKey: k.replyRKey,
	}
	if values := s.sumBytes(c, act.Broadcast); act.Broadcast && readNote(wr.LAddr+values).flags&noteValues == 0 {
		wr.LAddr, wr.RAddr, wr.Length = wr.LAddr+values, wr.RAddr+values, noteBytes
	}
	s.sendAbove(k, chunk.Pack(op, act.Epoch, act.Index), noResult, wr)
}

// sendResult sends a chunk's result to a rack whose sum is part of it; to a buddy, the sum of all racks.
func (s *share) sendResult(act *hierarchy.Action) {
	a, c := s.above, &s.store.chunks[act.Index]
	op := opResult
	if act.Broadcast {
		op = opBroadcastResult
	}
	k, b := a.links[act.Peer], a.result[act.Index]
	toBuddy := act.Peer == a.cfg.buddy()
	wr := verbs.SendWR{
		LAddr: a.sums.result(b), Length: s.answerBytes(c, act.Broadcast, toBuddy), RAddr: *a.reply(b, act.Peer), RKey: k.resultRKey,
	}
	if toBuddy && !act.Broadcast {
		wr.LAddr = a.sums.gradient(b)
	}
	s.sendAbove(k, chunk.Pack(op, act.Epoch, act.Index), b, wr)
}

// sendAbove sends what lies among this rack's sums to another rack. hold is the buffer that is held until it has arrived.
func (s *share) sendAbove(k *link, imm uint32, hold int32, what verbs.SendWR) {
	s.touch(k)
	wr := k.Put(imm, hold)
	wr.LAddr, wr.LKey = what.LAddr, s.above.sums.region.mrs[max(k.NIC(), 0)].LKey
	wr.RAddr, wr.RKey, wr.Length = what.RAddr, what.RKey, what.Length
	k.counters.SentBytes += uint64(wr.Length)
	s.local.AboveSentBytes += uint64(wr.Length)
}

// notice sends word of a chunk to another rack, without a payload.
func (s *share) notice(rack int, what uint8, index uint32) {
	k := s.above.links[rack]
	s.touch(k)
	k.Put(chunk.Pack(chunk.OpNotice, what, index), noResult)
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

// flushed reports whether all that the other racks are sent has arrived, or cannot; told: also how the job has ended.
func (s *share) flushed(told bool) bool {
	if told && !s.above.told {
		return false
	}
	if !told && s.quorum != nil && !s.quorum.quiet() {
		return false
	}
	for rack, k := range s.above.links {
		if k != nil && k.QP() != nil && k.QP().State() == verbs.StateRTS && (k.Held() > 0 || s.above.reducer.Owes(rack)) {
			return false
		}
	}
	return true
}
