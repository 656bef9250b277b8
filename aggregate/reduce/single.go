package reduce

import "github.com/rackweave/rackweave/chunk"

// singles is the part of a machine that answers messages of one worker by themselves.
type singles struct{ *Machine }

func (m singles) pull(rank int, msg *Message, h Held) {
	c := m.accept(rank, msg)
	if c == nil {
		return
	}
	if m.cfg.Mode == Aggregate {
		m.violate(rank, "pulled tensor %q from an aggregate-only job, which keeps no parameters: use pushpull", m.tensors[c.Tensor].Name)
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
	if msg.Op == chunk.OpPush {
		m.reply(&Action{Kind: PullRows, Worker: int32(rank), Index: msg.Index, Rows: msg.Rows, Message: h})
		return
	}
	m.answerOrWait(rank, Pull, msg.Index, h)
}

// record takes a tensor's hyper-parameters and destination. They hold from the worker's next chunk of the tensor on. All workers
// must have sent equal hyper-parameters by then.
func (m singles) record(rank int, msg *Message, h Held) {
	if msg.Index == chunk.IndexMask && m.cfg.Mode == Stream {
		m.emit(Action{Kind: Announce, Worker: int32(rank)})
		m.answerOrWait(rank, Acknowledge, msg.Index, h)
		return
	}
	tensor := msg.Index
	if tensor >= uint32(len(m.tensors)) {
		m.violate(rank, "sent a control record of tensor %d of lane %d, which has %d", tensor, m.cfg.Lane, len(m.tensors))
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
	m.reply(&Action{Kind: kind, Worker: int32(rank), Index: index, Message: h})
}

// reply carries out an action that answers one worker, now or when it has room.
func (m *Machine) reply(a *Action) {
	h := &a.Message
	a.Op, a.Epoch = h.Op, h.Epoch
	switch a.Kind {
	case Pull:
		a.Buffered = !m.tensors[m.chunks[a.Index].Tensor].Direct
	case PullRows:
		a.Buffered = true
	case UpdateOne:
		a.Buffered = h.Op == chunk.OpPushPull // another worker's gradient may change the parameters while the answer is sent
	case Add, Drop:
		a.Op = chunk.OpPush // also for a pushpull, because the parameters do not change before the update
	case AnswerStep:
		a.Buffered = true
	}
	w := &m.workers[a.Worker]
	if w.replies.Len() == 0 && (a.Kind != Add || m.adds.Len() == 0) && m.answer(a) {
		return
	}
	if w.replies.Len() == 0 {
		m.replying.Put(a.Worker)
	}
	if w.replies.Put(*a); a.Kind == Add {
		m.adds.Put(a.Worker)
	}
	m.Deferred++
}

// answerWaiting answers a message that waited for room, and reports whether one had room. Each worker's are answered in order. A
// worker without room keeps nobody else waiting, except those behind it in a set.
func (m *Machine) answerWaiting() (did bool) {
	for range m.replying.Len() {
		rank := m.replying.Take()
		w := &m.workers[rank]
		a := w.replies.at(0)
		if did = (a.Kind != Add || *m.adds.at(0) == rank) && m.answer(a); did {
			if w.replies.Take(); a.Kind == Add {
				m.adds.Take()
			}
		}
		if w.replies.Len() > 0 {
			m.replying.Put(rank)
		}
		if did {
			return true
		}
	}
	return false
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
	case !w.canAnswer() || a.Buffered && w.buffers >= m.results: // so a worker that stands still leaves buffers to others
		return false
	case a.Buffered:
		m.results--
	}
	w.release(&a.Message)
	switch a.Kind {
	case UpdateOne, Add, Drop, MergeOne:
		m.Finished++
	case AnswerStep:
		w.ending = false
	}
	m.emit(*a)
	return true
}
