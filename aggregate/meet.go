package aggregate

import (
	"github.com/rackweave/rackweave/aggregate/optim"
	"github.com/rackweave/rackweave/cgo/kernel"
)

// start is where the parameters of the last meeting lie.
func (s *store) start(c *storedChunk) uint64 { return s.array(c, 1+s.states) }

// outerArray is one of the outer optimizer's arrays: its parameters, then each state.
func (s *store) outerArray(c *storedChunk, i int) uint64 { return s.array(c, 2+s.states+i) }

// stays reports whether the next step of a chunk stays in the rack. One whose sum was recalled has taken its step already.
func (s *store) stays(index uint32) bool {
	c := &s.chunks[index]
	return !c.stepped && !s.outer.Due(int(c.number), c.updates+1)
}

// stepAlone runs the job's rule over this rack's gradients, and writes how far the rack has come since the last meeting, times its
// weight.
func (k *arithmetic) stepAlone(s *store, c *storedChunk, src []uint64, come uint64, weight optim.Scalars) {
	if !c.stepped {
		k.step(s, c, src, uint8(s.tensors[c.tensor].wire), nil, false)
		c.stepped = true
	}
	// SGD with a rate of 1 subtracts the gradient, which here is the parameters.
	kernel.Convert(k.isa, come, kernel.F32, s.start(c), kernel.F32, uint64(c.elems), false)
	now, at := [1]uint64{c.addr}, [1]uint64{come}
	k.update = kernel.Update{W: come, Rule: uint8(optim.SGDTorch), Scalar: s.outer.difference}
	k.runOuter(c, now[:], nil, kernel.F32)
	k.update = kernel.Update{Rule: uint8(optim.Sum), Scalar: weight}
	k.runOuter(c, at[:], at[:], kernel.F32)
}

// stepOuter runs the outer optimizer, and writes its parameters, in the wire's type, to result.
func (k *arithmetic) stepOuter(s *store, c *storedChunk, come []uint64, result uint64, step optim.Scalars) {
	k.update = kernel.Update{W: s.outerArray(c, 0), Rule: uint8(s.outer.rule), Scalar: step}
	for i := range s.outer.states {
		k.update.State[i] = s.outerArray(c, 1+i)
	}
	k.one[0] = result
	k.runOuter(c, come, k.one[:], uint8(s.tensors[c.tensor].wire))
}

// runOuter runs an update of arrays in f32 that are not the chunk's own.
func (k *arithmetic) runOuter(c *storedChunk, src, outs []uint64, outType uint8) {
	u := &k.update
	u.N, u.SrcType, u.OutType = uint64(c.elems), kernel.F32, outType
	if err := u.Run(k.isa, src, outs); err != nil {
		panic(err) // the rules are fixed
	}
}

// begin makes what the racks have met at the parameters that the outer optimizer starts from: the initial values.
func (k *arithmetic) begin(s *store, c *storedChunk) {
	kernel.Convert(k.isa, s.outerArray(c, 0), kernel.F32, c.addr, kernel.F32, uint64(c.elems), false)
}

// meet makes a meeting's result the rack's parameters.
func (k *arithmetic) meet(s *store, c *storedChunk, result uint64) {
	kernel.Convert(k.isa, c.addr, kernel.F32, result, uint8(s.tensors[c.tensor].wire), uint64(c.elems), false)
	kernel.Convert(k.isa, s.start(c), kernel.F32, c.addr, kernel.F32, uint64(c.elems), false)
	c.stepped = false
}
