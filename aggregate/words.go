package aggregate

import (
	"fmt"

	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/hierarchy"
	"github.com/rackweave/rackweave/verbs"
)

// advanceDesk says what is to be said, and reports whether it did.
func (s *share) advanceDesk() (worked bool) {
	d, a := s.quorum.desk, s.above
	if s.quorum.turns.Over() {
		d.out = d.out[:0] // the leader may have left
	}
	for len(d.out) > 0 && (d.leader != nil || a.reducer.Spare(0)) {
		n := d.out[0]
		d.out = d.out[:copy(d.out, d.out[1:])]
		worked = true
		if d.leader == nil {
			s.notice(0, n.what, n.index)
		} else if !s.lead(0, n.what, n.index) {
			panic("aggregate: the rack has come to a meeting twice")
		}
	}
	if d.owes && a.reducer.Spare(0) {
		d.owes, worked = false, true
		s.notice(0, noticeHeard, 0)
	}
	if d.leader == nil {
		return worked
	}
	if d.leader.Waiting() {
		d.leader.Tick(s.now())
		s.say()
	}
	for rack := range d.peers {
		if p := &d.peers[rack]; rack != d.rack && !p.busy && p.sent < len(d.log) && a.reducer.Spare(rack) {
			s.sendWords(rack, p)
			worked = true
		}
	}
	d.forget()
	return worked
}

// lead tells the leader of a rack, and reports whether what it says can be.
func (s *share) lead(rack int, what uint8, index uint32) bool {
	l := s.quorum.desk.leader
	switch what {
	case noticeCome:
		if int(index) >= max(s.store.outer.Fragments, 1) || !l.Come(s.now(), rack, int(index)) {
			return false
		}
	case noticeLeave:
		l.Leave()
	default:
		l.Away(s.now(), rack, what == noticeAway)
	}
	s.say()
	return true
}

// say takes the leader's words into the log. A rack for which too many wait is given up for lost: it acknowledges none.
func (s *share) say() {
	d := s.quorum.desk
	words := d.leader.Words()
	d.log = append(d.log, words...)
	for rack := range d.peers {
		if n := len(d.log) - d.peers[rack].sent; rack != d.rack && n > mostWords {
			s.fate.fail(noRank, fmt.Errorf("%w: %s, by %s: it acknowledges no decisions about meetings, of which %d wait for it",
				ErrPeerLost, s.above.name(rack), s.above.name(d.rack), n))
			return
		}
	}
	s.hearAll(words)
}

// hearAll has all lanes hear words.
func (s *share) hearAll(words []hierarchy.Word) {
	d := s.quorum.desk
	if len(words) == 0 {
		return
	}
	d.spread(append([]hierarchy.Word(nil), words...))
	s.hear(words)
}

// sendWords tells a rack as many words as fit into a message.
func (s *share) sendWords(rack int, p *deskPeer) {
	a, d := s.above, s.quorum.desk
	at := a.sums.spare(rack)
	words := d.log[p.sent:min(len(d.log), p.sent+normBytes/wordBytes)]
	b := bytesAt(at, normBytes)
	for i, w := range words {
		writeWord(b[i*wordBytes:], w)
	}
	p.sent, p.busy = p.sent+len(words), true
	k := a.links[rack]
	s.sendAbove(k, chunk.Pack(opWords, 0, 0), noResult, verbs.SendWR{LAddr: at, Length: uint32(len(words) * wordBytes),
		RAddr: k.replyAddr + uint64(a.window)*a.slotBytes, RKey: k.replyRKey})
}

// hearDesk handles a message about meetings, and reports whether it was one.
func (s *share) hearDesk(k *link, wc *verbs.WC) bool {
	if s.quorum == nil {
		return false
	}
	op, epoch, index := chunk.Unpack(wc.Imm)
	d := s.quorum.desk
	notice := op == chunk.OpNotice && epoch >= noticeHeard
	switch {
	case !notice && op != opWords:
		return false
	case d == nil:
		s.peerViolates(k, "sent word of meetings in lane %d: it belongs to lane 0", s.lane)
	case op == opWords:
		s.hearWords(k, wc)
	case d.leader == nil || epoch > noticeBack:
		s.peerViolates(k, "sent notice %d to rack %d", epoch, d.rack)
	case epoch == noticeHeard:
		d.peers[k.rank].busy = false
	case !s.lead(k.rank, epoch, index):
		s.peerViolates(k, "has come to a meeting of fragment %d, where it is already", index)
	}
	return true
}

// hearWords takes the leader's words.
func (s *share) hearWords(k *link, wc *verbs.WC) {
	d, a := s.quorum.desk, s.above
	if k.rank != 0 || d.owes || wc.ByteLen == 0 || wc.ByteLen > normBytes || wc.ByteLen%wordBytes != 0 {
		s.peerViolates(k, "sent %d bytes of words", wc.ByteLen)
		return
	}
	b := bytesAt(k.slots.addr()+uint64(a.window)*a.slotBytes, int(wc.ByteLen))
	words := make([]hierarchy.Word, len(b)/wordBytes)
	for i := range words {
		words[i] = readWord(b[i*wordBytes:])
	}
	d.owes = true
	s.hearAll(words)
}
