package aggregate

import "github.com/rackweave/rackweave/chunk"

// arrival is one worker's part of a fold.
type arrival struct {
	payload, source uint64
	sourceRKey      uint32
	slot            uint16
	op              chunk.Op
	present         bool
}

// fold is a chunk in progress.
type fold struct {
	since int64 // ns, first arrival
	chunk uint32
	count int
	met   uint32 // the turn it was last kept for (stall.go)
	init  bool
	open  bool

	prev, next int32 // of those in progress, in the order in which they began; noFold: none
}

// foldPool holds a share's folds: as many as can be in progress at once.
type foldPool struct {
	folds       []fold
	arrivals    []arrival // workers per fold
	free        []int32
	first, last int32 // in progress; noFold: none is
	workers     int
}

// resize grows the pool to n folds.
func (p *foldPool) resize(n, workers int) {
	p.workers = workers
	for i := len(p.folds); i < n; i++ {
		p.folds = append(p.folds, fold{})
		p.free = append(p.free, int32(i))
	}
	p.arrivals = append(p.arrivals, make([]arrival, n*workers-len(p.arrivals))...)
}

// take starts a fold. There is always a free one: every fold in progress holds a slot of some worker.
func (p *foldPool) take(chunk uint32, now int64) int32 {
	i := p.free[len(p.free)-1]
	p.free = p.free[:len(p.free)-1]
	p.folds[i] = fold{since: now, chunk: chunk, open: true, prev: p.last, next: noFold}
	*p.after(p.last) = i
	p.last = i
	return i
}

func (p *foldPool) put(i int32) {
	f := &p.folds[i]
	f.open = false
	*p.after(f.prev) = f.next
	if f.next == noFold {
		p.last = f.prev
	} else {
		p.folds[f.next].prev = f.prev
	}
	clear(p.arrivals[int(i)*p.workers : (int(i)+1)*p.workers])
	p.free = append(p.free, i)
}

// after is where the fold that follows i is noted; noFold: the first.
func (p *foldPool) after(i int32) *int32 {
	if i == noFold {
		return &p.first
	}
	return &p.folds[i].next
}

func (p *foldPool) at(i int32) *fold { return &p.folds[i] }

func (p *foldPool) arrival(i int32, rank int) *arrival { return &p.arrivals[int(i)*p.workers+rank] }

// resultBuffers is how many answers of a share can be on their way that have no memory of their own. More would only push
// the results of a round out of the core's cache.
const resultBuffers = 32

// resultPool holds the buffers of answers that are not parameters. A buffer is free again when the transport has read it for
// every worker it goes to; the last freed is taken first, while it is hot.
type resultPool struct {
	region region
	size   uint64
	refs   [resultBuffers]int32
	free   []int32
}

func (p *resultPool) open(r region, chunkBytes int) {
	p.region, p.size = r, uint64(chunkBytes)
	for i := range int32(resultBuffers) {
		p.free = append(p.free, resultBuffers-1-i)
	}
}

// take returns a buffer, held once by the caller.
func (p *resultPool) take() (int32, bool) {
	if len(p.free) == 0 {
		return noResult, false
	}
	i := p.free[len(p.free)-1]
	p.free = p.free[:len(p.free)-1]
	p.refs[i] = 1
	return i, true
}

func (p *resultPool) hold(i int32) { p.refs[i]++ }

func (p *resultPool) release(i int32) {
	if p.refs[i]--; p.refs[i] == 0 {
		p.free = append(p.free, i)
	}
}

func (p *resultPool) addr(i int32) uint64 {
	return p.region.addr() + uint64(i)*p.size
}

func (p *resultPool) lkey(nic int) uint32 { return p.region.mrs[nic].LKey }

// write puts a control record into a buffer.
func (p *resultPool) write(i int32, r *chunk.TensorRecord) {
	r.Encode(p.region.arena.Bytes()[uint64(i)*p.size:][:chunk.RecordBytes])
}
