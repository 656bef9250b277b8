package reduce

import (
	"fmt"

	"github.com/rackweave/rackweave/chunk"
)

// folding is the part of a machine that gathers the gradients of all workers into folds.
type folding struct{ *Machine }

func (m folding) gather(rank int, msg *Message, h Held) {
	c := m.accept(rank, msg)
	if c == nil {
		return
	}
	t := &m.tensors[c.Tensor]
	broadcast := msg.Op == chunk.OpBroadcast
	expect := epochAfter(c.epoch)
	if broadcast && m.cfg.Mode == Stream {
		expect = m.workers[rank].epochs[msg.Index]
	} else if broadcast {
		expect = c.epoch
	}
	switch {
	case broadcast && m.lost != none:
		m.missPart()
		return
	case msg.Epoch != expect:
		m.violate(rank, "sent chunk %d of lane %d for epoch %d, expected %d", msg.Index, m.cfg.Lane, msg.Epoch, expect)
		return
	case broadcast && rank == m.cfg.RootWorker && msg.Bytes != c.Bytes, !broadcast && !c.takes(msg):
		m.violate(rank, "sent %d bytes for chunk %d of lane %d, expected %d", msg.Bytes, msg.Index, m.cfg.Lane, c.Bytes)
		return
	case m.cfg.Mode == TwoPhase && msg.Op == chunk.OpPushPull:
		m.violate(rank, "sent a pushpull to a two-phase job: push, commit, then pull")
		return
	case t.Rows > 0 && m.rows.all[t.stream].begun > 0:
		m.violate(rank, "broadcast chunk %d of tensor %q in lane %d while its rows are pushed", msg.Index, t.Name, m.cfg.Lane)
		return
	case m.commit.phase != Collecting && m.cfg.Mode == TwoPhase:
		m.violate(rank, "sent a gradient while the step is being committed")
		return
	}
	if c.fold == none {
		c.fold = m.folds.begin(msg.Index, m.now)
		m.folds.at(c.fold).broadcast = broadcast
	}
	i := c.fold
	f := m.folds.at(i)
	if f.broadcast != broadcast {
		m.violate(rank, "sent %v of chunk %d of lane %d while others broadcast or push it", msg.Op, msg.Index, m.cfg.Lane)
		return
	}
	if m.folds.has(i, rank) {
		m.violate(rank, "sent chunk %d of lane %d for epoch %d twice", msg.Index, m.cfg.Lane, msg.Epoch)
		return
	}
	m.folds.join(i, rank, h)
	st := &m.workers[rank].stats
	st.Chunks++
	st.LatenessNS += uint64(m.now - f.since)
	if f.arrived < m.cfg.Workers {
		return
	}
	st.LastArrivals++
	m.complete(i)
}

// missPart fails the job because of a broadcast that would wait for a lost worker.
func (m folding) missPart() {
	m.fail(m.lost, fmt.Errorf("%w: worker %d: others wait for its part of a broadcast", ErrWorkerLost, m.lost))
}

// accept returns the message's chunk, and records that its worker has sent it. It returns nil if the lane does not have the chunk.
func (m *Machine) accept(rank int, msg *Message) *chunkState {
	if msg.Index >= uint32(len(m.chunks)) {
		m.violate(rank, "sent chunk %d of lane %d, which has %d", msg.Index, m.cfg.Lane, len(m.chunks))
		return nil
	}
	m.workers[rank].requested.remove(int(msg.Index))
	return &m.chunks[msg.Index]
}

// complete hands a chunk whose gradients have all arrived to the racks above, or finishes it as soon as it has room.
func (m folding) complete(i int32) {
	f := m.folds.at(i)
	if m.cfg.Above && (f.broadcast || m.cfg.Inner == nil || !m.cfg.Inner(f.chunk)) {
		if m.cfg.Mode == Eager && !f.broadcast && !m.agree(m.chunks[f.chunk].Tensor) {
			return
		}
		f.state = Above
		op, epoch := chunk.OpPush, m.chunks[f.chunk].epoch
		if f.broadcast {
			op = chunk.OpBroadcast
		} else {
			epoch = epochAfter(epoch)
		}
		m.emit(Action{Kind: HandUp, Op: op, Index: f.chunk, fold: i, Epoch: epoch})
		return
	}
	f.state = Complete
	m.finishOrWait(i)
}

// Returned takes a chunk's result from the reducer above the rack.
func (m *Machine) Returned(now int64, index uint32) { folding{m}.comeBack(now, index, Returned) }

// Recalled takes a chunk back from the reducer above the rack, which has dropped its sum. The gradients must be sent again.
func (m *Machine) Recalled(now int64, index uint32) { folding{m}.comeBack(now, index, Recalled) }

func (m folding) comeBack(now int64, index uint32, as FoldState) {
	if m.begin(now); m.State != Running {
		return
	}
	i := m.chunks[index].fold
	if i == none || m.folds.at(i).state != Above {
		panic("reduce: a chunk came back that was not handed up")
	}
	m.folds.at(i).state = as
	m.finishOrWait(i)
}

// nackAll sends every worker a NACK for its gradient of a recalled chunk.
func (m folding) nackAll(i int32) bool {
	if !m.canAnswerAll(false) {
		return false
	}
	for rank := range m.workers {
		if m.workers[rank].state == Attached {
			m.nack(i, rank)
		}
	}
	m.endFold(i)
	return true
}

// nack sends a worker a NACK for its gradient in a fold.
func (m folding) nack(i int32, rank int) {
	w, h := &m.workers[rank], m.folds.leave(i, rank)
	w.silent = true
	w.release(&h)
	w.stats.Chunks--
	m.emit(Action{Kind: NACK, Worker: int32(rank), Index: m.folds.at(i).chunk, Message: h})
}

func (m folding) finishOrWait(i int32) {
	if m.ready.Len() > 0 || !m.finish(i) {
		m.ready.Put(i)
		m.Deferred++
	}
}

// finish emits the action that answers every worker of a complete fold, and counts their slots as free, because the answers are the
// credits. It returns false, and does nothing, if a send queue is full or no result buffer is free.
func (m folding) finish(i int32) bool {
	f := m.folds.at(i)
	c := &m.chunks[f.chunk]
	if f.state == Recalled {
		return m.nackAll(i)
	}
	// A push of a two-phase step is answered with the acknowledgement alone.
	result := (m.cfg.Mode != TwoPhase || f.broadcast) && !m.tensors[c.Tensor].Direct
	if !m.canAnswerAll(result) {
		return false
	}
	if m.cfg.Mode == Eager && !f.broadcast && f.state != Returned && !m.agree(c.Tensor) {
		return true
	}
	if result {
		m.results--
	}
	if !f.broadcast {
		c.epoch = epochAfter(c.epoch)
	}
	m.emit(Action{Kind: m.kindOf(f), Index: f.chunk, fold: i, Epoch: c.epoch, Buffered: result, Since: f.since})
	for rank, row := 0, m.folds.row(i); rank < len(row); rank++ {
		m.workers[rank].release(&row[rank].Held)
	}
	m.Finished++
	m.endFold(i) // its messages stay readable until the next event
	return true
}

// canAnswerAll reports whether one more answer to every worker fits, with a result buffer if it needs one.
func (m *Machine) canAnswerAll(result bool) bool {
	if result && m.results == 0 {
		return false
	}
	for w := range m.workers {
		if w := &m.workers[w]; w.state != Gone && !w.canAnswer() {
			return false
		}
	}
	return true
}

func (m folding) agree(tensor uint32) bool {
	first := m.workers[0].hyperSum[tensor]
	for rank := range m.workers {
		if m.workers[rank].hyperSum[tensor] != first {
			m.violate(rank, "sent other hyper-parameters for tensor %q than worker 0", m.tensors[tensor].Name)
			return false
		}
	}
	return true
}

func (m folding) kindOf(f *fold) Kind {
	switch {
	case f.state == Returned:
		return Deliver
	case f.broadcast:
		return Broadcast
	}
	return [...]Kind{Eager: Update, Aggregate: Sum, TwoPhase: Accumulate}[m.cfg.Mode]
}

// endFold closes a fold that is finished, or whose gradients were all sent back.
func (m folding) endFold(i int32) {
	m.chunks[m.folds.at(i).chunk].fold = none
	m.folds.end(i)
	if m.stall.kept == i {
		m.stall.kept = none
	}
}
