package reduce

import "github.com/rackweave/rackweave/chunk"

func (m *Machine) pull(rank int, msg *Message, h Held) {
	c := m.accept(rank, msg)
	if c == nil {
		return
	}
	if m.cfg.Mode == Aggregate {
		m.violate(rank, "pulled from an aggregate-only job, which keeps no parameters: use pushpull")
		return
	}
	e := c.epoch
	if m.cfg.Mode == Stream {
		e = m.workers[rank].epochs[msg.Index]
	}
	if msg.Epoch != e {
		m.violate(rank, "pulled chunk %d of lane %d for epoch %d, which is at %d", msg.Index, m.cfg.Lane, msg.Epoch, e)
		return
	}
	m.answerOrWait(rank, Pull, msg.Index, h)
}

// record takes a tensor's hyper-parameters and destination. They hold from the worker's next chunk of the tensor on. All workers
// must have sent equal hyper-parameters by then.
func (m *Machine) record(rank int, msg *Message, h Held) {
	if msg.Index == chunk.IndexMask && m.cfg.Mode == Stream {
		m.emit(Action{Kind: Announce, Worker: int32(rank)})
		m.answerOrWait(rank, Acknowledge, msg.Index, h)
		return
	}
	tensor, ok := m.moved.tensor(msg.Index)
	if !ok {
		m.violate(rank, "sent a control record of tensor %d of lane %d, which has %d", msg.Index, m.cfg.Lane,
			len(m.moved.homes))
		return
	}
	a := Action{Kind: Configure, Worker: int32(rank), Index: tensor}
	switch w := &m.workers[rank]; m.cfg.Mode {
	case Stream:
		a.New = msg.HyperSum != w.hyperSum[tensor]
		w.hyperSum[tensor] = msg.HyperSum
	case Eager:
		t := &m.tensors[tensor]
		w.hyperSum[tensor] = msg.HyperSum
		a.New = msg.HyperSum != t.hyperSum
		t.hyperSum = msg.HyperSum
	}
	m.emit(a)
	m.answerOrWait(rank, Acknowledge, msg.Index, h)
}

// answerOrWait answers a message that belongs to no fold, now or when it has room.
func (m *Machine) answerOrWait(rank int, kind Kind, index uint32, h Held) {
	a := Action{Kind: kind, Op: h.Op, Epoch: h.Epoch, Worker: int32(rank), Index: index, Message: h}
	switch kind {
	case Pull:
		a.Buffered = !m.tensors[m.chunk(index).Tensor].Direct
	case UpdateOne:
		a.Buffered = h.Op == chunk.OpPushPull // another worker's gradient may change the parameters while the answer is sent
	case Add, Drop:
		a.Op = chunk.OpPush // also for a pushpull, because the parameters do not change before the update
	case AnswerStep:
		a.Buffered = true
	}
	if m.replies.Len() > 0 || !m.answer(&a) {
		m.replies.Put(a)
		m.Deferred++
	}
}

func (m *Machine) answer(a *Action) bool {
	w := &m.workers[a.Worker]
	switch {
	case w.state == Gone:
		return true
	case a.Kind == EndStep:
		m.commit.from[a.Worker] = arrival{a.Message, true}
		m.emit(*a)
		return true
	case !w.canAnswer() || a.Buffered && m.results == 0:
		return false
	case a.Buffered:
		m.results--
	}
	w.release(&a.Message)
	switch a.Kind {
	case UpdateOne, Add, Drop:
		m.Finished++
	case AnswerStep:
		w.ending = false
	}
	m.emit(*a)
	return true
}
