package aggregate

import (
	"fmt"
	"math"

	"github.com/rackweave/rackweave/aggregate/reduce"
	"github.com/rackweave/rackweave/cgo/kernel"
	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/verbs"
)

// tellNorms begins to tell the other racks the norms of this one's chunks, which a barrier of the lanes waits for.
func (s *share) tellNorms() {
	e := &s.above.commit
	e.op = opNorms
	if s.machine.CommitPhase() == reduce.AwaitTrust {
		e.op = opTrust
	}
	e.active, e.began = true, s.stamp
	e.turn++
	s.machine.CommitRecord().Encode(e.record[:])
	for rack := range e.peers {
		p := &e.peers[rack]
		p.sent, p.all = 0, false
	}
	own := &e.peers[s.above.cfg.Rack]
	own.all, own.done = true, e.turn
	s.target = math.MaxInt64 // the barrier comes when all have been heard
	s.exchangeNorms()
}

// exchangeNorms sends what there is room for, and passes to the lanes' barrier once all racks have told each other everything. It
// reports whether it did anything.
func (s *share) exchangeNorms() (worked bool) {
	a, e := s.above, &s.above.commit
	all := e.active
	for rack := range e.peers {
		p := &e.peers[rack]
		if p.owes && a.reducer.Spare(rack) {
			p.owes, worked = false, true
			s.notice(rack, noticeHeard, 0)
		}
		if e.active && !p.all && !p.full && a.reducer.Spare(rack) {
			worked = true
			s.sendNorms(rack, p)
		}
		all = all && p.all && p.done >= e.turn
	}
	if !all {
		return worked
	}
	e.active = false
	if rack := e.differs(a.cfg.Rack); rack >= 0 {
		s.fate.fail(noRank, fmt.Errorf("%w: the workers of %s commit with other values than those of %s: all must commit with the same",
			ErrProtocol, a.name(rack), a.name(a.cfg.Rack)))
		return true
	}
	s.meetLanes()
	return true
}

// sendNorms tells a rack as many norms as fit into a message.
func (s *share) sendNorms(rack int, p *peerNorms) {
	a, e := s.above, &s.above.commit
	at, size := a.sums.spare(rack), normSize(e.op)
	ours := e.owned[a.cfg.Rack]
	b := bytesAt(at, normBytes)
	n := copy(b, e.record[:])
	from := p.sent
	for ; p.sent < len(ours) && n+size <= len(b); p.sent++ {
		s.store.chunks[ours[p.sent]].norms.write(b[n:], e.op, s.machine.CommitEpoch()&1)
		n += size
	}
	p.full, p.all = true, p.sent == len(ours)
	k := a.links[rack]
	s.sendAbove(k, chunk.Pack(e.op, s.machine.CommitEpoch(), uint32(from)), noResult,
		verbs.SendWR{LAddr: at, Length: uint32(n), RAddr: k.replyAddr + uint64(a.window)*a.slotBytes, RKey: k.replyRKey})
}

// hearNorms takes note of another rack's norms, or that it has taken note of these.
func (s *share) hearNorms(k *link, wc *verbs.WC) {
	a := s.above
	op, epoch, from := chunk.Unpack(wc.Imm)
	p, theirs, size := &a.commit.peers[k.rank], a.commit.owned[k.rank], normSize(op)
	n := (int(wc.ByteLen) - chunk.RecordBytes) / size
	switch {
	case op == chunk.OpNotice:
		p.full = false
	case s.store.mode != TwoPhase:
		s.peerViolates(k, "sent norms in mode %v", s.store.mode)
		return
	case !p.expects(op, epoch, from) || p.owes:
		s.peerViolates(k, "sent norms %d of commit %d by %v in lane %d, after %d of commit %d", from, epoch, op, s.lane, p.heard, p.epoch)
		return
	case int(wc.ByteLen) != chunk.RecordBytes+n*size || wc.ByteLen > normBytes || int(from)+n > len(theirs) ||
		n < 0 || n == 0 && len(theirs) > 0:
		s.peerViolates(k, "sent %d bytes of norms from %d on in lane %d, where it has %d chunks", wc.ByteLen, from, s.lane, len(theirs))
		return
	default:
		b := bytesAt(k.slots.addr()+uint64(a.window)*a.slotBytes, int(wc.ByteLen))
		copy(p.said[(p.done+1)&1][:], b)
		for i, index := range theirs[from : int(from)+n] {
			s.store.chunks[index].norms.read(b[chunk.RecordBytes+i*size:], op, epoch&1)
		}
		p.op, p.epoch, p.heard, p.owes = op, epoch, int(from)+n, true
		if p.open = p.heard < len(theirs); !p.open {
			p.done++
		}
	}
	s.exchangeNorms()
}

// beginRefresh has the owners of the chunks that the commit updated broadcast their parameters.
func (s *share) beginRefresh() {
	e := &s.above.commit
	e.refreshing, e.next = true, 0
	s.advanceRefresh()
}

// advanceRefresh takes what other racks have broadcast, and goes on with more chunks. It reports whether it did anything.
func (s *share) advanceRefresh() (worked bool) {
	a, e := s.above, &s.above.commit
	for _, index := range a.returned {
		c := &s.store.chunks[index]
		if !s.owns(c) {
			kernel.Convert(s.isa, c.addr, kernel.F32, a.sums.result(a.buffer[index]), uint8(s.store.tensors[c.tensor].out),
				uint64(c.elems), false)
		}
		s.delivered(index)
		e.under--
		worked = true
	}
	a.returned = a.returned[:0]
	for e.under < e.most && len(a.sums.free) > 0 && int(e.next) < len(s.store.chunks) {
		index := e.next
		e.next++
		c := &s.store.chunks[index]
		refresh := c.stale && !s.decision.skip
		c.stale = false
		if !refresh {
			continue
		}
		worked = true
		e.under++
		b := a.sums.take(s.stamp)
		a.buffer[index] = b
		n := note{resultAddr: a.sums.result(b)}
		n.write(a.sums.sum(b) + s.sumBytes(c, true))
		a.reducer.Ready(index, true)
		s.carryAbove()
	}
	if e.under > 0 || int(e.next) < len(s.store.chunks) {
		return worked
	}
	e.refreshing = false
	s.machine.Refreshed(s.stamp)
	return true
}
