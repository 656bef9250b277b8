package aggregate

import (
	"github.com/rackweave/rackweave/aggregate/reduce"
	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/verbs"
)

// receive handles a message of the worker.
func (s *share) receive(k *link, wc *verbs.WC) {
	if s.fate.failure.Load() != nil {
		return
	}
	if k.peer {
		s.receiveAbove(k, wc)
		return
	}
	if s.arrivals.some.Load() {
		s.adopt()
	}
	op, epoch, index := chunk.Unpack(wc.Imm)
	m := &s.message
	*m = reduce.Message{Op: op, Epoch: epoch, Index: index, Bytes: wc.ByteLen}
	if wc.Addr != 0 {
		m.Where = reduce.Where{Payload: wc.Addr, Source: wc.SrcAddr, SourceRKey: wc.SrcRKey, Staged: k.staged(wc.SrcAddr)}
	} else {
		m.Where.Payload = k.slots.addr() + uint64(s.machine.NextSlot(k.rank))*uint64(s.chunkBytes)
	}
	s.local.Messages++
	s.local.RecvBytes += uint64(wc.ByteLen)
	k.counters.RecvBytes += uint64(wc.ByteLen)
	if op == chunk.OpTensor || op == chunk.OpCommit {
		var err error
		if m.HyperSum, err = s.reader.read(m.Where.Payload, m.Bytes); err != nil {
			s.machine.Violate(k.rank, "sent %w", err)
			s.carryOut()
			return
		}
		m.Record = &s.reader.record
	} else if s.trace != nil && op != chunk.OpPull {
		s.trace.put(TraceEvent{At: s.stamp, Kind: TraceArrive, Op: op, Epoch: epoch, Worker: int32(k.rank), Chunk: index})
	}
	s.machine.Receive(s.stamp, k.rank, m)
	s.carryOut()
}

// advance does what waited and now can be done, and reports whether there was any.
func (s *share) advance() bool {
	worked := false
	for s.machine.Advance(s.stamp) {
		s.carryOut()
		worked = true
	}
	if s.machine.AdvanceCommit(s.stamp, s.across.met(s.target)) {
		s.carryOut()
		worked = true
	}
	if s.above != nil {
		worked = s.advanceAbove() || worked
	}
	return worked
}

// advanceAbove gives the workers what has come from above the rack, and sends up what waited.
func (s *share) advanceAbove() (worked bool) {
	worked = s.sumWaiting()
	if s.quorum != nil {
		worked = s.advanceTurns() || worked
	}
	if s.above.commit.refreshing {
		return s.advanceRefresh() || worked
	}
	if s.above.commit.waiting() {
		worked = s.exchangeNorms() || worked
	}
	for _, index := range s.above.returned {
		s.machine.Returned(s.stamp, index)
		s.carryOut()
		worked = true
	}
	s.above.returned = s.above.returned[:0]
	for _, index := range s.above.recalled {
		s.machine.Recalled(s.stamp, index)
		s.carryOut()
		worked = true
	}
	s.above.recalled = s.above.recalled[:0]
	s.follow()
	return worked
}

// follow asks the workers for chunks that other racks wait for, and makes room for them.
func (s *share) follow() {
	for _, index := range s.above.wanted {
		if s.quorum != nil && s.followTurn(index) {
			continue
		}
		stuck := s.machine.Follow(s.stamp, index)
		s.carryOut()
		if stuck && !s.giveBackHeld() {
			s.above.reducer.Yield()
			s.carryAbove()
		}
	}
	s.above.wanted = s.above.wanted[:0]
}

// patience is how many counted ticks pass without a chunk finished above the rack before its own workers are taken for stalled:
// their slots are held while sums are on their way.
const patience = 32

// tickAbove looks for stalls among racks, and among the rack's own workers only if nothing moves above.
func (s *share) tickAbove(counts bool) (stalled bool) {
	r := s.above.reducer
	r.Tick(counts)
	s.carryAbove()
	s.advanceAbove()
	s.missLeft()
	if q := s.quorum; q != nil && q.desk != nil && q.desk.toDo() {
		stalled = true
	}
	if r.Open() > 0 && r.Idle() < patience {
		return true
	}
	stalled = s.machine.Tick(s.stamp, counts) || stalled
	s.carryOut()
	return stalled || r.Open() > 0
}

// waiting reports whether advance may have something to do.
func (s *share) waiting() bool {
	return s.machine.Waiting() || s.above != nil && s.above.waiting() || s.quorum != nil && s.quorum.toDo()
}

// tick looks for a stall and reports whether there is one.
func (s *share) tick(counts bool) bool {
	if s.above != nil {
		return s.tickAbove(counts)
	}
	stalled := s.machine.Tick(s.stamp, counts)
	s.carryOut()
	return stalled
}

// end stops the job's traffic in this lane once the job has failed: the workers that live are told, the rest is ignored.
func (s *share) end() {
	blame := s.fate.failure.Load().Rank
	s.machine.End(blame)
	s.carryOut()
	if s.above != nil && !s.above.told {
		s.tellPeers(peerFailed, s.above.blame(blame))
	}
}

// admit takes a worker's step into a set, its gradients times weight.
func (s *share) admit(rank int, set uint64, weight float64) {
	if k := s.links[rank]; k != nil {
		k.stream.weight = weight
		s.machine.Admit(s.stamp, rank, set)
		s.carryOut()
	}
}

func (s *share) leaveOut(rank int) {
	if s.links[rank] != nil {
		s.machine.LeaveOut(s.stamp, rank)
		s.carryOut()
	}
}

func (s *share) updateSet(u setUpdate) {
	s.update = u
	s.machine.UpdateSet(s.stamp)
	s.carryOut()
}

// letGo answers the commit with which a worker ended its step. next is the standing of the next.
func (s *share) letGo(rank int, answer chunk.TensorRecord, next reduce.Standing) {
	k := s.links[rank]
	if k == nil {
		return
	}
	k.stream.answer = answer
	s.machine.Release(s.stamp, rank, next)
	s.carryOut()
}
