package reduce

// movesAtOnce bounds the notices sent to a worker since its last message. Requests travel the same way and need receives, too.
const movesAtOnce = requestsAtOnce / 4

// Move marks a chunk to move to another lane with its next answer.
func (m *Machine) Move(index uint32, lane int) {
	if c := m.chunk(index); c != nil && c.fold != away {
		c.to = uint8(lane + 1)
	}
}

// canMove reports whether every worker's send queue has room for a notice beside the answer.
func (m *Machine) canMove() bool {
	for rank := range m.workers {
		if w := &m.workers[rank]; w.state == Attached && (w.unanswered >= movesAtOnce || w.sends <= SendMargin+1) {
			return false
		}
	}
	return true
}

// move marks the last action, which answers c's workers, as a move to c's new lane, takes an entry of every worker's send queue for
// the notice, and drops the chunk here.
func (m *Machine) move(c *chunkState) {
	a := &m.Actions[len(m.Actions)-1]
	a.Moves, a.To = true, c.to-1
	for rank := range m.workers {
		if w := &m.workers[rank]; w.state == Attached {
			w.unanswered++
			w.sends--
		}
	}
	*c = chunkState{Chunk: c.Chunk, fold: away}
}

// Forget frees the place of a chunk that has moved on.
func (m *Machine) Forget(index uint32) { m.moved.forget(index) }

// Adopt adds a chunk that has moved here, at home or not. epoch is the last that it has finished.
func (m *Machine) Adopt(index uint32, c Chunk, epoch uint8) {
	state := chunkState{Chunk: c, fold: none, epoch: epoch}
	if int(index) < len(m.chunks) {
		m.chunks[index] = state
		return
	}
	m.moved.put(index, state)
	for w := range m.workers {
		m.fit(&m.workers[w])
	}
	m.fitFolds()
}

// AddTensor appends a tensor without chunks of the plan in this lane. sum is the checksum of its hyper-parameters in another lane.
func (m *Machine) AddTensor(index uint32, t Tensor, sum uint32) (number uint32) {
	number = uint32(len(m.tensors))
	m.tensors = append(m.tensors, tensorState{t, sum})
	m.moved.tensors[index] = number
	for rank := range m.workers {
		if w := &m.workers[rank]; w.state != Absent {
			m.fit(w)
			w.hyperSum[number] = sum
		}
	}
	return number
}

// Place returns the place of a chunk that has come, if it has. Places are bounded by the largest number of such chunks at one time.
func (m *Machine) Place(index uint32) (at int, ok bool) {
	at, ok = m.moved.at[index]
	return at, ok
}
