package uplink

import (
	"github.com/rackweave/rackweave/aggregate/store"
	"github.com/rackweave/rackweave/cgo/kernel"
)

// Reduction defines a rack's part of a chunk, and the chunk's result. There is one implementation for each synchronous mode
// ([Sums], [Steps], [Commits]), and one for racks that train apart (package outer). Addresses are of buffers in this process.
type Reduction interface {
	// Contribute writes this rack's part, of the workers' gradients src, to out.
	Contribute(c *store.Chunk, src []uint64, out uint64)
	// Finish makes the result of the racks' parts at the chunk's owner. If the owner has a buddy, sum receives the sum of the parts.
	Finish(c *store.Chunk, parts []uint64, result, sum uint64)
	// Begin starts the training at the chunk's parameters, which initial values have just replaced.
	Begin(c *store.Chunk)
	// Take makes a result the rack's own, and reports whether the workers are answered with it. At the owner's buddy it makes the
	// result from sum, the sum of all racks' parts.
	Take(c *store.Chunk, result, sum uint64) (answers bool)
	// ResultBytes returns the length of a result on the wire.
	ResultBytes(c *store.Chunk) uint32
}

// Racks holds the parts of the rack that every mode's reduction uses.
type Racks struct {
	Place *Place
	K     *store.Arithmetic
	Store *store.Store
	src   [1]uint64
	outs  [1]uint64
}

// Contribute writes the sum of the workers' gradients, in the type of the core link.
func (r *Racks) Contribute(c *store.Chunk, src []uint64, out uint64) {
	r.K.SumInto(out, r.core(), src, uint8(r.Store.Tensors[c.Tensor].Wire), c.Elems)
}

// Begin does nothing, because only racks that train apart keep more than the parameters.
func (r *Racks) Begin(*store.Chunk) {}

// ResultBytes returns the length of a result on the wire.
func (r *Racks) ResultBytes(c *store.Chunk) uint32 {
	return c.Elems * uint32(r.Store.Tensors[c.Tensor].Result.Size())
}

func (r *Racks) core() uint8 { return uint8(r.Place.CoreType()) }

// Take makes a result the parameters of a chunk that another rack owns.
func (r *Racks) Take(c *store.Chunk, result, _ uint64) (answers bool) {
	if int(c.Owner) != r.Place.Rack {
		r.K.Replace(r.Store, c, result, uint8(r.Store.Tensors[c.Tensor].Result))
	}
	return true
}

// Sums is the reduction of mode aggregate, in which the result is the sum.
type Sums struct{ Racks }

// Finish makes the result of the racks' parts.
func (r *Sums) Finish(c *store.Chunk, parts []uint64, result, _ uint64) {
	r.outs[0] = result
	r.K.Sum(r.Store, c, parts, r.core(), r.outs[:], false)
}

// Steps is the reduction of mode eager, in which the owner and its buddy run the optimizer.
type Steps struct{ Racks }

// Finish makes the result of the racks' parts.
func (r *Steps) Finish(c *store.Chunk, parts []uint64, result, sum uint64) {
	kind := r.core()
	if c.History != nil {
		r.K.SumInto(sum, kernel.F32, parts, kind, c.Elems)
		r.src[0] = sum
		parts, kind = r.src[:], kernel.F32
		r.Store.Remember(c)
	}
	r.outs[0] = result
	r.K.Step(r.Store, c, parts, kind, r.outs[:], false)
}

// Take makes a result the rack's parameters. At the owner's buddy it makes the owner's update.
func (r *Steps) Take(c *store.Chunk, result, sum uint64) (answers bool) {
	if c.History == nil || int(c.Owner) == r.Place.Rack {
		return r.Racks.Take(c, result, sum)
	}
	r.Store.Remember(c)
	r.src[0], r.outs[0] = sum, result
	r.K.Step(r.Store, c, r.src[:], kernel.F32, r.outs[:], false)
	return true
}

// Commits is the reduction of mode two-phase, in which gradients are accumulated at the owner until the commit.
type Commits struct {
	Racks
	Epoch func() uint8 // of the last commit
}

// Finish adds the racks' parts to the accumulator.
func (r *Commits) Finish(c *store.Chunk, parts []uint64, _, _ uint64) {
	kind := r.core()
	if c.Dirty && len(parts) > 1 { // the racks' sums come first, as in a chain
		r.K.SumInto(r.Store.Scratch, kernel.F32, parts, kind, c.Elems)
		r.src[0] = r.Store.Scratch
		parts, kind = r.src[:], kernel.F32
	}
	r.K.Accumulate(r.Store, c, parts, kind, (r.Epoch()+1)&1)
}

// Take marks the chunk as changed by the next commit.
func (r *Commits) Take(c *store.Chunk, _, _ uint64) (answers bool) {
	c.Stale = true
	return false
}

// ResultBytes returns 0, because the answer confirms only that the gradient is part of the step.
func (r *Commits) ResultBytes(*store.Chunk) uint32 { return 0 }
