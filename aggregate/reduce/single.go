package reduce

// pull answers with the parameters as they are after the worker's last finished push.
func (m *Machine) pull(rank int, msg *Message, h Held) {
	if !m.place(rank, msg) {
		return
	}
	if m.cfg.Mode == Aggregate {
		m.violate(rank, "pulled from an aggregate-only job, which keeps no parameters: use pushpull")
		return
	}
	if e := m.chunks[msg.Index].epoch; msg.Epoch != e {
		m.violate(rank, "pulled chunk %d of lane %d for epoch %d, which is at %d", msg.Index, m.cfg.Lane, msg.Epoch, e)
		return
	}
	m.answerOrWait(alone{worker: int32(rank), kind: Pull, epoch: msg.Epoch, index: msg.Index, held: h})
}

// record takes a tensor's hyper-parameters and destination. They hold from the worker's next chunk of the tensor on, and all
// workers must have sent the same hyper-parameters by then.
func (m *Machine) record(rank int, msg *Message, h Held) {
	if int(msg.Index) >= len(m.tensors) {
		m.violate(rank, "sent a control record of tensor %d of lane %d, which has %d", msg.Index, m.cfg.Lane,
			len(m.tensors))
		return
	}
	a := Action{Kind: Configure, Worker: int32(rank), Index: msg.Index}
	if m.cfg.Mode == Eager {
		t := &m.tensors[msg.Index]
		m.workers[rank].hyperSum[msg.Index] = msg.HyperSum
		a.New = msg.HyperSum != t.hyperSum
		t.hyperSum = msg.HyperSum
	}
	m.emit(a)
	m.answerOrWait(alone{worker: int32(rank), kind: Acknowledge, epoch: msg.Epoch, index: msg.Index, held: h})
}

// answerOrWait answers a message that is no part of a fold, now or when there is room.
func (m *Machine) answerOrWait(a alone) {
	if m.alone.len() > 0 || !m.answer(&a) {
		m.alone.put(a)
		m.waited++
	}
}

func (m *Machine) answer(a *alone) bool {
	w := &m.workers[a.worker]
	if w.state == Gone {
		return true
	}
	result := a.kind == Pull && !m.tensors[m.chunks[a.index].Tensor].Direct
	if !w.canAnswer() || result && m.results == 0 {
		return false
	}
	if result {
		m.results--
	}
	w.release(&a.held)
	m.emit(Action{Kind: a.kind, Op: a.held.Op, Epoch: a.epoch, Result: result, Worker: a.worker, Index: a.index,
		Message: a.held})
	return true
}
