package reduce

// A policy in stream mode may apply sets: one update of several workers' whole gradients. Which steps of which workers a set has is
// decided outside, once for all lanes. A chunk of a step that is undecided waits in its worker's own slots. The chunks of a member
// are added to their accumulators in the order in which the members were admitted, whatever the order of arrival, and acknowledged
// empty; those of a step that is left out are only acknowledged. So the first member of a set always proceeds, and then the next.
// When all members have ended their steps in every lane, [Machine.UpdateSet] runs the update.

// admit takes the step that a worker pushes into a set, behind those admitted before it.
func (m *Machine) admit(rank int, set uint64) {
	w := &m.workers[rank]
	w.standing = Member
	// A lane in which the worker pushed nothing can hear of its step's end first.
	m.sets.addends = append(m.sets.addends, addend{int32(rank), set, w.ended})
	m.addAll()
}

// leaveOut drops the step that a worker pushes.
func (m *Machine) leaveOut(rank int) {
	m.workers[rank].standing = LeftOut
	for i, next := m.folds.first, int32(none); i != none; i = next {
		next = m.folds.at(i).next
		if f := m.folds.at(i); f.state == Waiting && m.folds.has(i, rank) {
			h := m.folds.leave(i, rank)
			m.answerOrWait(alone{worker: int32(rank), kind: Drop, epoch: h.Epoch, index: f.chunk, held: h})
			m.closeIfEmpty(i)
		}
	}
}

// setUpdated begins the next set.
func (m *Machine) setUpdated() {
	s := &m.sets
	n := s.size()
	s.addends = append(s.addends[:0], s.addends[n:]...)
	s.current++
	for i := range m.chunks {
		m.chunks[i].added = 0
	}
	m.commit.phase = Collecting
	m.emit(Action{Kind: Updated})
	m.addAll()
}

// propose takes a gradient of a worker whose steps go into sets.
func (m *Machine) propose(rank int, msg *Message, h Held) {
	w := &m.workers[rank]
	if !w.pushed.add(int(msg.Index)) {
		m.violate(rank, "sent chunk %d of lane %d twice in a step: a set has it once", msg.Index, m.cfg.Lane)
		return
	}
	if w.standing == LeftOut {
		m.answerOrWait(alone{worker: int32(rank), kind: Drop, epoch: msg.Epoch, index: msg.Index, held: h})
		return
	}
	c := &m.chunks[msg.Index]
	if c.fold == none {
		c.fold = m.folds.begin(msg.Index, m.now)
		m.folds.at(c.fold).state = Waiting
	}
	m.folds.join(c.fold, rank, h)
	m.add(c.fold, m.sets.size())
}

// addAll adds what can be added of every chunk.
func (m *Machine) addAll() {
	size := m.sets.size()
	for i, next := m.folds.first, int32(none); i != none; i = next {
		next = m.folds.at(i).next
		if m.folds.at(i).state == Waiting {
			m.add(i, size)
		}
	}
}

// add adds gradients to a chunk's accumulator, as long as the next member's is there.
func (m *Machine) add(i int32, size int) {
	if m.commit.phase != Collecting {
		return // the accumulator is the update's
	}
	f := m.folds.at(i)
	c := &m.chunks[f.chunk]
	for ; f.arrived > 0 && int(c.added) < size; c.added++ {
		next := &m.sets.addends[c.added]
		if next.ended {
			continue // it has pushed this chunk before, or not at all
		}
		if !m.folds.has(i, int(next.worker)) {
			break
		}
		h := m.folds.leave(i, int(next.worker))
		m.answerOrWait(alone{worker: next.worker, kind: Add, epoch: h.Epoch, index: f.chunk, held: h})
	}
	m.closeIfEmpty(i)
}

func (m *Machine) closeIfEmpty(i int32) {
	if m.folds.at(i).arrived == 0 {
		m.endFold(i)
	}
}

// settle adds what the ends of steps have made way for.
func (m *Machine) settle() {
	if !m.sets.stepped {
		return
	}
	m.sets.stepped = false
	for i := range m.sets.addends {
		a := &m.sets.addends[i]
		a.ended = a.ended || m.workers[a.worker].ended
	}
	m.addAll()
}
