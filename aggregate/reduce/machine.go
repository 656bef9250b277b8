package reduce

import (
	"fmt"

	"github.com/rackweave/rackweave/chunk"
)

// begin starts an event at a time, in ns.
func (m *Machine) begin(now int64) { m.now, m.actions = now, m.actions[:0] }

// Receive takes a message of a worker. A message of a worker that has left, or for a job that has ended, is dropped; its worker
// no longer lies in the slots where the aggregator looks.
func (m *Machine) Receive(now int64, rank int, msg *Message) {
	m.begin(now)
	w := &m.workers[rank]
	w.unheard, w.owing = 0, false
	if m.state != Running || w.state != Attached {
		return
	}
	if w.slots.full() {
		m.violate(rank, "sent more than its window of %d messages", m.cfg.Window)
		return
	}
	h := Held{Where: msg.Where, Slot: w.slots.take(), Op: msg.Op, Epoch: msg.Epoch}
	if h.Staged {
		w.staged++
	}
	switch msg.Op {
	case chunk.OpPush, chunk.OpPushPull:
		if m.cfg.Mode == Stream {
			m.apply(rank, msg, h)
		} else {
			m.gather(rank, msg, h)
		}
	case chunk.OpBroadcast:
		m.gather(rank, msg, h)
	case chunk.OpPull:
		m.pull(rank, msg, h)
	case chunk.OpTensor:
		m.record(rank, msg, h)
	case chunk.OpCommit:
		if m.cfg.Mode == Stream {
			m.endStep(rank, msg, h)
		} else {
			m.collect(rank, msg, h)
		}
	default:
		m.violate(rank, "sent operation %v, which only the aggregator sends", msg.Op)
	}
}

// Release lets a worker that has ended its step in stream mode begin the next, whose gradients have this standing.
func (m *Machine) Release(now int64, rank int, next Standing) {
	m.begin(now)
	if m.state == Running && m.workers[rank].state == Attached {
		m.letGo(rank, next)
	}
}

// Admit says that the step that a worker pushes is in a set, behind those admitted before it. Sets are numbered from 0, without
// gaps.
func (m *Machine) Admit(now int64, rank int, set uint64) {
	m.begin(now)
	if m.state == Running && m.workers[rank].state == Attached {
		m.admit(rank, set)
	}
}

// LeaveOut says that the step that a worker pushes is dropped.
func (m *Machine) LeaveOut(now int64, rank int) {
	m.begin(now)
	if m.state == Running && m.workers[rank].state == Attached {
		m.leaveOut(rank)
	}
}

// UpdateSet runs the update of the oldest set, in steps ([Machine.AdvanceCommit]), and says [Updated] when it has. Every worker in
// the set has ended its step.
func (m *Machine) UpdateSet(now int64) {
	m.begin(now)
	if m.state == Running {
		m.commit.phase, m.commit.next = Applying, 0
	}
}

// Sent takes note that n of the messages to a worker have arrived: their entries of its send queue are free.
func (m *Machine) Sent(rank, n int) {
	w := &m.workers[rank]
	if w.sends += n; w.sends > m.cfg.Sends {
		panic(fmt.Sprintf("reduce: worker %d has received more messages than were sent", rank))
	}
}

// Freed takes note that a result buffer is free again.
func (m *Machine) Freed() {
	if m.results++; m.results > m.cfg.Results {
		panic("reduce: more result buffers freed than taken")
	}
}

// Violate ends the job because of what the lane found wrong with a worker's message.
func (m *Machine) Violate(rank int, format string, args ...any) {
	m.begin(m.now)
	m.violate(rank, format, args...)
}

// Returned takes a chunk's result from the reducer above the rack.
func (m *Machine) Returned(now int64, index uint32) {
	m.begin(now)
	if m.state == Running {
		m.returned(index)
	}
}

// Recalled takes a chunk back from the reducer above the rack, which does not keep its sum: its gradients are to be sent again.
func (m *Machine) Recalled(now int64, index uint32) {
	m.begin(now)
	if m.state == Running {
		m.recalled(index)
	}
}

// Follow asks the workers for a chunk that other racks have sent up. It reports whether one that lacks it has no slot for it.
func (m *Machine) Follow(now int64, index uint32) (stuck bool) {
	m.begin(now)
	i := m.chunk(index).fold
	for rank := range m.workers {
		w := &m.workers[rank]
		if m.state != Running || w.state != Attached || i != none && m.folds.has(i, rank) {
			continue
		}
		if !w.requested.has(m.bit(index)) {
			m.requestChunk(rank, index, requestsAtOnce)
		}
		stuck = stuck || w.stuck()
	}
	return stuck
}

// Advance does one thing that waited for room, if there is room, and reports whether it did. Call it until it does nothing.
func (m *Machine) Advance(now int64) bool {
	m.begin(now)
	switch {
	case m.state != Running:
		return false
	case m.ready.len() > 0 && m.finish(*m.ready.at(0)):
		m.ready.drop()
		return true
	case m.alone.len() > 0 && m.answer(m.alone.at(0)):
		m.alone.drop()
		m.settle()
		return true
	}
	return false
}

// AdvanceCommit does one step of the commit under way, if any, and reports whether it did. met says that every lane has reached
// the barrier that this one asked to [Meet] at.
func (m *Machine) AdvanceCommit(now int64, met bool) bool {
	m.begin(now)
	return m.state == Running && m.step(met)
}

// Refreshed takes note that all racks have the parameters that the commit changed.
func (m *Machine) Refreshed(now int64) {
	m.begin(now)
	if m.state == Running && m.commit.phase == Refreshing {
		m.commit.phase = Answering
	}
}

// Tick looks for a stall and breaks it, and reports whether there is one: then look again soon. counts says that enough time has
// passed since the last tick that counted for every worker to have had a processor.
func (m *Machine) Tick(now int64, counts bool) bool {
	m.begin(now)
	if m.cfg.Mode == Stream && !m.broadcasting() {
		return false // gradients wait for their sets
	}
	return m.state == Running && m.folds.open() > 0 && m.ready.len() == 0 && m.tick(counts)
}

// End ends the job in this lane. The workers that are left are told whom to blame, if anybody; blame is negative if nobody is to
// blame.
func (m *Machine) End(blame int) {
	m.begin(m.now)
	if m.state == Ended {
		return
	}
	m.state = Ended
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
