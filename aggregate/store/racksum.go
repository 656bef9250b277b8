package store

import (
	"github.com/rackweave/rackweave/cgo/kernel"
	"github.com/rackweave/rackweave/chunk"
)

// RackSum adds gradients rack by rack, as the aggregators of several racks do, so that a job spread over racks gives equal bits.
type RackSum struct {
	racks []int // workers of each
	pods  int
	sums  []uint64 // room for each rack's sum, in f32
}

// RackSumBytes returns the room for the sums of so many racks. Elements of two bytes on the wire have sums of four.
func RackSumBytes(racks, chunkBytes int) int64 { return 2 * int64(chunkBytes) * int64(racks) }

// NewRackSum makes the sums of racks with so many workers each, and of pods, which are equal runs of racks. r has [RackSumBytes].
func NewRackSum(workers []int, pods, chunkBytes int, r *Region) *RackSum {
	b := &RackSum{racks: workers, pods: pods}
	for i := range workers {
		b.sums = append(b.sums, r.Addr()+uint64(RackSumBytes(i, chunkBytes)))
	}
	return b
}

// Add returns the addresses of the racks' sums in f32, or of the pods' sums if the job has several pods.
func (b *RackSum) Add(k *Arithmetic, src []uint64, wire chunk.DType, elems uint32) []uint64 {
	for i, n := range b.racks {
		k.SumInto(b.sums[i], kernel.F32, src[:n], uint8(wire), elems)
		src = src[n:]
	}
	if b.pods < 2 {
		return b.sums
	}
	size := len(b.sums) / b.pods
	for p := range b.pods {
		k.SumInto(b.sums[p], kernel.F32, b.sums[p*size:(p+1)*size], kernel.F32, elems)
	}
	return b.sums[:b.pods]
}
