package uplink

import (
	"math"

	"github.com/rackweave/rackweave/aggregate/store"
)

const none = -1 // no buffer

// buffers holds this rack's parts. Each buffer has room for a part with its note, for the chunk's result, and with buddies for the
// sum of all racks. A buffer is free again when the workers have the result and it has arrived at every rack to which it was sent.
type buffers struct {
	region *store.Region
	size   uint64
	at     uint64 // offset of the result
	behind uint64 // offset of the sum of all racks, where owners have buddies
	refs   []int32
	since  []int64 // ns, the time at which it was taken
	free   []int32
}

const (
	spareBuffers    = 16       // buffers beside a window, for results in flight
	mostBufferBytes = 64 << 20 // of all buffers of a lane, unless a single part needs more
	fewestBuffers   = 4
)

// bufferBytes returns the size of one buffer. Elements of two bytes on the wire have sums of four.
func bufferBytes(chunkBytes int, buddies bool) uint64 {
	if buddies {
		return uint64(5*chunkBytes + 64)
	}
	return uint64(3*chunkBytes + 64)
}

func numBuffers(window, chunkBytes int, buddies bool) int {
	return max(fewestBuffers, min(window+spareBuffers, mostBufferBytes/int(bufferBytes(chunkBytes, buddies))))
}

func newBuffers(r *store.Region, chunkBytes, n int, buddies bool) buffers {
	p := buffers{region: r, size: bufferBytes(chunkBytes, buddies), at: uint64(2*chunkBytes + 64), behind: uint64(3*chunkBytes + 64)}
	p.refs, p.since = make([]int32, n), make([]int64, n)
	for i := range int32(n) {
		p.free = append(p.free, int32(n)-1-i)
	}
	return p
}

// take returns a buffer, held once by the caller.
func (p *buffers) take(now int64) int32 {
	i := p.free[len(p.free)-1]
	p.free = p.free[:len(p.free)-1]
	p.refs[i], p.since[i] = 1, now
	return i
}

func (p *buffers) hold(i int32, n int) { p.refs[i] += int32(n) }

func (p *buffers) release(i int32) {
	if p.refs[i]--; p.refs[i] == 0 {
		p.free = append(p.free, i)
	}
}

// BuffersBytes returns the size of the region of an uplink's buffers. Behind them it has room for the norms for each rack and for a
// chunk in f32.
func BuffersBytes(window, chunkBytes, racks int, buddies bool) int64 {
	return int64(numBuffers(window, chunkBytes, buddies))*int64(bufferBytes(chunkBytes, buddies)) + int64(racks)*normBytes +
		2*int64(chunkBytes)
}

// norms returns the address of the norms for a rack. The room for a chunk follows the last rack's.
func (p *buffers) norms(rack int) uint64 { return p.part(int32(len(p.refs))) + uint64(rack)*normBytes }

// oldest returns the time at which the buffer in longest use was taken, or the end of time if none is in use.
func (p *buffers) oldest() int64 {
	oldest := int64(math.MaxInt64)
	for i, refs := range p.refs {
		if refs > 0 {
			oldest = min(oldest, p.since[i])
		}
	}
	return oldest
}

func (p *buffers) part(i int32) uint64 { return p.region.Addr() + uint64(i)*p.size }

func (p *buffers) result(i int32) uint64 { return p.part(i) + p.at }

// sum returns the address of a buffer's sum of all racks, where owners have buddies.
func (p *buffers) sum(i int32) uint64 { return p.part(i) + p.behind }
