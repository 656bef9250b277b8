package store

import (
	"math"

	"github.com/rackweave/rackweave/aggregate/optim"
	"github.com/rackweave/rackweave/cgo/kernel"
	"github.com/rackweave/rackweave/chunk"
)

// Arithmetic runs stores' sums and updates on one core.
type Arithmetic struct {
	ISA    kernel.ISA
	update kernel.Update // the arguments of the update under way
	coded  kernel.Encoding
	one    [1]uint64 // a list of one address
	sums   kernel.Rows
	block  [1]kernel.RowSource
}

// Sum writes the sum of the sources, in the wire's type and scaled and clipped as the job asks, to every output.
func (k *Arithmetic) Sum(s *Store, c *Chunk, src kernel.Sources, outs []uint64, pastCache bool) {
	out := uint8(s.Tensors[c.Tensor].Result)
	if s.Sum != nil {
		k.run(s, optim.Sum, s.Sum, c, src, outs, out, pastCache)
		return
	}
	kernel.Sum{Dst: outs, DstType: out, Src: src, N: uint64(c.Elems), PastCache: pastCache}.Run(k.ISA)
}

// Accumulate adds the sum of the sources to the chunk's accumulator, and computes its norm for the commit of this parity.
func (k *Arithmetic) Accumulate(s *Store, c *Chunk, src kernel.Sources, parity uint8) {
	k.accumulate(s, c, src)
	c.Norms.Gradient[parity] = kernel.SumSq(k.ISA, k.one[0], uint64(c.Elems))
}

func (k *Arithmetic) accumulate(s *Store, c *Chunk, src kernel.Sources) {
	k.one[0] = s.Accumulator(c)
	kernel.Sum{Dst: k.one[:], DstType: kernel.F32, Src: src, N: uint64(c.Elems), Accumulate: c.Dirty}.Run(k.ISA)
	c.Dirty = true
}

// SumInto writes the sum of the sources to one address.
func (k *Arithmetic) SumInto(out uint64, outType uint8, src kernel.Sources, elems uint32) {
	k.one[0] = out
	kernel.Sum{Dst: k.one[:], DstType: outType, Src: src, N: uint64(elems)}.Run(k.ISA)
}

// Broadcast makes the root's values the chunk's parameters, and writes them to every output.
func (k *Arithmetic) Broadcast(s *Store, c *Chunk, root uint64, outs []uint64, pastCache bool) {
	wire := uint8(s.Tensors[c.Tensor].Wire)
	k.Replace(s, c, root, wire)
	for _, out := range outs {
		kernel.Convert(k.ISA, out, wire, root, wire, uint64(c.Elems), pastCache)
	}
}

// Replace makes values of a type the chunk's parameters, if the job keeps parameters.
func (k *Arithmetic) Replace(s *Store, c *Chunk, values uint64, kind uint8) {
	if c.Addr != 0 {
		s.Remember(c)
		kernel.Convert(k.ISA, c.Addr, kernel.F32, values, kind, uint64(c.Elems), false)
	}
}

// ReplaceUpdated makes a result of the chunk's owner, an update, the chunk's parameters.
func (k *Arithmetic) ReplaceUpdated(s *Store, c *Chunk, result uint64) {
	k.Replace(s, c, result, uint8(s.Tensors[c.Tensor].Result))
	c.Updates++
	s.Updated(c)
}

// Parameters writes the chunk's parameters to out, in the wire's type.
func (k *Arithmetic) Parameters(s *Store, c *Chunk, out uint64) {
	t, from, kind := &s.Tensors[c.Tensor], c.Addr, uint8(kernel.F32)
	if c.Refers {
		from = c.Core
	}
	if t.Result != t.Wire {
		kernel.Convert(k.ISA, s.TempChunk, uint8(t.Result), c.Addr, kernel.F32, uint64(c.Elems), false)
		from, kind = s.TempChunk, uint8(t.Result)
	}
	kernel.Convert(k.ISA, out, uint8(t.Wire), from, kind, uint64(c.Elems), false)
}

// Step runs the job's rule over the sum of the sources, and writes the new parameters, in the wire's type, to every output.
func (k *Arithmetic) Step(s *Store, c *Chunk, src kernel.Sources, outs []uint64, pastCache bool) {
	t := &s.Tensors[c.Tensor]
	k.step(s, c, t.multiplied(t.Hyper, 1, s.Scale), src, outs, uint8(t.Result), pastCache)
}

// StepOne runs the job's rule with one worker's gradient. factor is the policy's share of the learning rate. The gradient is scaled
// as if it were the sum of all workers', so that rules in which a scale cancels out take the same hyper-parameters as in mode
// eager.
func (k *Arithmetic) StepOne(s *Store, c *Chunk, h *optim.Hyper, factor float64, workers int, src kernel.Sources, outs []uint64) {
	t := &s.Tensors[c.Tensor]
	k.step(s, c, t.multiplied(*h, factor, float64(workers)), src, outs, uint8(t.Wire), false)
}

// AccumulateOne adds one worker's gradient, times weight, to the chunk's accumulator. scaled has room for a chunk in f32.
func (k *Arithmetic) AccumulateOne(s *Store, c *Chunk, src kernel.Sources, weight float64, scaled uint64) {
	if weight != 1 {
		scalars := optim.Derive(optim.Sum, optim.Hyper{Scale: weight}, 1)
		k.one[0] = scaled
		k.run(s, optim.Sum, &scalars, c, src, k.one[:], kernel.F32, false)
		src.Addr[0] = scaled
		src = kernel.From(src.Addr, kernel.F32)
	}
	k.accumulate(s, c, src)
}

// ApplySet updates one chunk with the accumulated sum of a set of so many gradients. Their mean is scaled as if it were the sum of
// all workers' gradients. If size is 0, ApplySet drops the sum.
func (k *Arithmetic) ApplySet(s *Store, c *Chunk, size int, rate float64, workers int) {
	if !c.Dirty {
		return
	}
	c.Dirty = false
	if size == 0 {
		return
	}
	t := &s.Tensors[c.Tensor]
	k.one[0] = s.Accumulator(c)
	k.step(s, c, t.multiplied(t.Hyper, rate, float64(workers)/float64(size)), kernel.From(k.one[:], kernel.F32), nil, 0, false)
}

// step runs the job's rule for the chunk's next step. A tensor's chunks usually share the scalars of a step.
func (k *Arithmetic) step(s *Store, c *Chunk, h optim.Hyper, src kernel.Sources, outs []uint64, outType uint8, pastCache bool) {
	t := &s.Tensors[c.Tensor]
	c.Updates++
	t.derive(s, h, c.Updates)
	k.run(s, s.Rule, &t.scalars, c, src, outs, outType, pastCache)
	s.Updated(c)
}

// derive sets the scalars of a step of the job's rule.
func (t *Tensor) derive(s *Store, h optim.Hyper, step uint32) {
	if t.scalarsFor != step || t.scalarsOf != h {
		t.scalars, t.scalarsFor, t.scalarsOf = optim.Derive(s.Rule, h, step), step, h
	}
}

func (k *Arithmetic) run(s *Store, r optim.Rule, scalars *optim.Scalars, c *Chunk, src kernel.Sources, outs []uint64, outType uint8,
	pastCache bool) {
	u := &k.update
	*u = kernel.Update{W: c.Addr, N: uint64(c.Elems), OutType: outType, Rule: uint8(r), Scalar: *scalars}
	if pastCache {
		u.PastCache = 1
	}
	for i := range s.States {
		u.State[i] = s.Array(c, 1+i)
	}
	u.Run(k.ISA, src, outs)
}

// Commit is the outcome of a two-phase step's commit. Every lane computes it, with equal results.
type Commit struct {
	record chunk.TensorRecord
	epoch  uint8
	norm   float64
	scale  float32
	Skip   bool // the step does not update parameters
}

// NewCommit computes the step's gradient scale from the global norm. Clipping is torch.nn.utils.clip_grad_norm_'s.
func NewCommit(record *chunk.TensorRecord, epoch uint8, normSq float64) Commit {
	d := Commit{record: *record, epoch: epoch, scale: record.Scale, Skip: record.Flags&chunk.RecordSkip != 0}
	if d.scale == 0 {
		d.scale = 1
	}
	d.norm = math.Sqrt(normSq) * math.Abs(float64(d.scale))
	if record.Flags&chunk.RecordSkipNonFinite != 0 {
		told := float64(float32(d.norm)) // as the workers see the norm, so that they can repeat the decision
		d.Skip = d.Skip || math.IsInf(told, 0) || math.IsNaN(told)
	}
	if clip := float64(record.Clip); clip > 0 {
		if coef := clip / (d.norm + 1e-6); coef < 1 {
			d.scale = float32(float64(d.scale) * coef)
		}
	}
	return d
}

// Answer returns the commit's record with the scale and the norm that were used.
func (d *Commit) Answer() chunk.TensorRecord {
	r := d.record
	r.Scale, r.Extra = d.scale, float32(d.norm)
	return r
}

// hyper returns the step's hyper-parameters for a tensor: the job's, with the values that the commit carries.
func (d *Commit) hyper(s *Store, t *Tensor) optim.Hyper {
	h := s.Hyper
	h.LR, h.WD, h.Scale = float64(d.record.LR), float64(d.record.WD), float64(d.scale)
	return t.multiplied(h, 1, 1)
}

// Apply updates one chunk with its accumulated gradient, and drops the gradient. LAMB drops it after its second pass.
func (k *Arithmetic) Apply(s *Store, c *Chunk, d *Commit) {
	c.Norms.Gradient[(d.epoch+1)&1] = 0 // the next step's norm, which lanes do not read yet
	if !c.Dirty {
		return
	}
	c.Dirty = !d.Skip && s.Rule.NeedsNorms()
	if d.Skip {
		return
	}
	k.one[0] = s.Accumulator(c)
	h, gradient := d.hyper(s, &s.Tensors[c.Tensor]), kernel.From(k.one[:], kernel.F32)
	if !s.Rule.NeedsNorms() {
		k.step(s, c, h, gradient, nil, 0, false)
		return
	}
	k.step(s, c, h, gradient, k.one[:], kernel.F32, false)
	c.Norms.Param = kernel.SumSq(k.ISA, c.Addr, uint64(c.Elems))
	c.Norms.Step = kernel.SumSq(k.ISA, k.one[0], uint64(c.Elems))
}

// Rescale runs LAMB's second pass: the step scaled by the tensor's trust ratio, whose norms are added in the plan's order.
func (k *Arithmetic) Rescale(s *Store, c *Chunk, d *Commit) {
	if !c.Dirty {
		return
	}
	c.Dirty = false
	t := &s.Tensors[c.Tensor]
	var w, step float64
	for i := range t.norms {
		w += t.norms[i].Param
		step += t.norms[i].Step
	}
	scalars := optim.DeriveLAMBApply(d.hyper(s, t), c.Updates, w, step)
	k.one[0] = s.Accumulator(c)
	k.run(s, optim.LAMBApply, &scalars, c, kernel.From(k.one[:], kernel.F32), nil, 0, false)
	s.Updated(c)
}

// RunOn runs an update of a chunk's length over arrays in f32 other than the chunk's own.
func (k *Arithmetic) RunOn(c *Chunk, u kernel.Update, src kernel.Sources, outs []uint64, outType uint8) {
	k.update = u
	k.update.N, k.update.OutType = uint64(c.Elems), outType
	k.update.Run(k.ISA, src, outs)
}

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

// Add returns the racks' sums, or the pods' sums if the job has several pods.
func (b *RackSum) Add(k *Arithmetic, src kernel.Sources, elems uint32) kernel.Sources {
	first := 0
	for i, n := range b.racks {
		k.SumInto(b.sums[i], kernel.F32, src.Part(first, first+n), elems)
		first += n
	}
	if b.pods < 2 {
		return kernel.From(b.sums, kernel.F32)
	}
	size := len(b.sums) / b.pods
	for p := range b.pods {
		k.SumInto(b.sums[p], kernel.F32, kernel.From(b.sums[p*size:(p+1)*size], kernel.F32), elems)
	}
	return kernel.From(b.sums[:b.pods], kernel.F32)
}
