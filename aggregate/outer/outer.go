// Package outer carries out the rounds of racks that train apart (DiLoCo, arXiv 2311.08105). Between rounds a rack steps its own
// parameters. In a round it hands up how far it has come, and every rack's parameters become the result of an outer optimizer.
//
// Behind a chunk's parameters and states lie the parameters of the last round, and at the chunk's owner the outer optimizer's
// parameters and states, which are never rounded to the wire's type.
//
// Where rounds follow the drift, a chunk's owner decides alone, from the racks' sums, after how many steps its next round is due.
// Every rack learns it with the result. So the racks always agree, whatever order they work in, no rack waits for another but in a
// round, and equal gradients lead to equal rounds.
package outer

import (
	"encoding/binary"
	"math"

	"github.com/rackweave/rackweave/aggregate/optim"
	"github.com/rackweave/rackweave/aggregate/store"
	"github.com/rackweave/rackweave/cgo/kernel"
	"github.com/rackweave/rackweave/hierarchy/outer"
)

// Rounds holds the rounds of one job in one lane.
type Rounds struct {
	o          outer.Optimizer
	rack       int
	workers    [2]float32 // of the rack, and of the job
	k          *store.Arithmetic
	st         *store.Store
	rule       optim.Rule
	states     int
	difference optim.Scalars
	weight     optim.Scalars
	step       optim.Scalars
	one        [1]uint64
}

// Rule returns the update rule of an outer optimizer, and its hyper-parameters in a job of so many workers. Its gradient is the sum
// over the racks of each rack's difference times its workers.
func Rule(o outer.Optimizer, workers int) (optim.Rule, optim.Hyper) {
	rule := optim.SGDTorch
	if o.Rule == outer.Nesterov {
		rule = optim.NesterovTorch
	}
	return rule, optim.Hyper{LR: o.LR, Momentum: o.Momentum, Scale: 1 / float64(workers)}
}

// Arrays returns the number of f32 arrays behind the parameters and states of a chunk that another rack owns, and of an own chunk.
func Arrays(o outer.Optimizer) [2]int {
	rule, h := Rule(o, 1)
	return [2]int{1, 2 + rule.States(h)}
}

// New returns the Rounds of a rack that has workers of the job's total workers.
func New(o outer.Optimizer, rack, workers, total int, k *store.Arithmetic, st *store.Store) *Rounds {
	rule, h := Rule(o, total)
	return &Rounds{
		o: o, rack: rack, workers: [2]float32{float32(workers), float32(total)}, k: k, st: st, rule: rule, states: rule.States(h),
		step:       optim.Derive(rule, h, 1),
		difference: optim.Derive(optim.SGDTorch, optim.Hyper{LR: 1, Scale: 1}, 1),
		weight:     optim.Derive(optim.Sum, optim.Hyper{Scale: float64(workers)}, 1),
	}
}

// Local reports whether the next step of a chunk stays in the rack. A chunk whose sum was dropped has taken its step already.
func Local(o outer.Optimizer, c *store.Chunk) bool {
	if o.Drift > 0 {
		return !c.Stepped && c.Updates+1 < c.Round.Due
	}
	return !c.Stepped && !o.Due(int(c.Number), c.Updates+1)
}

// roundBytes is the length of a [store.Round]'s interval, distance and length behind a result, where intervals follow the drift.
const roundBytes = 12

// last returns the address of the parameters of the last round.
func (r *Rounds) last(c *store.Chunk) uint64 { return r.st.Array(c, 1+r.st.States) }

// array returns the address of one of the outer optimizer's arrays: its parameters, then each state.
func (r *Rounds) array(c *store.Chunk, i int) uint64 { return r.st.Array(c, 2+r.st.States+i) }

// Sum runs the job's rule over this rack's gradients, and writes the difference since the last round, times its workers, to
// out.
func (r *Rounds) Sum(c *store.Chunk, src kernel.Sources, out uint64) {
	k := r.k
	if !c.Stepped {
		c.Stepped = true
		k.Step(r.st, c, src, nil, false)
	}
	// SGD with a rate of 1 subtracts the gradient, which here is the parameters.
	kernel.Convert(k.ISA, out, kernel.F32, r.last(c), kernel.F32, uint64(c.Elems), false)
	r.one[0] = c.Addr
	own := kernel.From(r.one[:], kernel.F32)
	k.RunOn(c, kernel.Update{W: out, Rule: uint8(optim.SGDTorch), Scalar: r.difference}, own, nil, kernel.F32)
	r.one[0] = out
	k.RunOn(c, kernel.Update{Rule: uint8(optim.Sum), Scalar: r.weight}, own, r.one[:], kernel.F32)
	if r.o.Drift > 0 {
		c.Round.Part = float32(kernel.SumSq(k.ISA, out, uint64(c.Elems))) / r.workers[0]
	}
}

// Base returns the address of the parameters of the last round.
func (r *Rounds) Base(c *store.Chunk) uint64 { return r.last(c) }

// Result runs the outer optimizer over the racks' sums, and writes its parameters, in the wire's type, to result.
func (r *Rounds) Result(c *store.Chunk, sums kernel.Sources, result, _ uint64) {
	u := kernel.Update{W: r.array(c, 0), Rule: uint8(r.rule), Scalar: r.step}
	for i := range r.states {
		u.State[i] = r.array(c, 1+i)
	}
	r.one[0] = result
	r.k.RunOn(c, u, sums, r.one[:], uint8(r.st.Tensors[c.Tensor].Wire))
	if r.o.Drift > 0 {
		distance, length := c.Round.Part/r.workers[1], float32(kernel.SumSq(r.k.ISA, r.last(c), uint64(c.Elems)))
		b := r.round(c, result)
		binary.LittleEndian.PutUint32(b, r.o.Next(c.Round.Interval, distance, length))
		binary.LittleEndian.PutUint32(b[4:], math.Float32bits(distance))
		binary.LittleEndian.PutUint32(b[8:], math.Float32bits(length))
	}
}

// round returns the bytes of a round behind its result.
func (r *Rounds) round(c *store.Chunk, result uint64) []byte {
	return store.Bytes(result+uint64(r.st.WireBytes(c)), roundBytes)
}

// Begin copies a chunk's parameters, which are the initial values, to those of the last round, and at the owner to the outer
// optimizer's.
func (r *Rounds) Begin(c *store.Chunk) {
	r.copy(r.last(c), c)
	if int(c.Owner) == r.rack {
		r.copy(r.array(c, 0), c)
	}
	c.Stepped = false
}

// Apply replaces the rack's parameters by a round's result.
func (r *Rounds) Apply(c *store.Chunk, result, _ uint64) (answers bool) {
	r.k.Replace(r.st, c, result, uint8(r.st.Tensors[c.Tensor].Wire))
	r.copy(r.last(c), c)
	c.Stepped = false
	if r.o.Drift > 0 {
		b := r.round(c, result)
		at := func(i int) uint32 { return binary.LittleEndian.Uint32(b[i:]) }
		next := min(max(at(0), 1), uint32(r.o.Every))
		c.Round = store.Round{
			Interval: next, Due: c.Updates + next,
			Distance: math.Float32frombits(at(4)), Length: math.Float32frombits(at(8)),
		}
	}
	r.st.Updated(c)
	return true
}

// copy copies a chunk's parameters.
func (r *Rounds) copy(to uint64, c *store.Chunk) {
	kernel.Convert(r.k.ISA, to, kernel.F32, c.Addr, kernel.F32, uint64(c.Elems), false)
}

// ResultBytes returns the length of a round's result.
func (r *Rounds) ResultBytes(c *store.Chunk) uint32 { return uint32(r.st.WireBytes(c)) + r.Behind() }

// Behind returns the length of what follows a result's values.
func (r *Rounds) Behind() uint32 {
	if r.o.Drift > 0 {
		return roundBytes
	}
	return 0
}
