package uplink

import (
	"github.com/rackweave/rackweave/aggregate/store"
	"github.com/rackweave/rackweave/cgo/kernel"
)

// Reduction defines a rack's sum of a chunk, and the chunk's result. There is one implementation for each mode but stream
// ([AggregateReduction], [EagerReduction], [TwoPhaseReduction]), and one for racks that train apart (aggregate/outer). Addresses
// are of buffers in this process.
type Reduction interface {
	// Sum writes this rack's sum of the workers' gradients src to out.
	Sum(c *store.Chunk, src kernel.Sources, out uint64)
	// Result makes the result of the racks' sums at the chunk's owner. If the owner has a buddy, total receives the sum of all racks.
	Result(c *store.Chunk, sums kernel.Sources, result, total uint64)
	// Base returns the address of the values that the last result left in this rack, or 0 if results do not change any.
	Base(c *store.Chunk) uint64
	// Begin starts the training at the chunk's parameters, which initial values have just replaced.
	Begin(c *store.Chunk)
	// Apply makes a result the rack's own, and reports whether the workers are answered with it. At the owner's buddy it makes the
	// result from total, the sum of all racks.
	Apply(c *store.Chunk, result, total uint64) (answers bool)
	// ResultBytes returns the length of a result on the wire. Its last [Reduction.Behind] bytes are not values.
	ResultBytes(c *store.Chunk) uint32
	// Behind returns the length of what follows the values of every result, at most mostBehind.
	Behind() uint32
}

// BaseReduction is the part that the reductions of the modes share.
type BaseReduction struct {
	Place *Place
	K     *store.Arithmetic
	Store *store.Store
	src   [1]uint64
	outs  [1]uint64
}

// Sum writes the sum of the workers' gradients, in the type of the core link.
func (r *BaseReduction) Sum(c *store.Chunk, src kernel.Sources, out uint64) {
	r.K.SumInto(out, r.core(), src, c.Elems)
}

// Begin does nothing, because only racks that train apart keep more than the parameters.
func (r *BaseReduction) Begin(*store.Chunk) {}

// Base returns the address of the parameters, if the job keeps any.
func (r *BaseReduction) Base(c *store.Chunk) uint64 { return c.Addr }

// ResultBytes returns the length of a result on the wire.
func (r *BaseReduction) ResultBytes(c *store.Chunk) uint32 {
	return c.Elems * uint32(r.Store.Tensors[c.Tensor].Result.Size())
}

// Behind returns 0.
func (r *BaseReduction) Behind() uint32 { return 0 }

func (r *BaseReduction) core() uint8 { return uint8(r.Place.CoreType()) }

// Apply makes a result the parameters of a chunk that another rack owns, if the job keeps parameters.
func (r *BaseReduction) Apply(c *store.Chunk, result, _ uint64) (answers bool) {
	if int(c.Owner) != r.Place.Rack && c.Addr != 0 {
		r.K.ReplaceUpdated(r.Store, c, result)
	}
	return true
}

// AggregateReduction is the reduction of mode aggregate, in which the result is the sum.
type AggregateReduction struct{ BaseReduction }

// Result makes the result of the racks' sums.
func (r *AggregateReduction) Result(c *store.Chunk, sums kernel.Sources, result, _ uint64) {
	r.outs[0] = result
	r.K.Sum(r.Store, c, sums, r.outs[:], false)
}

// EagerReduction is the reduction of mode eager, in which the owner and its buddy run the optimizer.
type EagerReduction struct{ BaseReduction }

// Result makes the result of the racks' sums.
func (r *EagerReduction) Result(c *store.Chunk, sums kernel.Sources, result, total uint64) {
	if c.History != nil {
		r.K.SumInto(total, kernel.F32, sums, c.Elems)
		r.src[0] = total
		sums = kernel.From(r.src[:], kernel.F32)
		r.Store.Remember(c)
	}
	r.outs[0] = result
	r.K.Step(r.Store, c, sums, r.outs[:], false)
}

// Apply makes a result the rack's parameters. At the owner's buddy it makes the owner's update.
func (r *EagerReduction) Apply(c *store.Chunk, result, total uint64) (answers bool) {
	if c.History == nil || int(c.Owner) == r.Place.Rack {
		return r.BaseReduction.Apply(c, result, total)
	}
	r.Store.Remember(c)
	r.src[0], r.outs[0] = total, result
	r.K.Step(r.Store, c, kernel.From(r.src[:], kernel.F32), r.outs[:], false)
	return true
}

// TwoPhaseReduction is the reduction of mode two-phase, in which gradients are accumulated at the owner until the commit.
type TwoPhaseReduction struct {
	BaseReduction
	Epoch func() uint8 // of the last commit
}

// Result adds the racks' sums to the accumulator.
func (r *TwoPhaseReduction) Result(c *store.Chunk, sums kernel.Sources, _, _ uint64) {
	// The sums are added to each other first, because no shape may change a bit: a chain has added them to each other on the way,
	// and an accumulator to which they were added one by one would be rounded after each.
	if c.Dirty && len(sums.Addr) > 1 {
		r.K.SumInto(r.Store.TempChunk, kernel.F32, sums, c.Elems)
		r.src[0] = r.Store.TempChunk
		sums = kernel.From(r.src[:], kernel.F32)
	}
	r.K.Accumulate(r.Store, c, sums, (r.Epoch()+1)&1)
}

// Apply marks the chunk as changed by the next commit.
func (r *TwoPhaseReduction) Apply(c *store.Chunk, _, _ uint64) (answers bool) {
	c.Stale = true
	return false
}

// ResultBytes returns 0, because the answer confirms only that the gradient is part of the step.
func (r *TwoPhaseReduction) ResultBytes(*store.Chunk) uint32 { return 0 }
