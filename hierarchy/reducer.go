package hierarchy

import (
	"errors"
	"fmt"
	"slices"
)

// ErrProtocol is what a peer's violation of the protocol between aggregators wraps.
var ErrProtocol = errors.New("protocol violation between aggregators")

// epochMask bounds an epoch, which counts modulo 128 as the immediate does.
const epochMask = 127

// ActionKind says what an action asks of the lane.
type ActionKind uint8

// The actions.
const (
	// Combine adds the inputs into this rack's partial sum of the chunk.
	Combine ActionKind = iota
	// Finish adds the inputs and makes them the chunk's result: this rack owns it.
	Finish
	// SendPartial sends the partial sum to rack Peer, into slot Slot there.
	SendPartial
	// SendResult sends the result to rack Peer.
	SendResult
	// Return gives the result to the rack's workers.
	Return
	// Discard gives the rack's sum of the chunk up: its workers send their gradients again.
	Discard
	// Follow makes the rack's workers send the chunk before others.
	Follow
	// SendRequest asks rack Peer to send its sum of the chunk before others.
	SendRequest
	// SendRecall asks rack Peer to NACK this rack's sum of the chunk, so that others find room.
	SendRecall
	// SendNACK tells rack Peer that its sum of the chunk is not kept. It answers the sum.
	SendNACK
	// SendTaken tells rack Peer that its sum of the chunk is part of this rack's, and its slot here free.
	SendTaken
	// Violate ends the job: rack Peer broke the protocol, as Err says.
	Violate
)

// Action is one thing for the lane to do.
type Action struct {
	Kind      ActionKind
	Index     uint32
	Epoch     uint8 // of the message
	Broadcast bool  // a broadcast of initial values, not gradients
	Peer      int
	Slot      int
	Err       error
}

// ReducerConfig is what a reducer is made of.
type ReducerConfig struct {
	Topology
	Lane   int // for the texts of errors
	Rack   int
	Window int // partial sums that one rack may have at another, unanswered
	Open   int // sums of its own that the rack keeps at most
	Sends  int // entries of the send queue to each peer
}

// chunkState is the state of a chunk.
type chunkState struct {
	owner     uint16
	epoch     uint8 // finished
	shape     Shape
	to        Shape // from the epoch turn on, if it is another
	turn      uint8
	own       bool // this rack's sum is there
	whole     bool // the children's sums are part of it, and it can go to the parent
	sent      bool // it was sent there
	taken     bool // it has no slot there any more
	broadcast bool // what is under way is a broadcast
	asked     bool // others wait for this rack's sum
	recalled  bool // this rack has recalled its sum from the parent
	// What the children's windows are to hold while racks are stalled.
	agreed bool
	have   uint16
	slot   uint16 // at the parent, unless taken
	row    int32  // where the children's slots are kept; none: no child's sum is there
}

// answer is an answer to a child's sum that waits for room.
type answer struct {
	index     uint32
	slot      int32 // of the sum, free with this answer; none: it is free already
	kind      ActionKind
	broadcast bool
}

// peer is the reducer's view of another rack.
type peer struct {
	there   ring[uint16] // free slots for this rack's sums there, in the order in which they became free
	here    ring[uint16] // the same of its slots here
	sends   int          // free entries of the send queue
	answers ring[answer] // what waits for room, oldest first; answers go first
	sums    ring[uint32]
	notices int // requests and recalls on their way
}

// Reducer decides what becomes of one lane's chunks above the rack. It is a pure machine: events go in, actions come out. A chunk
// goes up a tree of racks to its owner and comes back down; a [Route] is a rack's part in that.
//
// A rack's sum holds a slot at its parent until it is part of the parent's own, or until the result answers it, so what is under
// way is bounded. Slots carry no numbers: both ends know the order of messages and of answers. A rack keeps its sum until the
// result is there.
type Reducer struct {
	cfg     ReducerConfig
	plans   [shapes]plan // of the shapes that chunks take
	chunks  []chunkState
	rows    []uint16 // of slots, by rack
	free    []int32  // unused rows
	peers   []peer   // by rack
	slots   []uint16 // those of the chunk that was gathered last, by rack, plus 1
	open    []uint32 // chunks of which some sum is there, oldest first
	early   []early  // sums of epochs that chunks turn at and have not come to here
	stall   stall
	failed  bool
	actions []Action
}

// NewReducer makes a reducer without chunks.
func NewReducer(cfg ReducerConfig) *Reducer {
	m := &Reducer{cfg: cfg, peers: make([]peer, cfg.Racks), slots: make([]uint16, cfg.Racks)}
	m.plan(cfg.Shape)
	for r := range m.peers {
		p := &m.peers[r]
		p.sends = cfg.Sends
		p.there, p.here = fullRing(cfg.Window), fullRing(cfg.Window)
		p.answers, p.sums = newRing[answer](cfg.Window+cfg.Open), newRing[uint32](cfg.Open)
	}
	rows := cfg.Window * max(cfg.Racks-1, 1)
	m.rows = make([]uint16, rows*cfg.Racks)
	for i := range rows {
		m.free = append(m.free, int32(i))
	}
	return m
}

// plan is this rack's part in a shape, by the chunk's owner.
type plan struct {
	routes []Route
	lead   []int // the rack by which the leader's sum comes
}

// plan finds this rack's part in the journeys of all owners' chunks.
func (m *Reducer) plan(s Shape) {
	if m.plans[s].routes != nil {
		return
	}
	t := m.cfg.Topology
	t.Shape = s
	for owner := range t.Racks {
		m.plans[s].routes = append(m.plans[s].routes, t.Route(m.cfg.Rack, owner))
		m.plans[s].lead = append(m.plans[s].lead, t.leads(m.cfg.Rack, owner))
	}
}

// SetShape gives a reducer without chunks another shape.
func (m *Reducer) SetShape(s Shape) {
	if len(m.chunks) > 0 {
		panic(fmt.Sprintf("hierarchy: shape %v for %d chunks on their way in shape %v", s, len(m.chunks), m.cfg.Shape))
	}
	m.cfg.Shape = s
	m.plan(s)
}

// Add appends chunks by their owners.
func (m *Reducer) Add(owners []int) {
	for _, o := range owners {
		m.chunks = append(m.chunks, chunkState{owner: uint16(o), row: none, shape: m.cfg.Shape, to: m.cfg.Shape})
	}
}

// Route returns this rack's part in a chunk's journey.
func (m *Reducer) Route(index uint32) *Route { return m.route(&m.chunks[index]) }

// Owes reports whether an answer to a rack waits for room.
func (m *Reducer) Owes(rack int) bool { return m.peers[rack].answers.len() > 0 }

// Actions returns what the last event asks for, in order.
func (m *Reducer) Actions() []Action { return m.actions }

// Slot returns the slot here in which a child's sum lies, of the chunk that [Combine] or [Finish] is about.
func (m *Reducer) Slot(rack int) int { return int(m.slots[rack]) - 1 }

func (m *Reducer) begin() { m.actions = m.actions[:0] }

func (m *Reducer) route(c *chunkState) *Route { return &m.plans[c.shape].routes[c.owner] }

// at returns a chunk that an event is about, in the shape that it takes now.
func (m *Reducer) at(index uint32) *chunkState {
	c := &m.chunks[index]
	if c.shape != c.to && after(c.epoch) == c.turn && !c.own && c.have == 0 {
		c.shape = c.to
		m.takeEarly(index, c)
	}
	return c
}

// Ready takes note that the rack's own sum of a chunk is there, or its part of a broadcast.
func (m *Reducer) Ready(index uint32, broadcast bool) {
	m.begin()
	c := m.at(index)
	if c.own || c.sent {
		panic(fmt.Sprintf("hierarchy: chunk %d is ready twice", index))
	}
	if c.have > 0 && c.broadcast != broadcast {
		m.violate(m.child(c), "%s chunk %d of lane %d while rack %d does not", verbOf(c.broadcast), index, m.cfg.Lane, m.cfg.Rack)
		return
	}
	m.opened(index, c)
	c.own, c.broadcast = true, broadcast
	m.gathered(index, c)
}

// opened takes note of a chunk's first sum.
func (m *Reducer) opened(index uint32, c *chunkState) {
	if !c.own && c.have == 0 {
		m.open = append(m.open, index)
	}
}

// shut takes note that no sum of a chunk is there any more.
func (m *Reducer) shut(index uint32, c *chunkState) {
	if !c.own && c.have == 0 {
		i := slices.Index(m.open, index)
		m.open = slices.Delete(m.open, i, i+1)
	}
}

func verbOf(broadcast bool) string {
	if broadcast {
		return "broadcasts"
	}
	return "sums"
}

// child returns a rack whose sum of the chunk is there.
func (m *Reducer) child(c *chunkState) int {
	for _, r := range m.route(c).Children {
		if m.row(c)[r] != 0 {
			return r
		}
	}
	return none
}

// row is the children's slots, plus 1, by rack; 0: its sum is not there.
func (m *Reducer) row(c *chunkState) []uint16 {
	return m.rows[int(c.row)*m.cfg.Racks:][:m.cfg.Racks]
}

// NextSlot returns the slot here that a rack's next partial sum lies in.
func (m *Reducer) NextSlot(rack int) (int, bool) {
	p := &m.peers[rack]
	if p.here.len() == 0 {
		return 0, false
	}
	return int(*p.here.at(0)), true
}

// Partial takes a child's partial sum.
func (m *Reducer) Partial(rack int, index uint32, epoch uint8, broadcast bool) {
	m.begin()
	if m.failed {
		return
	}
	if int(index) >= len(m.chunks) {
		m.violate(rack, "sent chunk %d of lane %d, which has %d", index, m.cfg.Lane, len(m.chunks))
		return
	}
	c := m.at(index)
	p := &m.peers[rack]
	expect := after(c.epoch)
	if broadcast {
		expect = c.epoch
	}
	switch {
	case p.here.len() == 0:
		m.violate(rack, "sent more than its window of %d", m.cfg.Window)
		return
	case c.shape != c.to && epoch == after(expect) && after(after(c.epoch)) == c.turn && m.turnsTo(c, rack):
		m.early = append(m.early, early{index, uint16(rack), *p.here.at(0), broadcast})
		p.here.drop()
		return
	case !slices.Contains(m.route(c).Children, rack):
		m.violate(rack, "sent chunk %d of lane %d, which rack %d sums for rack %d", index, m.cfg.Lane, m.cfg.Rack, c.owner)
		return
	case epoch != expect:
		m.violate(rack, "sent chunk %d of lane %d for epoch %d, expected %d", index, m.cfg.Lane, epoch, expect)
		return
	case (c.have > 0 || c.own) && c.broadcast != broadcast:
		m.violate(rack, "%s chunk %d of lane %d while others do not", verbOf(broadcast), index, m.cfg.Lane)
		return
	}
	if m.has(c, rack) {
		m.violate(rack, "sent chunk %d of lane %d for epoch %d twice", index, m.cfg.Lane, epoch)
		return
	}
	slot := *p.here.at(0)
	p.here.drop()
	m.take(rack, index, c, slot, broadcast)
	m.gathered(index, c)
}

// take takes a child's sum into a chunk.
func (m *Reducer) take(rack int, index uint32, c *chunkState, slot uint16, broadcast bool) {
	if c.row == none {
		c.row = m.free[len(m.free)-1]
		m.free = m.free[:len(m.free)-1]
		clear(m.row(c))
	}
	m.opened(index, c)
	m.row(c)[rack] = slot + 1
	c.broadcast = broadcast
	c.have++
}

// gathered takes the next step with a chunk if all sums are there.
func (m *Reducer) gathered(index uint32, c *chunkState) {
	r := m.route(c)
	if !c.own || int(c.have) < len(r.Children) {
		return
	}
	if c.have > 0 {
		copy(m.slots, m.row(c))
	}
	if r.Parent < 0 {
		m.emit(Action{Kind: Finish, Index: index, Broadcast: c.broadcast})
		m.finished(index, c)
		return
	}
	c.whole = true
	if c.have > 0 {
		m.emit(Action{Kind: Combine, Index: index, Broadcast: c.broadcast})
		for _, child := range r.Children {
			m.answer(child, answer{index: index, slot: int32(m.row(c)[child]) - 1, kind: SendTaken})
		}
		m.empty(c)
	}
	m.peers[r.Parent].sums.put(index)
	m.flush(r.Parent)
}

// answer sends an answer to a child, if there is room.
func (m *Reducer) answer(child int, a answer) {
	m.peers[child].answers.put(a)
	m.flush(child)
}

// finished passes a result on to the children and to the rack's own workers.
func (m *Reducer) finished(index uint32, c *chunkState) {
	if !c.broadcast {
		c.epoch = after(c.epoch)
	}
	m.stall.finished++
	m.emit(Action{Kind: Return, Index: index, Broadcast: c.broadcast})
	for _, child := range m.route(c).Children {
		a := answer{index: index, slot: none, kind: SendResult, broadcast: c.broadcast}
		if !c.whole {
			a.slot = int32(m.row(c)[child]) - 1
		}
		m.answer(child, a)
	}
	c.asked = false
	m.reset(index, c)
}

// reset gives up all sums of a chunk.
func (m *Reducer) reset(index uint32, c *chunkState) {
	c.own, c.whole, c.sent, c.taken, c.recalled = false, false, false, false, false
	m.empty(c)
	m.shut(index, c)
}

// empty gives up the children's sums of a chunk.
func (m *Reducer) empty(c *chunkState) {
	c.have = 0
	if c.row != none {
		m.free = append(m.free, c.row)
		c.row = none
	}
}

// Result takes a chunk's result from its parent.
func (m *Reducer) Result(rack int, index uint32, epoch uint8, broadcast bool) {
	m.begin()
	if m.failed {
		return
	}
	if int(index) >= len(m.chunks) || !m.chunks[index].sent || m.route(&m.chunks[index]).Parent != rack {
		m.violate(rack, "answered chunk %d of lane %d, which it was not sent", index, m.cfg.Lane)
		return
	}
	c := &m.chunks[index]
	expect := c.epoch
	if !c.broadcast {
		expect = after(c.epoch)
	}
	if epoch != expect || broadcast != c.broadcast {
		m.violate(rack, "answered chunk %d of lane %d for epoch %d, expected %d", index, m.cfg.Lane, epoch, expect)
		return
	}
	m.vacated(rack, c)
	m.finished(index, c)
	m.flush(rack)
}

// vacated takes note that a sum's slot at the parent is free, unless that is known.
func (m *Reducer) vacated(parent int, c *chunkState) {
	if !c.taken {
		m.peers[parent].there.put(c.slot)
	}
	c.taken = true
}

// Taken takes note that this rack's sum of a chunk is part of the parent's.
func (m *Reducer) Taken(rack int, index uint32) {
	m.begin()
	if m.failed {
		return
	}
	if int(index) >= len(m.chunks) || !m.chunks[index].sent || m.chunks[index].taken || m.route(&m.chunks[index]).Parent != rack {
		m.violate(rack, "took chunk %d of lane %d, which it was not sent", index, m.cfg.Lane)
		return
	}
	m.vacated(rack, &m.chunks[index])
	m.flush(rack)
}

// Sent takes note that n messages to a rack have arrived.
func (m *Reducer) Sent(rack, n int) {
	m.begin()
	p := &m.peers[rack]
	p.notices = max(0, p.notices-n)
	if p.sends += n; p.sends > m.cfg.Sends {
		panic(fmt.Sprintf("hierarchy: rack %d has received more messages than were sent", rack))
	}
	m.flush(rack)
}

// flush sends what waits for a rack and has room.
func (m *Reducer) flush(rack int) {
	p := &m.peers[rack]
	for ; p.sends > 0 && p.answers.len() > 0; p.sends-- {
		a := *p.answers.at(0)
		p.answers.drop()
		if a.slot != none {
			p.here.put(uint16(a.slot))
		}
		m.emit(Action{
			Kind: a.kind, Index: a.index, Peer: rack, Slot: int(a.slot), Epoch: m.chunks[a.index].epoch, Broadcast: a.broadcast,
		})
	}
	for ; p.sends > 0 && p.sums.len() > 0 && p.there.len() > 0; p.sends-- {
		index := *p.sums.at(0)
		p.sums.drop()
		c := &m.chunks[index]
		c.slot, c.sent, c.taken = *p.there.at(0), true, false
		p.there.drop()
		epoch := c.epoch
		if !c.broadcast {
			epoch = after(epoch)
		}
		m.emit(Action{Kind: SendPartial, Index: index, Peer: rack, Slot: int(c.slot), Epoch: epoch, Broadcast: c.broadcast})
	}
}

func after(epoch uint8) uint8 { return (epoch + 1) & epochMask }

func (m *Reducer) violate(rack int, format string, args ...any) {
	m.failed = true
	m.emit(Action{Kind: Violate, Peer: rack, Err: fmt.Errorf("%w: rack %d %w", ErrProtocol, rack, fmt.Errorf(format, args...))})
}

func (m *Reducer) emit(a Action) { m.actions = append(m.actions, a) }

// early is a child's sum of the epoch at which a chunk turns. A child can come to it first, as the result of the epoch before comes
// to it another way.
type early struct {
	index     uint32
	rack      uint16
	slot      uint16
	broadcast bool
}

// turnsTo reports whether a rack is a child of this one in the shape that a chunk turns to.
func (m *Reducer) turnsTo(c *chunkState, rack int) bool {
	return slices.Contains(m.plans[c.to].routes[c.owner].Children, rack)
}

// takeEarly takes the early sums of a chunk that has turned.
func (m *Reducer) takeEarly(index uint32, c *chunkState) {
	for i := 0; i < len(m.early); {
		e := m.early[i]
		if e.index != index {
			i++
			continue
		}
		m.early = slices.Delete(m.early, i, i+1)
		rack := int(e.rack)
		switch {
		case c.have > 0 && c.broadcast != e.broadcast:
			m.violate(rack, "%s chunk %d of lane %d while others do not", verbOf(e.broadcast), index, m.cfg.Lane)
		case m.has(c, rack):
			m.violate(rack, "sent chunk %d of lane %d twice", index, m.cfg.Lane)
		default:
			m.take(rack, index, c, e.slot, e.broadcast)
		}
	}
}

// has reports whether a child's sum of a chunk lies here.
func (m *Reducer) has(c *chunkState, child int) bool { return c.have > 0 && m.row(c)[child] != 0 }
