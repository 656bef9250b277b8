package shard

import (
	"sync/atomic"

	"github.com/rackweave/rackweave/aggregate/store"
)

// Barrier is the barrier of a job's lanes at the commit of a two-phase step. It holds the norms that the lanes compute together.
type Barrier struct {
	// batches holds, for each AddTensors, the norms of its chunks, in the plan's order. A batch never moves, and exists before any
	// lane knows its chunks.
	batches atomic.Pointer[[][]store.Norms]
	reached atomic.Int64 // number of times that lanes reached a barrier, over all commits
	lanes   int64
}

// NewBarrier returns the barrier of so many lanes.
func NewBarrier(lanes int) *Barrier { return &Barrier{lanes: int64(lanes)} }

// Add appends the norms of more chunks.
func (b *Barrier) Add(batch []store.Norms) {
	var all [][]store.Norms
	if old := b.batches.Load(); old != nil {
		all = append(all, *old...)
	}
	all = append(all, batch)
	b.batches.Store(&all)
}

// sum adds the gradients' norms in the plan's order. The order does not depend on the number of lanes, so clipping is exact too.
func (b *Barrier) sum(parity uint8) (total float64) {
	if all := b.batches.Load(); all != nil {
		for _, batch := range *all {
			for i := range batch {
				total += batch[i].Gradient[parity]
			}
		}
	}
	return total
}

// reach announces a lane at the next barrier. It returns the count of arrivals at which all lanes have reached it, and whether they
// have.
func (b *Barrier) reach() (target int64, all bool) {
	reached := b.reached.Add(1)
	target = (reached + b.lanes - 1) / b.lanes * b.lanes
	return target, reached == target
}

func (b *Barrier) passed(target int64) bool { return b.reached.Load() >= target }
