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
	m.workers[rank].standing = Member
	// A lane in which the worker pushed nothing can receive the end of its step first.
	m.sets.addends = append(m.sets.addends, addend{int32(rank), set, m.commit.from[rank].present})
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
			m.answerOrWait(rank, Drop, f.chunk, h)
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
		folding{m}.missPart()
	}
	if m.State != Running {
		return
	}
	m.commit.from[rank].present = false
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
		m.answerOrWait(rank, Drop, msg.Index, h)
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
		m.answerOrWait(int(next.worker), Add, f.chunk, m.folds.leave(i, int(next.worker)))
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
	more := false
	for i := range m.sets.addends {
		if a := &m.sets.addends[i]; !a.ended && m.commit.from[a.worker].present {
			a.ended, more = true, true
		}
	}
	if more {
		m.addAll()
	}
}

// In stream mode epochs are the worker's own, because it pushes each chunk once in a step.

// apply takes a gradient, which is applied alone or goes into a set.
func (m streams) apply(rank int, msg *Message, h Held) {
	c, w := m.accept(rank, msg), &m.workers[rank]
	if c == nil {
		return
	}
	switch expect := epochAfter(w.epochs[msg.Index]); {
	case msg.Epoch != expect:
		m.violate(rank, "sent chunk %d of lane %d for epoch %d, expected %d", msg.Index, m.cfg.Lane, msg.Epoch, expect)
		return
	case w.ending:
		m.violate(rank, "sent a gradient of chunk %d of lane %d before the end of its last step was answered", msg.Index, m.cfg.Lane)
		return
	case !c.takes(msg):
		m.violate(rank, "sent %d bytes for chunk %d of lane %d, expected %d", msg.Bytes, msg.Index, m.cfg.Lane, c.Bytes)
		return
	case c.fold != none && m.folds.at(c.fold).broadcast:
		m.violate(rank, "sent a gradient of chunk %d of lane %d while others broadcast it", msg.Index, m.cfg.Lane)
		return
	}
	w.epochs[msg.Index] = msg.Epoch
	w.stats.Chunks++
	if w.standing != Alone {
		m.propose(rank, msg, h)
		return
	}
	m.answerOrWait(rank, UpdateOne, msg.Index, h)
}

// endStep takes the commit that ends a worker's step. Earlier messages of the worker may still wait for room.
func (m streams) endStep(rank int, msg *Message, h Held) {
	w := &m.workers[rank]
	if expect := epochAfter(w.stepEpoch); msg.Epoch != expect || w.ending {
		m.violate(rank, "ended step %d, expected %d, once", msg.Epoch, expect)
		return
	}
	w.stepEpoch, w.ending = msg.Epoch, true
	m.answerOrWait(rank, EndStep, 0, h)
	m.settle()
}

// Release answers the commit with which a worker ended its step, so that it begins the next. The gradients of that step have
// standing next.
func (m *Machine) Release(now int64, rank int, next Standing) {
	if !m.beginFor(now, rank) {
		return
	}
	end := &m.commit.from[rank]
	if !end.present {
		panic("reduce: a worker is released that has not ended its step")
	}
	end.present = false
	w := &m.workers[rank]
	w.standing = next
	w.pushed.clear()
	m.answerOrWait(rank, AnswerStep, 0, end.Held)
}
