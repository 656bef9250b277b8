package aggregate

import "math"

// sums holds the buffers of this rack's sums, each with room for the note behind the sum, for the chunk's result, and with buddies
// for the sum of all racks. A buffer is free again when the workers have been given the result, and it has arrived at every rack
// that it was sent to.
type sums struct {
	region *region
	size   uint64
	at     uint64 // of the result
	behind uint64 // of the sum of all racks, where owners have buddies
	refs   []int32
	since  []int64 // ns, when it was taken
	free   []int32
}

const (
	spareSums    = 16       // beside a window: results that are on their way
	mostSumBytes = 64 << 20 // of all buffers of a lane, unless that is too little for any
	fewestSums   = 4
)

// sumBufferBytes is the size of one buffer: elements of two bytes on the wire have sums of four.
func sumBufferBytes(chunkBytes int, buddies bool) uint64 {
	if buddies {
		return uint64(5*chunkBytes + 64)
	}
	return uint64(3*chunkBytes + 64)
}

// sumBuffers is how many buffers a lane has.
func sumBuffers(window, chunkBytes int, buddies bool) int {
	return max(fewestSums, min(window+spareSums, mostSumBytes/int(sumBufferBytes(chunkBytes, buddies))))
}

func newSums(r *region, chunkBytes, n int, buddies bool) sums {
	p := sums{region: r, size: sumBufferBytes(chunkBytes, buddies), at: uint64(2*chunkBytes + 64), behind: uint64(3*chunkBytes + 64)}
	p.refs, p.since = make([]int32, n), make([]int64, n)
	for i := range int32(n) {
		p.free = append(p.free, int32(n)-1-i)
	}
	return p
}

// take returns a buffer, held once by the caller.
func (p *sums) take(now int64) int32 {
	i := p.free[len(p.free)-1]
	p.free = p.free[:len(p.free)-1]
	p.refs[i], p.since[i] = 1, now
	return i
}

func (p *sums) hold(i int32, n int) { p.refs[i] += int32(n) }

func (p *sums) release(i int32) {
	if p.refs[i]--; p.refs[i] == 0 {
		p.free = append(p.free, i)
	}
}

// sumsBytes is the size of a region of sums, with room behind its buffers for what racks are told, and for a chunk in f32.
func sumsBytes(window, chunkBytes, racks int, buddies bool) int64 {
	return int64(sumBuffers(window, chunkBytes, buddies))*int64(sumBufferBytes(chunkBytes, buddies)) + int64(racks)*normBytes +
		2*int64(chunkBytes)
}

// spare is where a region has room behind its buffers, for what a rack is told. After those of all racks comes that for a chunk.
func (p *sums) spare(rack int) uint64 { return p.sum(int32(len(p.refs))) + uint64(rack)*normBytes }

// oldest returns when the buffer that is in use for longest was taken; without one, the end of time.
func (p *sums) oldest() int64 {
	oldest := int64(math.MaxInt64)
	for i, refs := range p.refs {
		if refs > 0 {
			oldest = min(oldest, p.since[i])
		}
	}
	return oldest
}

// sum is where a buffer's sum lies.
func (p *sums) sum(i int32) uint64 { return p.region.addr() + uint64(i)*p.size }

// result is where its result lies.
func (p *sums) result(i int32) uint64 { return p.sum(i) + p.at }

// gradient is where the sum of all racks lies, where owners have buddies.
func (p *sums) gradient(i int32) uint64 { return p.sum(i) + p.behind }

// mostPeerBytes bounds the slots of one connection between aggregators.
const mostPeerBytes = 16 << 20

// peerSlotBytes is the size of a slot for a sum in f32 with its note, whatever the wire's type.
func peerSlotBytes(chunkBytes int) uint64 { return uint64(2*chunkBytes + 64) }

// peerWindow is how many sums one rack may have at another, unanswered. With as many results it takes a worker's window, so a
// peer's connection has the queues of a worker's.
func peerWindow(window, chunkBytes int) int {
	return max(1, min(window/2, mostPeerBytes/int(peerSlotBytes(chunkBytes))))
}

// peerBytes is the size of the slots of one connection between aggregators, with room for what the other's commits say.
func peerBytes(window, chunkBytes int) int64 {
	return int64(peerWindow(window, chunkBytes))*int64(peerSlotBytes(chunkBytes)) + normBytes
}
