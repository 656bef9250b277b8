package reduce

// rowRank is one worker's end of a stream.
type rowRank struct {
	sent      uint32 // the row behind its last message, or 0 if its stream of the step has not begun
	epoch     uint8  // of the stream that it began last
	wants     bool   // it fetches the results of that stream
	took      bool   // it has taken the last block of that stream
	next      int32  // the block that it takes next, or none if it must be filled
	gradients slots  // messages with rows that are not merged
	fetches   slots
}

// keptPerStream is the number of slots that a worker keeps for a stream: for a gradient and a fetch.
const keptPerStream = 2

// rowStream is one sparse tensor's streams of all workers.
type rowStream struct {
	tensor uint32
	since  int64  // ns, the first message of the step
	done   uint32 // the row behind the last that is merged
	to     uint32 // the end of the merge under way
	begun  int    // workers whose streams of the step have begun
	takers int    // workers among them that want the results
	ready  int    // workers with gradients that are not merged
	waits  int    // what keeps merges waiting, above the rack: room for sums, and the last results of the step
	block  int32  // the block that is being filled, or none
	newest int32  // the youngest full block, or none if all of them are taken
	queued bool
	of     []rowRank // by worker
}

// missing reports whether a worker keeps the others of an open stream waiting.
func (s *rowStream) missing(rank int) bool {
	r := &s.of[rank]
	return r.gradients.first == none || r.next != none && r.fetches.first == none
}

// awaits reports whether the worker's oldest fetch waits for a block to be filled, or the worker wants no results.
func (r *rowRank) awaits() bool { return !r.wants || r.next == none && r.fetches.first != none }

// rowBlock is a full block of results.
type rowBlock struct {
	next int32 // the block behind it, or none if that is not full
	left int   // workers that have not taken it
	last bool  // it ends at the last row
}

type heldRows struct {
	RowMessage
	next int32 // slot of the worker's next message in the same list
}

// slots is a list of held messages of one worker, by their slots.
type slots struct{ first, last int32 }

// rowStreams holds the streams of all sparse tensors.
type rowStreams struct {
	all     []rowStream
	pending Queue[int32] // streams that may go on, or wait for room
	merging int32        // the stream whose rows are being merged, or none
	open    int          // streams with gradients of the step under way
	blocks  []rowBlock
	unused  []int32 // places of blocks
	held    []heldRows
	window  int
}

// add appends a tensor's streams and returns their number.
func (p *rowStreams) add(tensor uint32, workers, window, results int) int32 {
	if p.held == nil {
		p.window, p.merging, p.held = window, none, make([]heldRows, workers*window)
		p.blocks = make([]rowBlock, max(1, results/2))
		for i := range p.blocks {
			p.unused = append(p.unused, int32(i))
		}
	}
	s := rowStream{tensor: tensor, block: none, newest: none, of: make([]rowRank, workers)}
	for rank := range s.of {
		s.of[rank] = rowRank{next: none, gradients: slots{none, none}, fetches: slots{none, none}}
	}
	p.all = append(p.all, s)
	p.pending.grow(len(p.all))
	return int32(len(p.all) - 1)
}

func (p *rowStreams) at(rank int, slot int32) *heldRows { return &p.held[rank*p.window+int(slot)] }

// put appends a message to a list, and reports whether it is the first.
func (p *rowStreams) put(l *slots, rank int, m RowMessage) (first bool) {
	slot := int32(m.Slot)
	*p.at(rank, slot) = heldRows{m, none}
	if first = l.first == none; first {
		l.first = slot
	} else {
		p.at(rank, l.last).next = slot
	}
	l.last = slot
	return first
}

// queue marks a stream to be looked at.
func (p *rowStreams) queue(i int32) {
	if s := &p.all[i]; !s.queued {
		s.queued = true
		p.pending.Put(i)
	}
}

// fill ends the filling of a stream's block, and gives it to the workers that wait for it.
func (p *rowStreams) fill(s *rowStream, last bool) {
	b := s.block
	p.blocks[b] = rowBlock{next: none, left: s.takers, last: last}
	if s.newest != none {
		p.blocks[s.newest].next = b
	}
	s.newest, s.block = b, none
	for rank := range s.of {
		if r := &s.of[rank]; r.wants && r.next == none {
			r.next = b
		}
	}
}

// take records that a worker takes its next block.
func (p *rowStreams) take(s *rowStream, r *rowRank) {
	i := r.next
	b := &p.blocks[i]
	r.next, r.took = b.next, b.last
	if b.left--; b.left > 0 {
		return
	}
	p.unused = append(p.unused, i)
	if s.newest == i {
		s.newest = none
	}
}
