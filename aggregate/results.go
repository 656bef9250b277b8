package aggregate

import "github.com/rackweave/rackweave/chunk"

// resultBuffers is how many answers of a share can be on their way that have no memory of their own. More would only push
// the results of a round out of the core's cache.
const resultBuffers = 32

// scratchBuffers is how many more there are for sets' gradients that are scaled: a chunk in f32, whatever the wire's type.
const scratchBuffers = 2

const noResult = -1

// results holds the buffers of answers that are not parameters. A buffer is free again when the transport has read it for
// every worker it goes to; the last freed is taken first, while it is hot. The machine knows how many are free, so one that it
// reserved is there.
type results struct {
	region *region
	size   uint64
	refs   [resultBuffers]int32
	free   []int32
}

func newResults(r *region, chunkBytes int) results {
	p := results{region: r, size: uint64(chunkBytes)}
	for i := range int32(resultBuffers) {
		p.free = append(p.free, resultBuffers-1-i)
	}
	return p
}

// take returns a buffer, held once by the caller.
func (p *results) take() int32 {
	i := p.free[len(p.free)-1]
	p.free = p.free[:len(p.free)-1]
	p.refs[i] = 1
	return i
}

func (p *results) hold(i int32) { p.refs[i]++ }

// release gives one hold up and reports whether it was the last: then the buffer is free.
func (p *results) release(i int32) bool {
	if p.refs[i]--; p.refs[i] > 0 {
		return false
	}
	p.free = append(p.free, i)
	return true
}

func (p *results) addr(i int32) uint64 { return p.region.addr() + uint64(i)*p.size }

// write puts a control record into a buffer.
func (p *results) write(i int32, r *chunk.TensorRecord) {
	r.Encode(p.region.arena.Bytes()[uint64(i)*p.size:][:chunk.RecordBytes])
}
