package hierarchy

import "slices"

// Racks may get their chunks complete in different orders, because their workers push in different orders. Windows are
// bounded, so each rack can fill with chunks that another has not sent: a deadlock that order alone causes, as among the
// workers of one rack. It is broken in the same way. Rack 0 leads. Where its sum of a chunk is there and others are missing,
// they are sent a request for theirs, and pass it on to their workers; one whose workers have no room recalls a sum that
// nobody asked it for, which its workers then send again later. Nothing is recalled that has rack 0's sum, so each chunk that
// it has sent is finished after finitely many ticks.

const (
	// followAfter is how many counted ticks pass without a finished chunk before the leader is followed, and between two requests.
	followAfter = 4
	// requestsPerTick bounds the chunks that a tick asks for, oldest first.
	requestsPerTick = 8
	// mostNotices bounds the requests and recalls on their way to a rack: they must find posted receives.
	mostNotices = 12
)

// Idle returns how many counted ticks have passed without a finished chunk.
func (m *Reducer) Idle() int { return m.stall.idle }

// Awaited adds to counts, by rack, the chunks that wait for its sum or for its result.
func (m *Reducer) Awaited(counts []int) {
	for _, index := range m.open {
		c := &m.chunks[index]
		if c.sent {
			counts[m.route(c).Parent]++
			continue
		}
		if !c.own {
			counts[m.cfg.Rack]++
		}
		for _, child := range m.route(c).Children {
			if !c.whole && !m.has(c, child) {
				counts[child]++
			}
		}
	}
}

// Open returns how many chunks wait for sums or for their results.
func (m *Reducer) Open() int { return len(m.open) }

// Tick looks for chunks that others wait for and asks for them. counts says that enough time has passed since the last tick that
// counted for every rack to have done something.
func (m *Reducer) Tick(counts bool) {
	m.begin()
	for i := 0; i < len(m.early); {
		n := len(m.early)
		if m.at(m.early[i].index); len(m.early) == n {
			i++
		}
	}
	s := &m.stall
	if s.finished != s.before || len(m.open) == 0 {
		s.before, s.idle = s.finished, 0
		return
	}
	if counts {
		s.idle++
	}
	if !counts || s.idle%followAfter != 0 || m.failed {
		return
	}
	// The children's windows here are to hold the oldest chunks that the leader has sent, or that the parent waits for.
	agreed, asked := 0, 0
	for _, index := range m.open {
		c := &m.chunks[index]
		if c.agreed = agreed < m.cfg.Window && (m.led(c) || c.asked) && !c.sent; c.agreed {
			agreed++
		}
	}
	for i := 0; i < len(m.open) && asked < requestsPerTick; i++ {
		c := &m.chunks[m.open[i]]
		if m.queued(c) && m.led(c) && m.peers[m.route(c).Parent].there.len() == 0 {
			m.giveWay(m.route(c).Parent)
		}
		if (c.agreed || c.asked && !c.sent) && m.follow(m.open[i], c) {
			asked++
		}
	}
}

// makeRoom NACKs the youngest of a child's sums that is not agreed on, if the child's window here is full.
func (m *Reducer) makeRoom(child int) {
	if m.peers[child].here.len() > 0 {
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
	slot := int32(m.row(c)[child]) - 1
	m.row(c)[child] = 0
	if c.have--; c.have == 0 {
		m.empty(c)
	}
	m.shut(index, c)
	m.answer(child, answer{index: index, slot: slot, kind: SendNACK})
}

// giveUp gives up a rack's sum of a chunk of which its children's are part.
func (m *Reducer) giveUp(index uint32, c *chunkState) {
	m.reset(index, c)
	m.emit(Action{Kind: Discard, Index: index})
	for _, child := range m.route(c).Children {
		m.answer(child, answer{index: index, slot: none, kind: SendNACK})
	}
}

// unqueue gives up a sum that waits for room at the parent.
func (m *Reducer) unqueue(index uint32, c *chunkState) {
	sums := &m.peers[m.route(c).Parent].sums
	sums.advance(index)
	sums.drop()
	m.giveUp(index, c)
}

// led reports whether the leader's sum of a chunk is there.
func (m *Reducer) led(c *chunkState) bool {
	switch by := m.plans[c.shape].lead[c.owner]; {
	case by == none:
		return false
	case by == m.cfg.Rack:
		return c.own
	default:
		return c.whole || m.has(c, by)
	}
}

// follow asks for the sums of a chunk that are missing here, and reports whether any is.
func (m *Reducer) follow(index uint32, c *chunkState) (missing bool) {
	c.asked = true
	if !c.own {
		missing = true
		m.emit(Action{Kind: Follow, Index: index})
	}
	if c.whole {
		return false
	}
	for _, child := range m.route(c).Children {
		if !m.has(c, child) {
			missing = true
			if c.agreed {
				m.makeRoom(child)
			}
			m.notify(child, Action{Kind: SendRequest, Index: index, Peer: child})
		}
	}
	return missing
}

// Spare takes an entry of the send queue to a rack for a word of the lane's own, if there is room.
func (m *Reducer) Spare(rack int) bool {
	p := &m.peers[rack]
	if p.notices >= mostNotices || p.sends == 0 {
		return false
	}
	p.notices++
	p.sends--
	return true
}

// notify sends a request or a recall, if there is room: if not, a later tick will.
func (m *Reducer) notify(rack int, a Action) bool {
	room := m.Spare(rack)
	if room {
		m.emit(a)
	}
	return room
}

// Requested takes note that the parent waits for the sum of a chunk.
func (m *Reducer) Requested(rack int, index uint32) {
	m.begin()
	if m.failed {
		return
	}
	if int(index) < len(m.chunks) && m.comesTo(m.at(index), rack) {
		return // it asks again when the chunk has come that far
	}
	if int(index) >= len(m.chunks) || m.route(&m.chunks[index]).Parent != rack {
		m.violate(rack, "asked for chunk %d of lane %d, which is none of its own", index, m.cfg.Lane)
		return
	}
	// One that was sent meanwhile is on its way.
	if c := &m.chunks[index]; m.queued(c) {
		m.peers[rack].sums.advance(index)
	} else if !c.sent {
		m.follow(index, c)
	}
}

// Yield makes room in the rack's windows: it gives up the youngest of its sums that nobody has asked for.
func (m *Reducer) Yield() {
	m.begin()
	if m.failed {
		return
	}
	for i := len(m.open) - 1; i >= 0; i-- {
		index := m.open[i]
		c := &m.chunks[index]
		switch {
		case !c.own || c.asked || c.recalled || m.led(c):
			continue
		case c.sent:
			if !m.notify(m.route(c).Parent, Action{Kind: SendRecall, Index: index, Peer: m.route(c).Parent}) {
				return
			}
			c.recalled = true
		case c.whole:
			m.unqueue(index, c)
		default:
			c.own = false
			m.shut(index, c)
			m.emit(Action{Kind: Discard, Index: index})
		}
		return
	}
}

// queued reports whether a chunk's sum, with its children's, waits for room at the parent.
func (m *Reducer) queued(c *chunkState) bool { return c.whole && !c.sent }

// Recall takes note that a child recalls its sum of a chunk. It is NACKed, unless it is part of a sum that was sent: this rack,
// whose workers have as much room, is asked for what is missing too, and recalls that sum itself if need be.
func (m *Reducer) Recall(rack int, index uint32) {
	m.begin()
	if m.failed {
		return
	}
	if int(index) < len(m.chunks) && m.recallsEarly(rack, index) {
		return
	}
	if int(index) >= len(m.chunks) || !m.isChild(rack, m.at(index)) {
		m.violate(rack, "recalled chunk %d of lane %d, which is none of its own", index, m.cfg.Lane)
		return
	}
	c := &m.chunks[index]
	switch {
	case m.has(c, rack):
		m.nack(rack, index, c)
	case m.queued(c) && !c.asked && !m.led(c):
		m.unqueue(index, c)
	}
}

func (m *Reducer) isChild(rack int, c *chunkState) bool {
	for _, child := range m.route(c).Children {
		if child == rack {
			return true
		}
	}
	return false
}

// NACKed takes note that the parent has not kept a chunk's sum. It is sent again behind others, unless it was recalled: then all
// that is part of it is given up.
func (m *Reducer) NACKed(rack int, index uint32) {
	m.begin()
	if m.failed {
		return
	}
	if int(index) >= len(m.chunks) || !m.chunks[index].sent || m.route(&m.chunks[index]).Parent != rack {
		m.violate(rack, "NACKed chunk %d of lane %d, which it was not sent", index, m.cfg.Lane)
		return
	}
	c := &m.chunks[index]
	m.vacated(rack, c)
	if !c.recalled {
		c.sent = false
		m.peers[rack].sums.put(index)
		m.flush(rack)
		return
	}
	m.giveUp(index, c)
	m.flush(rack)
}

// comesTo reports whether a rack is the parent of this one only in the shape that a chunk turns to.
func (m *Reducer) comesTo(c *chunkState, rack int) bool {
	return c.shape != c.to && m.route(c).Parent != rack && m.plans[c.to].routes[c.owner].Parent == rack
}

// recallsEarly NACKs a sum that is recalled before its chunk has come to its epoch, and passes over the recall of one that was
// answered in the shape before. It reports whether it was one of these.
func (m *Reducer) recallsEarly(rack int, index uint32) bool {
	for i, e := range m.early {
		if e.index == index && int(e.rack) == rack {
			m.early = slices.Delete(m.early, i, i+1)
			m.answer(rack, answer{index: index, slot: int32(e.slot), kind: SendNACK})
			return true
		}
	}
	c := m.at(index)
	if c.shape != c.to || m.isChild(rack, c) {
		return false
	}
	for s := range m.plans {
		if p := &m.plans[s]; p.routes != nil && slices.Contains(p.routes[c.owner].Children, rack) {
			return true
		}
	}
	return false
}

// giveWay recalls the youngest sum from a parent that may be: one with rack 0's sum waits for its slot there. In one shape either
// all sums from here to there have rack 0's or none has; while chunks turn some may.
func (m *Reducer) giveWay(parent int) {
	for i := len(m.open) - 1; i >= 0; i-- {
		index := m.open[i]
		c := &m.chunks[index]
		if !c.sent || c.taken || c.asked || m.route(c).Parent != parent || m.led(c) {
			continue
		}
		if !c.recalled && m.notify(parent, Action{Kind: SendRecall, Index: index, Peer: parent}) {
			c.recalled = true
		}
		return
	}
}
