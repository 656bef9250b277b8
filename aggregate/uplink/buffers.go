package uplink

import (
	"math"
	"slices"

	"github.com/rackweave/rackweave/aggregate/store"
)

// buffers holds this rack's sums. Each buffer has room for a sum with its note, for the chunk's result behind it, and behind that
// with buddies for the sum of all racks, with codecs for the result's payload and the next residual. A buffer is free again when
// the workers have the result and it has arrived at every rack to which it was sent. Behind the buffers lie one for each sparse
// tensor (rows.go), then the norms for each rack, and behind them room for a chunk in f32.
type buffers struct {
	store.Buffers
	slotBytes  uint64 // of the room for a sum with its note, here as in a slot
	chunkBytes uint64
	room       uint64  // for a chunk's result
	since      []int64 // by buffer, with those of sparse tensors: ns, the time at which it was taken, or the end of time if it is free
}

const (
	spareBuffers    = 16       // buffers beside a window, for results in flight
	mostBufferBytes = 64 << 20 // of all buffers of a lane, unless the fewest need more
	fewestBuffers   = 5
)

// bufferBytes returns the size of one buffer. Elements of two bytes on the wire have sums of four.
func bufferBytes(chunkBytes int, p *Place) uint64 {
	if p.Buddies || p.Coded() {
		return slotBytes(chunkBytes) + 3*roomBytes(chunkBytes)
	}
	return slotBytes(chunkBytes) + roomBytes(chunkBytes)
}

// mostBehind bounds what follows the values of a result.
const mostBehind = 64

func roomBytes(chunkBytes int) uint64 { return uint64(chunkBytes) + mostBehind }

// numBuffers returns the number of buffers, with those of sparse tensors.
func numBuffers(window, chunkBytes int, p *Place) int {
	return max(fewestBuffers, min(window+spareBuffers, mostBufferBytes/int(bufferBytes(chunkBytes, p))))
}

// BuffersBytes returns the size of the region of an uplink's buffers, with the norms and the room for a chunk.
func BuffersBytes(window, chunkBytes int, p *Place) int64 {
	return int64(numBuffers(window, chunkBytes, p))*int64(bufferBytes(chunkBytes, p)) + int64(p.Racks)*normBytes + 2*int64(chunkBytes)
}

// take returns a buffer, held once by the caller.
func (b *buffers) take(now int64) int32 {
	i := b.Take()
	b.since[i] = now
	return i
}

func (b *buffers) release(i int32) {
	if b.Release(i) {
		b.since[i] = math.MaxInt64
	}
}

// oldest returns the time at which the buffer in longest use was taken, or the end of time if none is in use.
func (b *buffers) oldest() int64 { return slices.Min(b.since) }

func (b *buffers) sum(i int32) uint64 { return b.Addr(i) }

func (b *buffers) result(i int32) uint64 { return b.Addr(i) + b.slotBytes }

// total returns the address of a buffer's sum of all racks, where owners have buddies.
func (b *buffers) total(i int32) uint64 { return b.result(i) + b.room }

// payload returns the address for the payload of a buffer's sum, with its note. It lies behind the sum, which leaves half of its
// room, because tensors with payloads are of f32 on the wire.
func (b *buffers) payload(i int32) uint64 { return b.sum(i) + b.chunkBytes + noteBytes }

// answer returns the address for the payload of a buffer's result.
func (b *buffers) answer(i int32) uint64 { return b.result(i) + b.room }

// residual returns the address for what the payload of a buffer's sum loses.
func (b *buffers) residual(i int32) uint64 { return b.answer(i) + b.room }

// norms returns the address of the norms for a rack.
func (b *buffers) norms(rack int) uint64 { return b.Addr(int32(len(b.since))) + uint64(rack)*normBytes }
