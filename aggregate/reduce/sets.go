package reduce

// A policy in stream mode may apply sets. A set is one update of several workers' whole gradients. Slots hold less than a gradient,
// so the policy chooses the steps of a set, once for all lanes, before the gradients are there: when workers announce their steps.
// A chunk of a step that is undecided waits in its worker's own slots. The chunks of a member are added to their accumulators in
// the order in which the members were admitted, whatever the order of arrival, and acknowledged empty. The chunks of a step that is
// left out are only acknowledged. So the first member of a set always proceeds, and then the next. When all members have ended
// their steps in every lane, [Machine.UpdateSet] runs the update.

// streams is the part of a machine that serves mode stream.
type streams struct{ *Machine }

// Admit puts the step that a worker pushes into a set, behind the steps admitted before it. Sets are numbered from 0, without
// gaps.
func (m *Machine) Admit(now int64, rank int, set uint64) {
	if !m.beginFor(now, rank) {
		return
	}
	w := &m.workers[rank]
	w.standing = Member
	// A lane in which the worker pushed nothing can receive the end of its step first.
	m.sets.addends = append(m.sets.addends, addend{int32(rank), set, w.ended})
	streams{m}.addAll()
}

// LeaveOut drops the step that a worker pushes.
func (m *Machine) LeaveOut(now int64, rank int) {
	if !m.beginFor(now, rank) {
		return
	}
	m.workers[rank].standing = LeftOut
	for i, next := m.folds.first, int32(none); i != none; i = next {
		next = m.folds.at(i).next
		if f := m.folds.at(i); f.state == Waiting && m.folds.has(i, rank) {
			h := m.folds.leave(i, rank)
			m.answerOrWait(alone{worker: int32(rank), kind: Drop, epoch: h.Epoch, index: f.chunk, held: h})
			streams{m}.closeIfEmpty(i)
		}
	}
}

// Lose takes out a lost worker while a job in mode stream continues. It drops the worker's gradients and waiting answers, and lets
// the workers behind it in their sets go on. A broadcast, under way or to come, would wait for the worker, and fails the job.
func (m *Machine) Lose(now int64, rank int) {
	m.begin(now)
	m.Leave(rank)
	if m.lost = rank; m.broadcasting() {
		m.missPart()
	}
	if m.state != Running {
		return
	}
	m.commit.has[rank] = false
	for i, next := m.folds.first, int32(none); i != none; i = next {
		next = m.folds.at(i).next
		if m.folds.has(i, rank) {
			m.folds.leave(i, rank)
			streams{m}.closeIfEmpty(i)
		}
	}
	for i := range m.sets.addends {
		a := &m.sets.addends[i]
		a.ended = a.ended || int(a.worker) == rank
	}
	streams{m}.addAll()
}

func (m streams) setUpdated() {
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

func (m streams) propose(rank int, msg *Message, h Held) {
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

func (m streams) addAll() {
	size := m.sets.size()
	for i, next := m.folds.first, int32(none); i != none; i = next {
		next = m.folds.at(i).next
		if m.folds.at(i).state == Waiting {
			m.add(i, size)
		}
	}
}

// add adds gradients to a chunk's accumulator until the next member's is missing.
func (m streams) add(i int32, size int) {
	if m.commit.phase != Collecting {
		return // the update uses the accumulator
	}
	f := m.folds.at(i)
	c := &m.chunks[f.chunk]
	for ; f.arrived > 0 && int(c.added) < size; c.added++ {
		next := &m.sets.addends[c.added]
		if next.ended {
			continue // it has pushed this chunk before, or does not push it
		}
		if !m.folds.has(i, int(next.worker)) {
			break
		}
		h := m.folds.leave(i, int(next.worker))
		m.answerOrWait(alone{worker: next.worker, kind: Add, epoch: h.Epoch, index: f.chunk, held: h})
	}
	m.closeIfEmpty(i)
}

func (m streams) closeIfEmpty(i int32) {
	if m.folds.at(i).arrived == 0 {
		folding(m).endFold(i)
	}
}

// settle adds the gradients that waited for the ends of other steps.
func (m streams) settle() {
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
