package hierarchy

import (
	"errors"
	"fmt"
	"slices"
)

// ErrProtocol is wrapped by a peer's violation of the protocol between aggregators.
var ErrProtocol = errors.New("protocol violation between aggregators")

// epochMask bounds an epoch, which counts modulo 128 as in the immediate.
const epochMask = 127

// ActionKind is the kind of an action.
type ActionKind uint8

// These are the kinds.
const (
	// Combine adds the inputs into this rack's sum of the chunk.
	Combine ActionKind = iota
	// Finish adds the inputs and makes the sum the chunk's result, because this rack owns the chunk.
	Finish
	// SendSum sends the sum to rack Peer, into slot Slot there.
	SendSum
	// SendResult sends the result to rack Peer.
	SendResult
	// Return gives the result to the rack's workers.
	Return
	// Discard drops the rack's sum of the chunk. Its workers send their gradients again.
	Discard
	// Follow makes the rack's workers send the chunk before others.
	Follow
	// SendRequest asks rack Peer to send its sum of the chunk before others.
	SendRequest
	// SendRecall asks rack Peer to NACK this rack's sum of the chunk, so that others find room.
	SendRecall
	// SendNACK notifies rack Peer that its sum of the chunk was dropped. It answers the sum.
	SendNACK
	// SendTaken notifies rack Peer that its sum of the chunk is part of this rack's, and that its slot here is free.
	SendTaken
	// Violate ends the job, because rack Peer broke the protocol. Err names the violation.
	Violate
)

// Action is an instruction to the caller (aggregate/uplink).
type Action struct {
	Kind      ActionKind
	Index     uint32
	Epoch     uint8 // of the message
	Broadcast bool  // values go down and no gradients up: a root's initial values, or the parameters of a refresh
	Peer      int
	Slot      int // of SendSum: at Peer; of an answer: here, or -1 if it is free already
	Err       error
}

// ReducerConfig describes a reducer.
type ReducerConfig struct {
	Topology
	Lane   int // for error messages
	Rack   int
	Window int // sums that one rack may have at another, unanswered
	Sums   int // largest number of this rack's own sums that have no result: the buffers of the lane
	Sends  int // entries of the send queue to each peer
}

// phase is the progress of this rack's sum of a chunk. It grows until the result comes, unless the sum is dropped or sent again.
type phase uint8

const (
	missing phase = iota // the rack's workers have not completed their sum
	ready                // it is complete, and some of the children's sums are missing
	queued               // the children's sums are part of it, and it waits for room at the parent
	sent                 // it was sent to the parent, where it has a slot
	taken                // it is part of the parent's sum, and its slot is free
)

// chunkState is the state of a chunk.
type chunkState struct {
	owner     uint16
	epoch     uint8 // the last epoch that was finished
	phase     phase
	broadcast bool // a broadcast is under way
	asked     bool // other racks wait for this rack's sum
	recalled  bool // this rack has recalled its sum from the parent
	// agreed marks a chunk that the children's windows must hold while racks are stalled.
	agreed bool
	have   uint16 // number of children's sums that are here and not part of the rack's
	slot   uint16 // at the parent, if sent
	row    int32  // index of the row of the children's slots, or none without a child's sum
}

// next returns the epoch of a chunk's next result. A broadcast repeats the last one.
func (c *chunkState) next(broadcast bool) uint8 {
	if broadcast {
		return c.epoch
	}
	return (c.epoch + 1) & epochMask
}

// peer is the reducer's view of another rack.
type peer struct {
	remoteSlots queue[uint16] // free slots for this rack's sums there, in the order in which they became free
	localSlots  queue[uint16] // free slots for its sums here, in that order
	sends       int           // free entries of the send queue
	// answers holds answers to its sums that wait for room, oldest first. They go before sums. An answer frees its slot, if any.
	answers queue[Action]
	sums    queue[uint32] // chunks whose sums wait for room there, oldest first
	// notices counts the messages that TakeSend has let through. Every message that arrives is taken for one of them, because nobody
	// records which messages are in flight. So it bounds notices only while nothing else arrives, which is when racks stall.
	notices int
}

// Reducer decides what becomes of one lane's chunks above the rack. It is a pure machine: events go in, actions come out. A chunk
// goes up a tree of racks to its owner and comes back down. A [Route] is a rack's part in that.
//
// A rack's sum holds a slot at its parent until it is part of the parent's own, or until the result answers it, so the sums under
// way are bounded. Slots carry no numbers, because both ends know the order of messages and of answers. A rack keeps its sum until
// it has the result, because the parent may NACK the sum. A chunk has one result at a time on its way down: its next needs a sum of
// every rack, and a rack sends that only when it has the result before.
type Reducer struct {
	cfg     ReducerConfig
	plan    []plan // by owner
	chunks  []chunkState
	rows    []uint16 // of slots, by rack
	free    []int32  // unused rows
	peers   []peer   // by rack
	slots   []uint16 // slots of the chunk that was gathered last, by rack, plus 1
	open    []uint32 // chunks with at least one sum, oldest first
	moved   bool     // a chunk was finished since the last tick
	idle    int      // counted ticks since a chunk was finished
	failed  bool
	actions []Action
}

// NewReducer makes a reducer without chunks.
func NewReducer(cfg ReducerConfig) *Reducer {
	m := &Reducer{cfg: cfg, peers: make([]peer, cfg.Racks), slots: make([]uint16, cfg.Racks)}
	m.SetShape(cfg.Shape)
	for r := range m.peers {
		p := &m.peers[r]
		p.sends = cfg.Sends
		p.answers, p.sums = make(queue[Action], 0, cfg.Window+cfg.Sums), make(queue[uint32], 0, cfg.Sums)
		p.remoteSlots, p.localSlots = make(queue[uint16], 0, cfg.Window), make(queue[uint16], 0, cfg.Window)
		for slot := range cfg.Window {
			p.remoteSlots.put(uint16(slot))
			p.localSlots.put(uint16(slot))
		}
	}
	rows := cfg.Window * max(cfg.Racks-1, 1)
	m.rows = make([]uint16, rows*cfg.Racks)
	for i := range rows {
		m.free = append(m.free, int32(i))
	}
	return m
}

// plan is this rack's part in the journeys of an owner's chunks.
type plan struct {
	route Route
	lead  int // the rack from which the leader's sum comes
}

// SetShape changes the shape of a reducer without chunks.
func (m *Reducer) SetShape(s Shape) {
	if len(m.chunks) > 0 {
		panic(fmt.Sprintf("hierarchy: shape %v for %d chunks on their way in shape %v", s, len(m.chunks), m.cfg.Shape))
	}
	m.cfg.Shape = s
	m.plan = m.plan[:0]
	for owner := range m.cfg.Racks {
		m.plan = append(m.plan, plan{m.cfg.Route(m.cfg.Rack, owner), m.cfg.leads(m.cfg.Rack, owner)})
	}
}

// Add appends chunks by their owners.
func (m *Reducer) Add(owners []int) {
	for _, o := range owners {
		m.chunks = append(m.chunks, chunkState{owner: uint16(o), row: none})
	}
}

// Route returns this rack's part in a chunk's journey.
func (m *Reducer) Route(index uint32) *Route { return m.route(&m.chunks[index]) }

// Owes reports whether an answer to a rack waits for room.
func (m *Reducer) Owes(rack int) bool { return len(m.peers[rack].answers) > 0 }

// OwesAny reports whether an answer to any rack waits for room.
func (m *Reducer) OwesAny() bool {
	return slices.ContainsFunc(m.peers, func(p peer) bool { return len(p.answers) > 0 })
}

// Actions returns the actions of the last event, in order.
func (m *Reducer) Actions() []Action { return m.actions }

// Slot returns the slot in this rack of a child's sum of the chunk that was combined or finished last ([Combine], [Finish]).
func (m *Reducer) Slot(rack int) int { return int(m.slots[rack]) - 1 }

func (m *Reducer) begin() { m.actions = m.actions[:0] }

func (m *Reducer) route(c *chunkState) *Route { return &m.plan[c.owner].route }

// Ready records that the rack's own sum of a chunk is complete, or its part of a broadcast.
func (m *Reducer) Ready(index uint32, broadcast bool) {
	m.begin()
	c := &m.chunks[index]
	if c.phase != missing {
		panic(fmt.Sprintf("hierarchy: chunk %d is ready twice", index))
	}
	if c.have > 0 && c.broadcast != broadcast {
		m.violate(m.child(c), "%s chunk %d of lane %d while rack %d does not", verbOf(c.broadcast), index, m.cfg.Lane, m.cfg.Rack)
		return
	}
	m.opened(index, c)
	c.phase, c.broadcast = ready, broadcast
	m.gathered(index, c)
}

// opened lists a chunk as open if it has no sum yet. It is called before a sum is recorded.
func (m *Reducer) opened(index uint32, c *chunkState) {
	if c.phase == missing && c.have == 0 {
		m.open = append(m.open, index)
	}
}

// Broadcasts reports whether one of n chunks from the first on is being broadcast.
func (m *Reducer) Broadcasts(first, n uint32) bool {
	return slices.ContainsFunc(m.open, func(i uint32) bool { return first <= i && i < first+n && m.chunks[i].broadcast })
}

// shut takes a chunk off the open ones if it has no sums left.
func (m *Reducer) shut(index uint32, c *chunkState) {
	if c.phase == missing && c.have == 0 {
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

// child returns a rack whose sum of the chunk has arrived.
func (m *Reducer) child(c *chunkState) int {
	for _, r := range m.route(c).Children {
		if m.row(c)[r] != 0 {
			return r
		}
	}
	return none
}

// row returns the children's slots, plus 1, by rack. It is 0 for a child without a sum.
func (m *Reducer) row(c *chunkState) []uint16 {
	return m.rows[int(c.row)*m.cfg.Racks:][:m.cfg.Racks]
}

// Sum takes a child's sum.
func (m *Reducer) Sum(rack int, index uint32, epoch uint8, broadcast bool) {
	m.begin()
	if m.failed {
		return
	}
	if int(index) >= len(m.chunks) {
		m.violate(rack, "sent chunk %d of lane %d, which has %d", index, m.cfg.Lane, len(m.chunks))
		return
	}
	c := &m.chunks[index]
	p := &m.peers[rack]
	expect := c.next(broadcast)
	switch {
	case len(p.localSlots) == 0:
		m.violate(rack, "sent more than its window of %d", m.cfg.Window)
	case !slices.Contains(m.route(c).Children, rack):
		m.violate(rack, "sent chunk %d of lane %d, which rack %d sums for rack %d", index, m.cfg.Lane, m.cfg.Rack, c.owner)
	case epoch != expect:
		m.violate(rack, "sent chunk %d of lane %d for epoch %d, expected %d", index, m.cfg.Lane, epoch, expect)
	case (c.have > 0 || c.phase != missing) && c.broadcast != broadcast:
		m.violate(rack, "%s chunk %d of lane %d while others do not", verbOf(broadcast), index, m.cfg.Lane)
	case m.has(c, rack) || c.phase >= queued:
		m.violate(rack, "sent chunk %d of lane %d for epoch %d twice", index, m.cfg.Lane, epoch)
	default:
		if c.row == none {
			c.row = m.free[len(m.free)-1]
			m.free = m.free[:len(m.free)-1]
			clear(m.row(c))
		}
		m.opened(index, c)
		m.row(c)[rack] = p.localSlots.take() + 1
		c.broadcast = broadcast
		c.have++
		m.gathered(index, c)
	}
}

// gathered begins the next step of a chunk if all its sums have arrived.
func (m *Reducer) gathered(index uint32, c *chunkState) {
	r := m.route(c)
	if c.phase == missing || int(c.have) < len(r.Children) {
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
	c.phase = queued
	if c.have > 0 {
		m.emit(Action{Kind: Combine, Index: index, Broadcast: c.broadcast})
		for _, child := range r.Children {
			m.answer(child, Action{Kind: SendTaken, Index: index, Slot: int(m.row(c)[child]) - 1})
		}
		m.empty(c)
	}
	m.peers[r.Parent].sums.put(index)
	m.flush(r.Parent)
}

// answer sends an answer to a child if it has room. Otherwise it queues the answer.
func (m *Reducer) answer(child int, a Action) {
	a.Peer = child
	m.peers[child].answers.put(a)
	m.flush(child)
}

// finished passes a result on to the children and to the rack's own workers.
func (m *Reducer) finished(index uint32, c *chunkState) {
	c.epoch = c.next(c.broadcast)
	m.moved = true
	m.emit(Action{Kind: Return, Index: index, Broadcast: c.broadcast})
	for _, child := range m.route(c).Children {
		a := Action{Kind: SendResult, Index: index, Slot: none, Broadcast: c.broadcast}
		if c.phase < queued { // at the owner; in other racks SendTaken has freed the slot
			a.Slot = int(m.row(c)[child]) - 1
		}
		m.answer(child, a)
	}
	c.asked = false
	m.reset(index, c)
}

// reset drops all sums of a chunk.
func (m *Reducer) reset(index uint32, c *chunkState) {
	c.phase, c.recalled = missing, false
	m.empty(c)
	m.shut(index, c)
}

// empty drops the children's sums of a chunk.
func (m *Reducer) empty(c *chunkState) {
	c.have = 0
	if c.row != none {
		m.free = append(m.free, c.row)
		c.row = none
	}
}

// answered begins an event of a parent about a sum that it was sent. It returns nil if the parent was not sent the sum.
func (m *Reducer) answered(rack int, index uint32, verb string) *chunkState {
	m.begin()
	switch {
	case m.failed:
		return nil
	case int(index) >= len(m.chunks) || m.chunks[index].phase < sent || m.route(&m.chunks[index]).Parent != rack:
		m.violate(rack, "%s chunk %d of lane %d, which it was not sent", verb, index, m.cfg.Lane)
		return nil
	}
	return &m.chunks[index]
}

// Result takes a chunk's result from its parent.
func (m *Reducer) Result(rack int, index uint32, epoch uint8, broadcast bool) {
	c := m.answered(rack, index, "answered")
	if c == nil {
		return
	}
	expect := c.next(c.broadcast)
	if epoch != expect || broadcast != c.broadcast {
		m.violate(rack, "answered chunk %d of lane %d for epoch %d, expected %d", index, m.cfg.Lane, epoch, expect)
		return
	}
	m.vacated(rack, c)
	m.finished(index, c)
	m.flush(rack)
}

// vacated records that a sum's slot at the parent is free, unless that is known.
func (m *Reducer) vacated(parent int, c *chunkState) {
	if c.phase == sent {
		m.peers[parent].remoteSlots.put(c.slot)
	}
	c.phase = taken
}

// Taken records that this rack's sum of a chunk is part of the parent's.
func (m *Reducer) Taken(rack int, index uint32) {
	c := m.answered(rack, index, "took")
	switch {
	case c == nil:
	case c.phase == taken:
		m.violate(rack, "took chunk %d of lane %d twice", index, m.cfg.Lane)
	default:
		m.vacated(rack, c)
		m.flush(rack)
	}
}

// Delivered records that n messages to a rack have arrived.
func (m *Reducer) Delivered(rack, n int) {
	m.begin()
	p := &m.peers[rack]
	p.notices = max(0, p.notices-n)
	if p.sends += n; p.sends > m.cfg.Sends {
		panic(fmt.Sprintf("hierarchy: rack %d has received more messages than were sent", rack))
	}
	m.flush(rack)
}

// flush sends the messages to a rack that wait and have room.
func (m *Reducer) flush(rack int) {
	p := &m.peers[rack]
	for ; p.sends > 0 && len(p.answers) > 0; p.sends-- {
		a := p.answers.take()
		if a.Slot != none {
			p.localSlots.put(uint16(a.Slot))
		}
		a.Epoch = m.chunks[a.Index].epoch
		m.emit(a)
	}
	for ; p.sends > 0 && len(p.sums) > 0 && len(p.remoteSlots) > 0; p.sends-- {
		index := p.sums.take()
		c := &m.chunks[index]
		c.slot, c.phase = p.remoteSlots.take(), sent
		m.emit(Action{Kind: SendSum, Index: index, Peer: rack, Slot: int(c.slot), Epoch: c.next(c.broadcast), Broadcast: c.broadcast})
	}
}

func (m *Reducer) violate(rack int, format string, args ...any) {
	m.failed = true
	m.emit(Action{Kind: Violate, Peer: rack, Err: fmt.Errorf("%w: rack %d %w", ErrProtocol, rack, fmt.Errorf(format, args...))})
}

func (m *Reducer) emit(a Action) { m.actions = append(m.actions, a) }

// has reports whether a child's sum of a chunk is in this rack.
func (m *Reducer) has(c *chunkState, child int) bool { return c.have > 0 && m.row(c)[child] != 0 }
