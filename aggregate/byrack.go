package aggregate

import (
	"github.com/rackweave/rackweave/cgo/kernel"
	"github.com/rackweave/rackweave/chunk"
)

// byRack adds gradients rack by rack, as aggregators do that reduce among themselves: so a job's bits are the same.
type byRack struct {
	racks []int // workers of each
	pods  int
	sums  []uint64 // room for each rack's sum, in f32
}

// newByRack lays out the sums of a lane's chunks.
func newByRack(p *Part, chunkBytes int, at uint64) *byRack {
	b := &byRack{racks: p.Racks, pods: p.Pods}
	for i := range p.Racks {
		b.sums = append(b.sums, at+uint64(i)*uint64(rackSumBytes(chunkBytes)))
	}
	return b
}

// add returns the sums of the racks, or, with pods, of those.
func (b *byRack) add(k *arithmetic, src []uint64, wire chunk.DType, elems uint32) []uint64 {
	for i, n := range b.racks {
		kernel.SumTo(k.isa, b.sums[i:i+1], kernel.F32, src[:n], uint8(wire), uint64(elems), false, false)
		src = src[n:]
	}
	if b.pods < 2 {
		return b.sums
	}
	size := len(b.sums) / b.pods
	for p := range b.pods {
		pod := b.sums[p*size : (p+1)*size]
		kernel.SumTo(k.isa, b.sums[p:p+1], kernel.F32, pod, kernel.F32, uint64(elems), false, false)
	}
	return b.sums[:b.pods]
}
