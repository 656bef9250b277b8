package aggregate

import (
	"fmt"

	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/verbs"
)

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
	if s.hearDesk(k, wc) {
		return
	}
	if op == opNorms || op == opTrust || op == chunk.OpNotice && epoch == noticeHeard {
		s.hearNorms(k, wc)
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
	broadcast := op == opBroadcast || op == opBroadcastResult
	expect := s.answerBytes(c, broadcast, s.mirrored(c))
	if op == opSum || op == opBroadcast {
		expect = uint32(s.sumBytes(c, broadcast)) + noteBytes
	}
	if wc.ByteLen != expect && (op != opBroadcast || wc.ByteLen != noteBytes) {
		s.peerViolates(k, "sent %d bytes with %v of chunk %d of lane %d, expected %d", wc.ByteLen, op, index, s.lane, expect)
		return
	}
	switch op {
	case opSum, opBroadcast:
		a.reducer.Partial(k.rank, index, epoch, broadcast)
	case opResult, opBroadcastResult:
		a.reducer.Result(k.rank, index, epoch, broadcast)
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

// peerEnded takes note that the job has ended in another rack.
func (s *share) peerEnded(k *link, how uint8, blame uint32) {
	a := s.above
	a.left[k.rank] = true
	if how == peerLeft {
		a.someLeft = true
		return
	}
	err := &FailedElsewhere{Rack: a.cfg.Names[k.rank], Worker: noRank}
	if blame != chunk.IndexMask {
		err.Worker = int(blame)
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
	if s.above.told {
		return // how the job has ended was among them, which the reducer does not count
	}
	s.above.reducer.Sent(k.rank, n)
	s.carryAbove()
}

// missLeft fails the job when a chunk waits for racks whose workers have left.
func (s *share) missLeft() {
	a := s.above
	if a.overdue(s.stamp) && s.fate.failure.Load() == nil {
		s.fate.fail(noRank, fmt.Errorf("the racks have not agreed on another shape within %v: see the first rack's log", HoldPatience))
	}
	if a.someLeft && s.fate.failure.Load() == nil && min(a.sums.oldest(), a.commit.since()) < s.stamp-int64(leftGrace) {
		var names []string
		for rack, left := range a.left {
			if left {
				names = append(names, a.name(rack))
			}
		}
		s.fate.fail(noRank, fmt.Errorf("the workers of %v have left the job, and others wait for their gradients", names))
	}
}
