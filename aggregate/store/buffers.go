package store

import (
	"fmt"

	"github.com/rackweave/rackweave/chunk"
)

// NumBuffers limits the answers in flight that need a buffer. More buffers would only push the results of a round out of the core's
// cache.
const NumBuffers = 32

// ScaledBuffers is the number of further buffers that hold a scaled gradient in f32, whatever the wire's type, or a gradient,
// what a candidate makes of it, and what that leaves.
const ScaledBuffers = 3

// CopyBuffers is the number of further buffers in mode stream that hold a worker's copy of a chunk in f32.
const CopyBuffers = 2

// NoBuffer stands for no buffer.
const NoBuffer = -1

// Buffers holds buffers that messages are sent from. A buffer is free again when the transport has read it for every peer to which
// it goes. The buffer that was freed last is taken first, because it is in the cache. The callers count free buffers.
type Buffers struct {
	Region *Region
	size   uint64
	refs   []int32
	free   []int32
}

// NewBuffers makes n buffers of a region, of so many bytes each.
func NewBuffers(r *Region, bytes uint64, n int) Buffers {
	p := Buffers{Region: r, size: bytes, refs: make([]int32, n)}
	for i := range int32(n) {
		p.free = append(p.free, int32(n)-1-i)
	}
	return p
}

// Free returns the number of free buffers.
func (p *Buffers) Free() int { return len(p.free) }

// Take returns a buffer, held once by the caller.
func (p *Buffers) Take() int32 {
	i := p.free[len(p.free)-1]
	p.free = p.free[:len(p.free)-1]
	p.refs[i] = 1
	return i
}

// Hold adds n holders to a buffer.
func (p *Buffers) Hold(i int32, n int) { p.refs[i] += int32(n) }

// Release removes a holder of a buffer, and reports whether it was the last. The buffer is free then.
func (p *Buffers) Release(i int32) bool {
	if p.refs[i]--; p.refs[i] > 0 {
		return false
	}
	p.free = append(p.free, i)
	return true
}

// Addr returns a buffer's address, or beyond the last buffer that of the memory behind them.
func (p *Buffers) Addr(i int32) uint64 { return p.Region.Addr() + uint64(i)*p.size }

// Write puts a control record into a buffer.
func (p *Buffers) Write(i int32, r *chunk.TensorRecord) {
	r.Encode(p.Region.Bytes(uint64(i)*p.size, chunk.RecordBytes))
}

// Audit returns an error if the buffers do not agree with refs, which counts by buffer the answers in flight and the blocks of rows
// that hold it. A lost connection keeps its buffers.
func (p *Buffers) Audit(refs []int32, lost bool) error {
	free := make([]bool, len(p.refs))
	for _, i := range p.free {
		if free[i] {
			return fmt.Errorf("result buffer %d is free twice", i)
		}
		free[i] = true
	}
	for i, n := range p.refs {
		if free[i] != (n == 0) || n < refs[i] || (n > refs[i] && !lost) {
			return fmt.Errorf("result buffer %d is held %d times, by %d answers and blocks; free: %v", i, n, refs[i], free[i])
		}
	}
	return nil
}
