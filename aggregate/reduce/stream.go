package reduce

// In stream mode epochs are the worker's own, because it pushes each chunk once in a step.

// apply takes a gradient, which is applied alone or goes into a set.
func (m streams) apply(rank int, msg *Message, h Held) {
	c, w := m.place(rank, msg), &m.workers[rank]
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
	case msg.Bytes != c.Bytes:
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
	m.answerOrWait(alone{worker: int32(rank), kind: UpdateOne, epoch: msg.Epoch, index: msg.Index, held: h})
}

// endStep takes the commit that ends a worker's step. Earlier messages of the worker may still wait for room.
func (m streams) endStep(rank int, msg *Message, h Held) {
	w := &m.workers[rank]
	if expect := epochAfter(w.stepEpoch); msg.Epoch != expect || w.ending {
		m.violate(rank, "ended step %d, expected %d, once", msg.Epoch, expect)
		return
	}
	w.stepEpoch, w.ending = msg.Epoch, true
	m.answerOrWait(alone{worker: int32(rank), kind: EndStep, held: h})
	m.settle()
}

// Release answers the commit with which a worker ended its step, so that it begins the next. The gradients of that step have
// standing next.
func (m *Machine) Release(now int64, rank int, next Standing) {
	if !m.beginFor(now, rank) {
		return
	}
	if !m.commit.has[rank] {
		panic("reduce: a worker is released that has not ended its step")
	}
	m.commit.has[rank] = false
	w := &m.workers[rank]
	w.standing, w.ended = next, false
	w.pushed.clear()
	m.answerOrWait(alone{worker: int32(rank), kind: AnswerStep, epoch: m.workers[rank].stepEpoch, held: m.commit.held[rank]})
}
