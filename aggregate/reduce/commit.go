package reduce

import "github.com/rackweave/rackweave/chunk"

// commits is the part of a machine that ends two-phase steps and updates of sets.
type commits struct{ *Machine }

// collect takes one worker's commit. The step is committed when all workers have sent equal records.
func (m commits) collect(rank int, msg *Message, h Held) {
	c := &m.commit
	if m.cfg.Mode != TwoPhase {
		m.violate(rank, "sent a commit to a job in %v mode", m.cfg.Mode)
		return
	}
	if expect := epochAfter(c.epoch); msg.Epoch != expect || c.from[rank].present {
		m.violate(rank, "sent commit %d, expected %d, once", msg.Epoch, expect)
		return
	}
	before := c.arrived()
	if before > 0 && *msg.Record != c.first {
		m.violate(rank, "sent another commit than the workers before it: every worker must commit with the same values")
		return
	}
	c.first, c.from[rank] = *msg.Record, arrival{h, true}
	if before+1 < m.cfg.Workers {
		return
	}
	if n := m.folds.open(); n > 0 {
		m.violate(rank, "and all others committed while %d chunks of lane %d miss gradients of some", n, m.cfg.Lane)
		return
	}
	if n := m.rows.open; n > 0 {
		m.violate(rank, "and all others committed while streams of %d sparse tensors of lane %d miss rows of some", n, m.cfg.Lane)
		return
	}
	c.epoch = msg.Epoch
	m.reachBarrier(AwaitNorms)
}

func (m commits) reachBarrier(p Phase) {
	m.commit.phase = p
	m.emit(Action{Kind: ReachBarrier})
}

// step does one step of the commit and reports whether it did anything. met tells whether every lane has reached the barrier.
func (m commits) step(met bool) bool {
	c := &m.commit
	switch c.phase {
	case AwaitNorms:
		if !met {
			return false
		}
		m.emit(Action{Kind: Decide, Epoch: c.epoch})
		c.phase, c.next = Applying, 0
	case Applying:
		if m.chunksOf(Apply) {
			break
		}
		if m.cfg.Mode == Stream {
			streams(m).setUpdated()
			break
		}
		if m.cfg.Norms && c.first.Flags&chunk.RecordSkip == 0 {
			m.reachBarrier(AwaitTrust)
		} else {
			m.applied()
		}
	case AwaitTrust:
		if !met {
			return false
		}
		c.phase, c.next = Scaling, 0
	case Scaling:
		if !m.chunksOf(Scale) {
			m.applied()
		}
	case Answering:
		return m.answerCommit()
	default:
		return false
	}
	return true
}

// applied begins the next phase after this lane has updated its parameters.
func (m commits) applied() {
	m.commit.phase = Answering
	if m.cfg.Above {
		m.commit.phase = Refreshing
		m.emit(Action{Kind: Refresh})
	}
}

// chunksOf emits an action on the next few chunks. It returns false if none are left.
func (m commits) chunksOf(kind Kind) bool {
	index := m.commit.next
	end := min(index+chunksPerStep, uint32(len(m.chunks)))
	if index >= end {
		return false
	}
	m.emit(Action{Kind: kind, Index: index, End: end})
	m.commit.next = end
	return true
}

func (m commits) answerCommit() bool {
	if !m.canAnswerAll(true) {
		return false
	}
	m.results--
	c := &m.commit
	m.emit(Action{Kind: AnswerCommit, Op: chunk.OpCommit, Epoch: c.epoch, Buffered: true})
	for rank := range c.from {
		m.workers[rank].release(&c.from[rank].Held)
		c.from[rank].present = false
	}
	c.phase = Collecting
	return true
}
