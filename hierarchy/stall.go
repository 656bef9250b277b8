package hierarchy

import "slices"

// Racks may complete their chunks in different orders, because their workers push in different orders. Windows are bounded, so each
// rack can fill with chunks that another has not sent: a deadlock that order alone causes, as among the workers of one rack. It is
// broken in the same way. Rack 0 leads. A rack that has rack 0's sum of a chunk but lacks others sends requests for the missing
// sums, which the other racks pass on to their workers. A rack whose workers have no room recalls a sum that no rack has requested,
// which its workers then send again later. No sum that includes rack 0's is recalled, so each chunk that rack 0 has sent is
// finished after finitely many ticks.

const (
	// followAfter is the number of counted ticks without a finished chunk before racks follow the leader, and between two requests.
	followAfter = 4
	// requestsPerTick bounds the chunks that a tick requests, oldest first.
	requestsPerTick = 8
	// mostNotices bounds the requests and recalls that are sent to a rack before others have arrived, so that they seldom wait for
	// receives to be posted.
	mostNotices = 12
)

// Idle returns the number of counted ticks without a finished chunk.
func (m *Reducer) Idle() int { return m.idle }

// Awaited adds to counts, by rack, the chunks that wait for its sum or for its result.
func (m *Reducer) Awaited(counts []int) {
	for _, index := range m.open {
		c := &m.chunks[index]
		if c.phase >= sent {
			counts[m.route(c).Parent]++
			continue
		}
		if c.phase == missing {
			counts[m.cfg.Rack]++
		}
		for _, child := range m.route(c).Children {
			if c.phase < queued && !m.has(c, child) {
				counts[child]++
			}
		}
	}
}

// Open returns the number of chunks that wait for sums or for their results.
func (m *Reducer) Open() int { return len(m.open) }

// Tick looks for chunks for which other racks wait, and requests them. counts tells whether every rack has had time to do something
// since the last tick that counted.
func (m *Reducer) Tick(counts bool) {
	m.begin()
	if m.moved || len(m.open) == 0 {
		m.moved, m.idle = false, 0
		return
	}
	if counts {
		m.idle++
	}
	if !counts || m.idle%followAfter != 0 || m.failed {
		return
	}
	// The children's windows here must hold the oldest chunks that the leader has sent, or for which the parent waits.
	agreed, asked := 0, 0
	for _, index := range m.open {
		c := &m.chunks[index]
		if c.agreed = agreed < m.cfg.Window && (m.led(c) || c.asked) && c.phase < sent; c.agreed {
			agreed++
		}
	}
	for i := 0; i < len(m.open) && asked < requestsPerTick; i++ {
		c := &m.chunks[m.open[i]]
		if (c.agreed || c.asked && c.phase < sent) && m.follow(m.open[i], c) {
			asked++
		}
	}
}

// makeRoom NACKs the youngest of a child's sums that is not agreed on, if the child's window here is full.
func (m *Reducer) makeRoom(child int) {
	if len(m.peers[child].localSlots) > 0 {
		return
	}
	for i := len(m.open) - 1; i >= 0; i-- {
		if c := &m.chunks[m.open[i]]; !c.agreed && m.has(c, child) {
			m.nack(child, m.open[i], c)
			return
		}
	}
}

// nack answers a child's sum with a NACK.
func (m *Reducer) nack(child int, index uint32, c *chunkState) {
	slot := int(m.row(c)[child]) - 1
	m.row(c)[child] = 0
	if c.have--; c.have == 0 {
		m.empty(c)
	}
	m.shut(index, c)
	m.answer(child, Action{Kind: SendNACK, Index: index, Slot: slot})
}

// drop drops a rack's sum of a chunk with its children's sums.
func (m *Reducer) drop(index uint32, c *chunkState) {
	m.reset(index, c)
	m.emit(Action{Kind: Discard, Index: index})
	for _, child := range m.route(c).Children {
		m.answer(child, Action{Kind: SendNACK, Index: index, Slot: none}) // SendTaken has freed the slot
	}
}

// unqueue drops a sum that waits for room at the parent.
func (m *Reducer) unqueue(index uint32, c *chunkState) {
	m.peers[m.route(c).Parent].sums.advance(index).take()
	m.drop(index, c)
}

// led reports whether the leader's sum of a chunk has arrived.
func (m *Reducer) led(c *chunkState) bool {
	switch by := m.plan[c.owner].lead; {
	case by == none:
		return false
	case by == m.cfg.Rack:
		return c.phase != missing
	default:
		return c.phase >= queued || m.has(c, by)
	}
}

// follow requests the sums of a chunk that are missing here, and reports whether any is missing.
func (m *Reducer) follow(index uint32, c *chunkState) (some bool) {
	c.asked = true
	if c.phase == missing {
		some = true
		m.emit(Action{Kind: Follow, Index: index})
	}
	if c.phase >= queued {
		return false
	}
	for _, child := range m.route(c).Children {
		if !m.has(c, child) {
			some = true
			if c.agreed {
				m.makeRoom(child)
			}
			m.notify(child, Action{Kind: SendRequest, Index: index})
		}
	}
	return some
}

// TakeSend takes an entry of the send queue to a rack for a message of the lane's own, if it has room.
func (m *Reducer) TakeSend(rack int) bool {
	p := &m.peers[rack]
	if p.notices >= mostNotices || p.sends == 0 {
		return false
	}
	p.notices++
	p.sends--
	return true
}

// notify sends a request or a recall if it has room. If not, a later tick does.
func (m *Reducer) notify(rack int, a Action) bool {
	if !m.TakeSend(rack) {
		return false
	}
	a.Peer = rack
	m.emit(a)
	return true
}

// Requested records that the parent waits for the sum of a chunk.
func (m *Reducer) Requested(rack int, index uint32) {
	m.begin()
	switch {
	case m.failed:
	case int(index) >= len(m.chunks) || m.route(&m.chunks[index]).Parent != rack:
		m.violate(rack, "asked for chunk %d of lane %d, which is not its own", index, m.cfg.Lane)
	case m.chunks[index].phase == queued:
		m.peers[rack].sums.advance(index)
	case m.chunks[index].phase < queued: // otherwise the sum is in flight
		m.follow(index, &m.chunks[index])
	}
}

// Yield makes room in the windows of the rack's workers, by giving up the youngest of its sums that no rack has requested. A sum
// that is at the parent is recalled, and given up when the parent's NACK comes. The workers send these gradients again later.
func (m *Reducer) Yield() {
	m.begin()
	if m.failed {
		return
	}
	for i := len(m.open) - 1; i >= 0; i-- {
		index := m.open[i]
		c := &m.chunks[index]
		switch {
		case c.phase == missing || c.asked || c.recalled || m.led(c):
			continue
		case c.phase >= sent:
			if !m.notify(m.route(c).Parent, Action{Kind: SendRecall, Index: index}) {
				return
			}
			c.recalled = true
		case c.phase == queued:
			m.unqueue(index, c)
		default:
			c.phase = missing
			m.shut(index, c)
			m.emit(Action{Kind: Discard, Index: index})
		}
		return
	}
}

// Recall records that a child recalls its sum of a chunk. The sum is NACKed, unless it is part of a sum that was sent. In that case
// the missing sums are also requested from this rack, whose workers have as much room, and it recalls its own sum if necessary.
func (m *Reducer) Recall(rack int, index uint32) {
	m.begin()
	if m.failed {
		return
	}
	if int(index) >= len(m.chunks) || !slices.Contains(m.route(&m.chunks[index]).Children, rack) {
		m.violate(rack, "recalled chunk %d of lane %d, which is not its own", index, m.cfg.Lane)
		return
	}
	switch c := &m.chunks[index]; {
	case m.has(c, rack):
		m.nack(rack, index, c)
	case c.phase == queued && !c.asked && !m.led(c):
		m.unqueue(index, c)
	}
}

// NACKed records that the parent has dropped a chunk's sum. The sum is sent again after others, unless it was recalled. A recalled
// sum is dropped with all its parts.
func (m *Reducer) NACKed(rack int, index uint32) {
	c := m.answered(rack, index, "NACKed")
	if c == nil {
		return
	}
	m.vacated(rack, c)
	if c.recalled {
		m.drop(index, c)
	} else {
		c.phase = queued
		m.peers[rack].sums.put(index)
	}
	m.flush(rack)
}
