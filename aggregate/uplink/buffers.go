package uplink

import (
	"math"
	"slices"

	"github.com/rackweave/rackweave/aggregate/store"
)

// buffers holds this rack's parts. Each buffer has room for a part with its note, for the chunk's result behind it, and with
// buddies for the sum of all racks behind that. A buffer is free again when the workers have the result and it has arrived at every
// rack to which it was sent. Behind the buffers lie the norms for each rack, and behind them room for a chunk in f32.
type buffers struct {
	store.Buffers
	partBytes  uint64 // of the room for a part
	chunkBytes uint64
	since      []int64 // by buffer: ns, the time at which it was taken, or the end of time if it is free
}

const (
	spareBuffers    = 16       // buffers beside a window, for results in flight
	mostBufferBytes = 64 << 20 // of all buffers of a lane, unless a single part needs more
	fewestBuffers   = 4
)

// bufferBytes returns the size of one buffer. Elements of two bytes on the wire have sums of four.
func bufferBytes(chunkBytes int, buddies bool) uint64 {
	if buddies {
		return slotBytes(chunkBytes) + uint64(3*chunkBytes)
	}
	return slotBytes(chunkBytes) + uint64(chunkBytes)
}

func numBuffers(window, chunkBytes int, buddies bool) int {
	return max(fewestBuffers, min(window+spareBuffers, mostBufferBytes/int(bufferBytes(chunkBytes, buddies))))
}

// BuffersBytes returns the size of the region of an uplink's buffers, with the norms and the room for a chunk.
func BuffersBytes(window, chunkBytes, racks int, buddies bool) int64 {
	return int64(numBuffers(window, chunkBytes, buddies))*int64(bufferBytes(chunkBytes, buddies)) + int64(racks)*normBytes +
		2*int64(chunkBytes)
}

// take returns a buffer, held once by the caller.
func (p *buffers) take(now int64) int32 {
	i := p.Take()
	p.since[i] = now
	return i
}

func (p *buffers) release(i int32) {
	if p.Release(i) {
		p.since[i] = math.MaxInt64
	}
}

// oldest returns the time at which the buffer in longest use was taken, or the end of time if none is in use.
func (p *buffers) oldest() int64 { return slices.Min(p.since) }

func (p *buffers) part(i int32) uint64 { return p.Addr(i) }

func (p *buffers) result(i int32) uint64 { return p.Addr(i) + p.partBytes }

// sum returns the address of a buffer's sum of all racks, where owners have buddies.
func (p *buffers) sum(i int32) uint64 { return p.result(i) + p.chunkBytes }

// norms returns the address of the norms for a rack.
func (p *buffers) norms(rack int) uint64 { return p.Addr(int32(len(p.since))) + uint64(rack)*normBytes }
