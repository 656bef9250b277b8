package reduce

import (
	"fmt"

	"github.com/rackweave/rackweave/chunk"
)

// Receive takes a message of a worker. It drops a message of a worker that has left, or for a job that has ended. The messages of
// such a worker do not lie in the slots that the machine expects.
func (m *Machine) Receive(now int64, rank int, msg *Message) {
	m.begin(now)
	w := &m.workers[rank]
	w.unanswered, w.silent = 0, false
	if m.State != Running || w.state != Attached {
		return
	}
	if w.slots.Len() == 0 {
		m.violate(rank, "sent more than its window of %d messages", m.cfg.Window)
		return
	}
	h := Held{Where: msg.Where, Slot: w.slots.Take(), Op: msg.Op, Epoch: msg.Epoch}
	if h.Staged {
		w.staged++
	}
	switch msg.Op {
	case chunk.OpPush, chunk.OpPushPull:
		switch {
		case merging{m}.takes(msg.Index):
			merging{m}.receive(rank, msg, h)
		case m.cfg.Mode == Stream:
			streams{m}.apply(rank, msg, h)
		default:
			folding{m}.gather(rank, msg, h)
		}
	case chunk.OpBroadcast:
		folding{m}.gather(rank, msg, h)
	case chunk.OpPull:
		singles{m}.pull(rank, msg, h)
	case chunk.OpTensor:
		singles{m}.record(rank, msg, h)
	case chunk.OpCommit:
		if m.cfg.Mode == Stream {
			streams{m}.endStep(rank, msg, h)
		} else {
			commits{m}.collect(rank, msg, h)
		}
	default:
		m.violate(rank, "sent operation %v, which only the aggregator sends", msg.Op)
	}
}

// NextSlot returns the slot of a worker's next message.
func (m *Machine) NextSlot(rank int) uint16 { return *m.workers[rank].slots.at(0) }

// MessageOf returns the message of one worker that an action on a whole chunk, or [AnswerCommit], takes and answers.
func (m *Machine) MessageOf(a *Action, rank int) *Held {
	if a.Kind == AnswerCommit {
		return &m.commit.from[rank].Held
	}
	return &m.folds.row(a.fold)[rank].Held
}

// UpdateSet runs the update of the oldest set, in steps ([Machine.AdvanceCommit]), and emits [Updated] at the end. Every worker in
// the set must have ended its step.
func (m *Machine) UpdateSet(now int64) {
	m.begin(now)
	if m.State == Running {
		m.commit.phase, m.commit.next = Applying, 0
	}
}

// Delivered records that n messages to a worker have arrived, and frees their entries of its send queue.
func (m *Machine) Delivered(rank, n int) {
	w := &m.workers[rank]
	if w.sends += n; w.sends > m.cfg.Sends {
		panic(fmt.Sprintf("reduce: worker %d has received more messages than were sent", rank))
	}
}

// Hold records that n more messages on their way to a worker hold a result buffer, or fewer if n is negative.
func (m *Machine) Hold(rank, n int) { m.workers[rank].buffers += n }

// Freed records that a result buffer is free again.
func (m *Machine) Freed() {
	if m.results++; m.results > m.cfg.Results {
		panic("reduce: more result buffers freed than taken")
	}
}

// Violate ends the job because a worker's message is invalid.
func (m *Machine) Violate(rank int, format string, args ...any) {
	m.begin(m.now)
	m.violate(rank, format, args...)
}

// Follow requests a chunk that other racks have sent up from the workers. It reports whether a worker without the chunk's gradient
// has no slot for it, because other gradients hold all of its slots.
func (m *Machine) Follow(now int64, index uint32) (stuck bool) {
	m.begin(now)
	i := m.chunks[index].fold
	for rank := range m.workers {
		w := &m.workers[rank]
		if m.State != Running || w.state != Attached || i != none && m.folds.has(i, rank) {
			continue
		}
		if !w.requested.has(int(index)) {
			stalls{m}.request(rank, index, requestsAtOnce)
		}
		stuck = stuck || w.stuck()
	}
	return stuck
}

// Advance does one thing that waited for room, if it has room, and reports whether it did. The caller repeats it until it does
// nothing.
func (m *Machine) Advance(now int64) bool {
	m.begin(now)
	switch {
	case m.State != Running:
		return false
	case m.ready.Len() > 0 && folding{m}.finish(*m.ready.at(0)):
		m.ready.Take()
		return true
	case m.answerWaiting():
		streams{m}.settle()
		return true
	case m.rows.pending.Len() > 0:
		return merging{m}.advance()
	}
	return false
}

// AdvanceCommit does one step of the commit under way, if any, and reports whether it did. met tells whether every lane has reached
// the barrier of this lane's last [ReachBarrier].
func (m *Machine) AdvanceCommit(now int64, met bool) bool {
	m.begin(now)
	return m.State == Running && commits{m}.step(met)
}

// Refreshed records that all racks have the parameters that the commit changed.
func (m *Machine) Refreshed(now int64) {
	m.begin(now)
	if m.State == Running && m.commit.phase == Refreshing {
		m.commit.phase = Answering
	}
}

// Tick looks for a stall and breaks it. It reports whether the lane is stalled, so that the caller looks again soon. counts tells
// whether every worker has had time for a processor since the last tick that counted.
func (m *Machine) Tick(now int64, counts bool) bool {
	m.begin(now)
	if m.cfg.Mode == Stream && !m.broadcasting() {
		return false // gradients wait for their sets
	}
	return m.State == Running && m.folds.open() > 0 && m.ready.Len() == 0 && stalls{m}.tick(counts)
}

// End ends the job in this lane. It notifies the remaining workers of the rank to blame. If blame is negative, no worker is to
// blame.
func (m *Machine) End(blame int) {
	m.begin(m.now)
	if m.State == Ended {
		return
	}
	m.State = Ended
	index := uint32(chunk.IndexMask)
	if blame >= 0 {
		index = uint32(blame)
	}
	for rank := range m.workers {
		if w := &m.workers[rank]; w.state == Attached && w.sends > 0 {
			w.sends--
			m.emit(Action{Kind: Abort, Worker: int32(rank), Index: index})
		}
	}
}
