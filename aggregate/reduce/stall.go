package reduce

// Workers may push tensors in different orders. A window of slots can then fill with chunks that others have not sent, while
// what the others wait for finds no slot: a deadlock that order alone causes. Its mark is a worker with a full window that
// lacks a chunk another has sent. (With one order for all, a full worker is ahead of everybody and lacks nothing: a worker that
// is merely late is no stall.) The machine breaks it when the lane has nothing else to do, by two rules.
//
//   - Follow: one worker leads, and the full ones are sent requests for its chunks that they have not sent. They send those
//     first, and keep their last slot for them. To make room, each is sent as many NACKs, for chunks that the leader has not
//     sent: a worker holds the gradient until it is answered, so nothing is lost, and sends it again later, behind all else. So
//     all go in the leader's order, and a chunk costs a follower at most one request and one NACK.
//   - Rotate: after a while without any finished chunk another worker leads, and the stalled ones are sent NACKs for half of
//     what they hold, so that chunks nobody has sent find slots. One fold is kept until the next rotation, and requested before
//     others, so that the stalled workers meet there; the next rotation keeps another, as some may not have submitted this one.
//
// By reference, a worker that copies its payloads runs out of staging buffers long before its window is full: it counts as full
// when the aggregator holds what lies in them, and keeps its last buffer as it keeps its last slot.
//
// A chunk that all workers have submitted is then finished after finitely many ticks: some rotation makes a worker send it,
// the others get a request for it, and have a slot for it.

// tick looks for full workers and breaks a stall; it reports whether there is one.
func (m *Machine) tick(counts bool) bool {
	rotate := m.rotationDue(counts)
	if rotate {
		m.stall.kept = m.meetingPoint()
		m.stall.leader++
	}
	m.elect()
	stalled := false
	for rank := range m.workers {
		w := &m.workers[rank]
		w.stalled = w.state == Attached && w.slots.held > 0 && w.full() && m.lacks(rank)
		if !w.stalled {
			continue
		}
		stalled = true
		w.need = m.follow(rank)
		if rotate && m.stall.kept != none && !m.folds.has(m.stall.kept, rank) {
			m.request(rank, m.stall.kept,
				requestsAtOnce) // also if it has one: a worker sends first what was requested last
		}
	}
	// Only now, as what one worker is sent NACKs for the others no longer lack.
	for rank := range m.workers {
		w, s := &m.workers[rank], &m.stall
		switch {
		case !w.stalled:
		case rotate && s.kept != none && m.folds.has(s.kept, rank):
			m.sendBack(rank, nobody, w.slots.held/2)
		case rotate:
			m.sendBack(rank, nobody, (w.slots.held+1)/2)
		case rank != s.leader && w.need == 0 && w.stuck():
			m.sendBack(rank, s.leader, 1)
		case rank != s.leader:
			m.sendBack(rank, s.leader, w.need)
		}
	}
	return stalled
}

const nobody = -1

func (m *Machine) rotationDue(counts bool) bool {
	s := &m.stall
	if counts {
		s.idle++
	}
	if m.done != s.doneBefore {
		s.idle, s.patience = 0, max(s.patience/2, rotateAfter)
	}
	s.doneBefore = m.done
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
func (m *Machine) answered() bool {
	for rank := range m.workers {
		if w := &m.workers[rank]; w.owing && w.state == Attached && !w.full() {
			return false
		}
	}
	return true
}

// lacks reports whether a fold misses this worker's gradient.
func (m *Machine) lacks(rank int) bool { return m.folds.of[rank] < m.folds.open() }

// request tells a worker that others have sent a chunk and it has not.
func (m *Machine) request(rank int, i int32, most int) {
	m.requestChunk(rank, m.folds.at(i).chunk, most)
}

func (m *Machine) requestChunk(rank int, index uint32, most int) {
	w := &m.workers[rank]
	if !w.hears(most) {
		return
	}
	w.requested.add(m.bit(index))
	w.unheard++
	w.sends--
	m.emit(Action{Kind: Request, Worker: int32(rank), Index: index})
}

// follow requests from a worker the leader's chunks that it has not sent, and returns how many requests were new. The youngest
// come first: of what is requested, a worker begins with the last.
func (m *Machine) follow(rank int) (n int) {
	w := &m.workers[rank]
	for i := m.folds.last; i != none && w.hears(requestsAtOnce-1); i = m.folds.at(i).prev {
		if !w.requested.has(m.bit(m.folds.at(i).chunk)) && !m.folds.has(i, rank) && m.folds.has(i, m.stall.leader) {
			m.request(rank, i, requestsAtOnce-1)
			n++
		}
	}
	return n
}

// meetingPoint chooses the fold of a rotation. It alternates between the one that was chosen least recently (of those the one
// that lacks the fewest gradients) and any.
func (m *Machine) meetingPoint() int32 {
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
		if best == none || f.met < m.folds.at(best).met || f.met == m.folds.at(best).met && f.arrived > m.folds.at(best).arrived {
			best = i
		}
	}
	if best != none {
		m.folds.at(best).met = s.rotations
	}
	return best
}

// elect makes sure that the leader has sent something that is not finished.
func (m *Machine) elect() {
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

// sendBack sends a worker NACKs for up to n chunks, youngest fold first. It skips the fold that is kept and what the leader has
// sent, if there is a leader. If only staging buffers are short, it skips what does not lie in one.
func (m *Machine) sendBack(rank, leader, n int) {
	w := &m.workers[rank]
	slots := w.slots.held >= len(w.slots.ring)-1
	for i, before := m.folds.last, int32(none); n > 0 && i != none && w.canAnswer(); i = before {
		f := m.folds.at(i)
		before = f.prev
		if i == m.stall.kept || f.state != Gathering || !m.folds.has(i, rank) || leader != nobody && m.folds.has(i,
			leader) {
			continue
		}
		if !slots && !m.folds.row(i)[rank].Staged {
			continue
		}
		n--
		h := m.folds.leave(i, rank)
		w.owing = true
		w.release(&h)
		m.emit(Action{Kind: NACK, Worker: int32(rank), Index: f.chunk, Message: h})
		w.stats.Chunks--
		if f.arrived == 0 {
			m.endFold(i)
		}
	}
}
