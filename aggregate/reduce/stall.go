package reduce

// Workers may push tensors in different orders. A window of slots can then fill with chunks that others have not sent, while
// the chunks for which the others wait find no slot: a deadlock that order alone causes. Its mark is a worker with a full window
// that lacks a chunk another has sent. (With one order for all, a full worker is ahead of everybody and lacks nothing, so a
// worker that is merely late is not a stall.) The machine breaks a stall when the lane has nothing else to do, by two rules.
//
//   - Follow: one worker leads, and the full ones are sent requests for its chunks that they have not sent. They send those
//     first, and keep their last slot for them. To make room, each is sent as many NACKs, for chunks that the leader has not
//     sent. A worker holds the gradient until it is answered, so nothing is lost, and sends it again later, after all others.
//     So all workers take the leader's order, and a chunk costs a follower at most one request and one NACK.
//   - Rotate: after a while without any finished chunk another worker leads, and the stalled ones are sent NACKs for half of
//     their held messages, so that chunks nobody has sent find slots. One fold is kept until the next rotation, and requested
//     before others, so that all stalled workers send it. The next rotation keeps another fold, because some workers may not
//     have submitted this one.
//
// By reference, a worker that copies its payloads runs out of staging buffers long before its window is full. It counts as full
// when the aggregator holds the payloads in all of them, and keeps its last buffer as it keeps its last slot. The slots and
// buffers that it keeps for streams of rows do not count (doc.go).
//
// A chunk that all workers have submitted is then finished after finitely many ticks: some rotation makes a worker send it,
// the others get a request for it, and have a slot for it.

// stalls is the part of a machine that breaks stalls.
type stalls struct{ *Machine }

func (m stalls) tick(counts bool) bool {
	rotate := m.rotationDue(counts)
	if rotate {
		m.stall.kept = m.rotationFold()
		m.stall.leader++
	}
	m.elect()
	stalled := false
	for rank := range m.workers {
		w := &m.workers[rank]
		w.stalled = w.state == Attached && w.held() > 0 && w.full() && m.folds.of[rank] < m.folds.open()
		if !w.stalled {
			continue
		}
		stalled = true
		w.need = m.follow(rank)
		if rotate && m.stall.kept != none && !m.folds.has(m.stall.kept, rank) {
			// Again if it was requested before, because a worker sends the last requested chunk first.
			m.request(rank, m.folds.at(m.stall.kept).chunk, requestsAtOnce)
		}
	}
	// Follow only now, because chunks that one worker was sent NACKs for may be missing at no other.
	for rank := range m.workers {
		w, s := &m.workers[rank], &m.stall
		switch {
		case !w.stalled:
		case rotate && s.kept != none && m.folds.has(s.kept, rank):
			m.sendBack(rank, nobody, w.held()/2)
		case rotate:
			m.sendBack(rank, nobody, (w.held()+1)/2)
		case rank != s.leader && w.need == 0 && w.stuck():
			m.sendBack(rank, s.leader, 1)
		case rank != s.leader:
			m.sendBack(rank, s.leader, w.need)
		}
	}
	return stalled
}

const nobody = -1

func (m stalls) rotationDue(counts bool) bool {
	s := &m.stall
	if counts {
		s.idle++
	}
	if m.Finished != s.doneBefore {
		s.idle, s.patience = 0, max(s.patience/2, rotateAfter)
	}
	s.doneBefore = m.Finished
	if s.idle < rotateAfter || (s.idle < s.patience && !m.answered()) {
		return false
	}
	if s.idle >= s.patience {
		s.patience = min(s.patience*2, rotateAtMost)
	}
	s.idle = 0
	return true
}

// answered reports whether every worker that was sent a NACK, and can send, has sent something since.
func (m stalls) answered() bool {
	for rank := range m.workers {
		if w := &m.workers[rank]; w.silent && w.state == Attached && !w.full() {
			return false
		}
	}
	return true
}

func (m stalls) request(rank int, index uint32, most int) {
	w := &m.workers[rank]
	if !w.canRequest(most) {
		return
	}
	w.requested.add(int(index))
	w.unanswered++
	w.sends--
	m.emit(Action{Kind: Request, Worker: int32(rank), Index: index})
}

// follow requests the leader's chunks that a worker has not sent, and returns the number of new requests. The youngest come first,
// because a worker sends the last requested chunk first.
func (m stalls) follow(rank int) (n int) {
	w := &m.workers[rank]
	for i := m.folds.last; i != none && w.canRequest(requestsAtOnce-1); i = m.folds.at(i).prev {
		if !w.requested.has(int(m.folds.at(i).chunk)) && !m.folds.has(i, rank) && m.folds.has(i, m.stall.leader) {
			m.request(rank, m.folds.at(i).chunk, requestsAtOnce-1)
			n++
		}
	}
	return n
}

// rotationFold chooses the fold of a rotation. It alternates between the fold that was chosen least recently, with the fewest
// missing gradients among equals, and any.
func (m stalls) rotationFold() int32 {
	s := &m.stall
	s.rotations++
	any := int(s.rotations*0x9e3779b1>>8) % m.folds.open()
	best := int32(none)
	for i := m.folds.first; i != none; i = m.folds.at(i).next {
		f := m.folds.at(i)
		any--
		if f.state != Gathering {
			continue
		}
		if any < 0 && s.rotations%2 == 0 {
			best = i
			break
		}
		if best == none || f.rotation < m.folds.at(best).rotation ||
			f.rotation == m.folds.at(best).rotation && f.arrived > m.folds.at(best).arrived {
			best = i
		}
	}
	if best != none {
		m.folds.at(best).rotation = s.rotations
	}
	return best
}

// elect replaces the leader if all that it has sent is finished.
func (m stalls) elect() {
	s := &m.stall
	for range m.workers {
		s.leader %= len(m.workers)
		if m.workers[s.leader].state != Absent && m.folds.of[s.leader] > 0 {
			return
		}
		s.leader++
	}
	s.leader = 0
}

// sendBack sends a worker NACKs for up to n chunks, youngest fold first. It skips the fold that is kept, and with a leader the
// chunks that the leader has sent. If only staging buffers are short, it skips messages outside them.
func (m stalls) sendBack(rank, leader, n int) {
	w := &m.workers[rank]
	slots := w.slots.Len() <= w.kept+1
	for i, before := m.folds.last, int32(none); n > 0 && i != none && w.canAnswer(); i = before {
		f := m.folds.at(i)
		before = f.prev
		if i == m.stall.kept || f.state != Gathering || !m.folds.has(i, rank) ||
			leader != nobody && m.folds.has(i, leader) {
			continue
		}
		if !slots && !m.folds.row(i)[rank].Staged {
			continue
		}
		n--
		folding(m).nack(i, rank)
		if f.arrived == 0 {
			folding(m).endFold(i)
		}
	}
}
