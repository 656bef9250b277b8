package aggregate

import (
	"math"

	"github.com/rackweave/rackweave/aggregate/optim"
	"github.com/rackweave/rackweave/cgo/kernel"
	"github.com/rackweave/rackweave/chunk"
)

// arithmetic runs a store's sums and updates on one core.
type arithmetic struct {
	isa    kernel.ISA
	update kernel.Update // the arguments of the update under way
	one    [1]uint64     // a list of one address
}

// sum writes the sum of the sources, in the wire's type and scaled and clipped as the job asks, to every output.
func (k *arithmetic) sum(s *store, c *storedChunk, src []uint64, srcType uint8, outs []uint64, stream bool) {
	out := uint8(s.tensors[c.tensor].out)
	if s.scaled != nil {
		k.run(s, optim.Sum, s.scaled, c, src, srcType, outs, out, stream)
		return
	}
	kernel.SumTo(k.isa, outs, out, src, srcType, uint64(c.elems), false, stream)
}

// accumulate adds the sum of the sources to the chunk's accumulator, and notes its norm for the commit of this parity.
func (k *arithmetic) accumulate(s *store, c *storedChunk, src []uint64, srcType uint8, parity uint8) {
	k.one[0] = s.accumulator(c)
	kernel.SumTo(k.isa, k.one[:], kernel.F32, src, srcType, uint64(c.elems), c.dirty, false)
	c.dirty = true
	c.norms.gradient[parity] = kernel.SumSq(k.isa, k.one[0], uint64(c.elems))
}

// broadcast makes the root's values the chunk's parameters, and writes them to every output.
func (k *arithmetic) broadcast(s *store, c *storedChunk, root uint64, outs []uint64, stream bool) {
	wire := uint8(s.tensors[c.tensor].wire)
	if c.addr != 0 {
		kernel.Convert(k.isa, c.addr, kernel.F32, root, wire, uint64(c.elems), false)
	}
	for _, out := range outs {
		kernel.Convert(k.isa, out, wire, root, wire, uint64(c.elems), stream)
	}
}

// parameters writes the chunk's parameters to out, in the wire's type.
func (k *arithmetic) parameters(s *store, c *storedChunk, out uint64) {
	t, from, kind := &s.tensors[c.tensor], c.addr, uint8(kernel.F32)
	if t.out != t.wire {
		kernel.Convert(k.isa, s.scratch, uint8(t.out), c.addr, kernel.F32, uint64(c.elems), false)
		from, kind = s.scratch, uint8(t.out)
	}
	kernel.Convert(k.isa, out, uint8(t.wire), from, kind, uint64(c.elems), false)
}

// step runs the job's rule over the sum of the sources, and writes the new parameters, in the wire's type, to every output.
func (k *arithmetic) step(s *store, c *storedChunk, src []uint64, srcType uint8, outs []uint64, stream bool) {
	t := &s.tensors[c.tensor]
	c.updates++
	if t.scalarsFor != c.updates {
		h := t.hyper
		h.LR *= t.lrMult
		h.WD *= t.wdMult
		if s.outer != nil {
			h.Scale *= s.outer.share
		}
		t.scalars, t.scalarsFor = optim.Derive(s.rule, h, c.updates), c.updates
	}
	k.run(s, s.rule, &t.scalars, c, src, srcType, outs, uint8(t.out), stream)
}

// stepOne runs the job's rule with one worker's gradient. factor is the policy's share of the learning rate; the gradient is scaled
// as if it were all workers' sum, so that rules in which a scale cancels out take the same hyper-parameters as eager mode's.
func (k *arithmetic) stepOne(s *store, c *storedChunk, h *optim.Hyper, factor float64, workers int, src, outs []uint64) {
	t := &s.tensors[c.tensor]
	c.updates++
	own := *h
	own.LR *= t.lrMult * factor
	own.WD *= t.wdMult
	own.Scale *= float64(workers)
	scalars := optim.Derive(s.rule, own, c.updates)
	k.run(s, s.rule, &scalars, c, src, uint8(t.wire), outs, uint8(t.wire), false)
}

// accumulateOne adds one worker's gradient, times weight, to the chunk's accumulator. scratch has room for a chunk in f32.
func (k *arithmetic) accumulateOne(s *store, c *storedChunk, src []uint64, weight float64, scratch uint64) {
	wire := uint8(s.tensors[c.tensor].wire)
	if weight != 1 {
		scalars := optim.Derive(optim.Sum, optim.Hyper{Scale: weight}, 1)
		k.one[0] = scratch
		k.run(s, optim.Sum, &scalars, c, src, wire, k.one[:], kernel.F32, false)
		src[0], wire = scratch, kernel.F32
	}
	k.one[0] = s.accumulator(c)
	kernel.SumTo(k.isa, k.one[:], kernel.F32, src, wire, uint64(c.elems), c.dirty, false)
	c.dirty = true
}

// applySet updates one chunk with the sum of a set, whose mean is scaled as if it were all workers' sum.
func (k *arithmetic) applySet(s *store, c *storedChunk, u *setUpdate, workers int) {
	if !c.dirty {
		return
	}
	c.dirty = false
	c.updates++
	t := &s.tensors[c.tensor]
	own := t.hyper
	own.LR *= t.lrMult * u.rate
	own.WD *= t.wdMult
	own.Scale *= float64(workers) / float64(u.size)
	scalars := optim.Derive(s.rule, own, c.updates)
	k.one[0] = s.accumulator(c)
	k.run(s, s.rule, &scalars, c, k.one[:], kernel.F32, nil, 0, false)
}

func (k *arithmetic) run(s *store, r optim.Rule, scalars *optim.Scalars, c *storedChunk, src []uint64, srcType uint8, outs []uint64,
	outType uint8, stream bool) {
	u := &k.update
	*u = kernel.Update{W: c.addr, N: uint64(c.elems), SrcType: srcType, OutType: outType, Rule: uint8(r), Scalar: *scalars}
	if stream {
		u.Stream = 1
	}
	for i := range s.states {
		u.State[i] = s.array(c, 1+i)
	}
	if err := u.Run(k.isa, src, outs); err != nil {
		panic(err) // the rule was checked when the job was made
	}
}

// decision is what all lanes work out of a commit, each for itself and all the same.
type decision struct {
	record chunk.TensorRecord
	epoch  uint8
	norm   float64
	scale  float32
	skip   bool
}

// decide works out the step's gradient scale from the global norm. Clipping is torch.nn.utils.clip_grad_norm_'s.
func decide(record *chunk.TensorRecord, epoch uint8, normSq float64) decision {
	d := decision{record: *record, epoch: epoch, scale: record.Scale, skip: record.Flags&chunk.RecordSkip != 0}
	if d.scale == 0 {
		d.scale = 1
	}
	d.norm = math.Sqrt(normSq) * math.Abs(float64(d.scale))
	if record.Flags&chunk.RecordSkipNonFinite != 0 {
		told := float64(float32(d.norm)) // what the workers see, so that they know
		d.skip = d.skip || math.IsInf(told, 0) || math.IsNaN(told)
	}
	if clip := float64(record.Clip); clip > 0 {
		if coef := clip / (d.norm + 1e-6); coef < 1 {
			d.scale = float32(float64(d.scale) * coef)
		}
	}
	return d
}

// answer is what the workers are told of the commit, in a record of its own form.
func (d *decision) answer() chunk.TensorRecord {
	r := d.record
	r.Scale, r.Extra = d.scale, float32(d.norm)
	return r
}

// hyper is the step's hyper-parameters for a tensor: the job's, with what the commit carries.
func (d *decision) hyper(s *store, t *storedTensor) optim.Hyper {
	h := s.hyper
	h.LR = float64(d.record.LR) * t.lrMult
	h.WD = float64(d.record.WD) * t.wdMult
	h.Scale = float64(d.scale)
	return h
}

// apply updates one chunk with its accumulated gradient, which is dropped then; by LAMB only after its second pass.
func (k *arithmetic) apply(s *store, c *storedChunk, d *decision) {
	c.norms.gradient[(d.epoch+1)&1] = 0 // the next step's, which no lane reads yet
	if !c.dirty {
		return
	}
	c.dirty = !d.skip && s.rule.NeedsNorms()
	if d.skip {
		return
	}
	t := &s.tensors[c.tensor]
	c.updates++
	if t.scalarsFor != c.updates {
		t.scalars, t.scalarsFor = optim.Derive(s.rule, d.hyper(s, t), c.updates), c.updates
	}
	acc := s.accumulator(c)
	k.one[0] = acc
	if !s.rule.NeedsNorms() {
		k.run(s, s.rule, &t.scalars, c, k.one[:], kernel.F32, nil, 0, false)
		return
	}
	k.run(s, s.rule, &t.scalars, c, k.one[:], kernel.F32, k.one[:], kernel.F32, false)
	c.norms.param = kernel.SumSq(k.isa, c.addr, uint64(c.elems))
	c.norms.step = kernel.SumSq(k.isa, acc, uint64(c.elems))
}

// scale is LAMB's second pass: the step scaled by the tensor's trust ratio, whose norms are added in the plan's order.
func (k *arithmetic) scale(s *store, c *storedChunk, d *decision) {
	if !c.dirty {
		return
	}
	c.dirty = false
	t := &s.tensors[c.tensor]
	var w, step float64
	for i := range t.norms {
		w += t.norms[i].param
		step += t.norms[i].step
	}
	scalars := optim.DeriveLAMBApply(d.hyper(s, t), c.updates, w, step)
	k.one[0] = s.accumulator(c)
	k.run(s, optim.LAMBApply, &scalars, c, k.one[:], kernel.F32, nil, 0, false)
}
