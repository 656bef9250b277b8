package reduce

// A chunk can move to another lane. It does when every worker has sent its gradient: then nothing of the chunk is on its way, each
// worker hears of the move ahead of its answer, and none sends the chunk again before it has that. So all agree without waiting for
// each other.

// movesAtOnce bounds the notices sent to a worker from which nothing has come since. Requests go the same way and need receives,
// too.
const movesAtOnce = requestsAtOnce / 4

// Move has a chunk move to another lane with its next answer.
func (m *Machine) Move(index uint32, lane int) {
	if c := m.chunk(index); c != nil && c.fold != moved {
		c.to = uint8(lane + 1)
	}
}

// canMove reports whether every worker can be sent a notice beside the answer.
func (m *Machine) canMove() bool {
	for rank := range m.workers {
		if w := &m.workers[rank]; w.state == Attached && (w.unheard >= movesAtOnce || w.sends <= SendMargin+1) {
			return false
		}
	}
	return true
}

// move lets go of a chunk whose answers are the last action.
func (m *Machine) move(c *chunkState) {
	a := &m.actions[len(m.actions)-1]
	a.Moves, a.To = true, c.to-1
	for rank := range m.workers {
		if w := &m.workers[rank]; w.state == Attached {
			w.unheard++
			w.sends--
		}
	}
	*c = chunkState{Chunk: c.Chunk, fold: moved}
}

// Forget frees the place of a guest that has moved on.
func (m *Machine) Forget(index uint32) { m.guests.forget(index) }

// Adopt takes a chunk in that has moved here, home or as a guest. It has finished this epoch.
func (m *Machine) Adopt(index uint32, c Chunk, epoch uint8) {
	state := chunkState{Chunk: c, fold: none, epoch: epoch}
	if int(index) < len(m.chunks) {
		m.chunks[index] = state
		return
	}
	m.guests.put(index, state)
	for w := range m.workers {
		m.fit(&m.workers[w])
	}
	m.fitFolds()
}

// AddTensor appends a tensor of which the plan has placed nothing here. sum is that of its hyper-parameters in another lane.
func (m *Machine) AddTensor(index uint32, t Tensor, sum uint32) (number uint32) {
	number = uint32(len(m.tensors))
	m.tensors = append(m.tensors, tensorState{t, sum})
	m.guests.addTensor(index, number)
	for rank := range m.workers {
		if w := &m.workers[rank]; w.state != Absent {
			m.fit(w)
			w.hyperSum[number] = sum
		}
	}
	return number
}

// Homes is how many of the plan's tensors the lane has.
func (m *Machine) Homes() int { return len(m.guests.homes) }

// Guest returns the place of a guest, among all that there have been at once.
func (m *Machine) Guest(index uint32) int { return m.guests.at[index] }

// Tensor returns the number of a tensor by its index in control records.
func (m *Machine) Tensor(index uint32) (number uint32, ok bool) { return m.guests.tensor(index) }
