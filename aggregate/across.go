package aggregate

import "sync/atomic"

// norms are the squared norms of one chunk, for the commit of a two-phase step: of its accumulated gradient, by the parity of
// the commit that it is for; of its parameters and of its step, for LAMB.
type norms struct {
	gradient    [2]float64
	param, step float64
}

// across is what a job's lanes share: they meet only at the commit of a two-phase step.
type across struct {
	// What each AddTensors brought, in the plan's order. A batch never moves, and is there before any lane knows its chunks.
	batches atomic.Pointer[[][]norms]
	barrier atomic.Int64 // lanes that reached a barrier, counted through all commits
	lanes   int64
}

// add appends the norms of more chunks.
func (a *across) add(batch []norms) {
	var all [][]norms
	if old := a.batches.Load(); old != nil {
		all = append(all, *old...)
	}
	all = append(all, batch)
	a.batches.Store(&all)
}

// sum adds the gradients' norms in the plan's order, which does not depend on lanes: so clipping is exact too.
func (a *across) sum(parity uint8) (total float64) {
	if all := a.batches.Load(); all != nil {
		for _, batch := range *all {
			for i := range batch {
				total += batch[i].gradient[parity]
			}
		}
	}
	return total
}

// meet announces a lane at the next barrier. It returns the count at which all have passed it, and whether they have.
func (a *across) meet() (target int64, all bool) {
	passed := a.barrier.Add(1)
	target = (passed + a.lanes - 1) / a.lanes * a.lanes
	return target, passed == target
}

func (a *across) met(target int64) bool { return a.barrier.Load() >= target }
