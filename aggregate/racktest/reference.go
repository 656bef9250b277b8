package racktest

import (
	"math"
	"slices"

	"github.com/rackweave/rackweave/aggregate"
	"github.com/rackweave/rackweave/aggregate/optim"
	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/codec"
)

// Reference is a job in plain Go. It holds the parameters and state of every tensor, and updates them step by step.
type Reference struct {
	Mode   aggregate.Mode
	Rule   optim.Rule
	Hyper  optim.Hyper
	Wire   chunk.DType
	Core   chunk.DType // type of racks' sums, and of results in f32, between racks; if 0, they are not rounded
	W      [][]float32
	states [][optim.MaxStates][]float32
	steps  []uint32
	acc    [][]float32 // two-phase: the gradients pushed since the last commit, or nil
	codecs *codecs     // if nil, the job has none

	Tables    map[int]*Table             // by number of a sparse tensor; Commit updates their rows, too
	TableRows func(tensor int) [][]int64 // the rows of a sparse tensor by lane, in the order of their chunks
}

// NewReference returns a reference that starts from parameters w and updates them in place. w may be nil for an aggregate-only job.
// Hyper-parameters of eager jobs are rounded as control records round them.
func NewReference(mode aggregate.Mode, rule optim.Rule, h optim.Hyper, wire chunk.DType, w [][]float32) *Reference {
	r := &Reference{Mode: mode, Rule: rule, Hyper: h, Wire: wire}
	if mode == aggregate.Eager {
		r.Hyper = rule.Rounded(h)
	}
	r.Add(w...)
	return r
}

// Add appends tensors.
func (r *Reference) Add(w ...[]float32) {
	for _, x := range w {
		var states [optim.MaxStates][]float32
		for i := range r.Rule.States(r.Hyper) {
			states[i] = make([]float32, len(x))
		}
		r.W = append(r.W, x)
		r.states = append(r.states, states)
		r.steps = append(r.steps, 0)
		r.acc = append(r.acc, nil)
	}
}

// Compress gives the job codecs, workers of one rack, and chunks of so many bytes.
func (r *Reference) Compress(p codec.Pair, workers, chunkBytes int) {
	r.codecs = &codecs{Pair: p, workers: workers, chunk: chunkBytes / r.Wire.Size()}
}

// Broadcast makes values a tensor's parameters.
func (r *Reference) Broadcast(t int, w []float32) {
	copy(r.W[t], w)
	if k := r.codecs; k != nil && r.Mode != aggregate.Aggregate {
		k.reach(r.W, t)
		copy(k.answers[t].Kept, w)
		k.apart[t] = false
	}
}

// Replace makes values a tensor's parameters, as a restore does.
func (r *Reference) Replace(t int, w []float32) {
	copy(r.W[t], w)
	if k := r.codecs; k != nil {
		k.reach(r.W, t)
		k.apart[t] = true
	}
}

// Arrays returns copies of a tensor's parameters and states, in the order of a checkpoint.
func (r *Reference) Arrays(t int) (out [][]float32) {
	out = append(out, slices.Clone(r.W[t]))
	for i := range r.Rule.States(r.Hyper) {
		out = append(out, slices.Clone(r.states[t][i]))
	}
	return out
}

// Step takes gradients by worker and tensor, and returns the answer to a pushpull of each tensor.
func (r *Reference) Step(grads [][][]float32) [][]float32 {
	out := make([][]float32, len(grads[0]))
	for t := range out {
		g := make([][]float32, len(grads))
		for w := range grads {
			g[w] = grads[w][t]
		}
		out[t] = r.StepTensor(t, g)
	}
	return out
}

// StepTensor is Step for one tensor.
func (r *Reference) StepTensor(t int, grads [][]float32) []float32 {
	return r.answered(t, r.stepped(t, r.received(t, grads)))
}

// PushTensor is StepTensor for pushes, whose answers have no data.
func (r *Reference) PushTensor(t int, grads [][]float32) { r.stepped(t, r.received(t, grads)) }

// received returns the gradients of a tensor as the aggregator gets them.
func (r *Reference) received(t int, grads [][]float32) [][]float32 {
	k := r.codecs
	if k == nil || k.Up.ID == codec.Raw {
		return onWire(r.Wire, grads)
	}
	k.reach(r.W, t)
	factor := float32(1)
	if r.Mode == aggregate.Eager {
		factor = k.factor(t, float32(r.Hyper.LR)*float32(r.Hyper.Scale))
	}
	out := make([][]float32, len(grads))
	for w, g := range grads {
		out[w] = k.gradients[t][w].Gradient(g, factor)
	}
	return out
}

// answered returns the values that workers have after a tensor's answer.
func (r *Reference) answered(t int, x []float32) []float32 {
	k := r.codecs
	switch {
	case k == nil || k.Down.ID == codec.Raw:
		return r.Answer(x)
	case r.Mode == aggregate.Aggregate:
		k.reach(r.W, t)
		return k.answers[t].Gradient(x, 1)
	}
	k.reach(r.W, t)
	if k.apart[t] {
		k.apart[t] = false
		copy(k.answers[t].Kept, x)
		return x
	}
	return k.answers[t].Parameters(x)
}

// update takes a step with these summands, and returns its answer.
func (r *Reference) update(t int, g [][]float32) []float32 { return r.Answer(r.stepped(t, g)) }

// stepped takes a step, and returns the parameters, or the sum.
func (r *Reference) stepped(t int, g [][]float32) []float32 {
	out := make([]float32, len(g[0]))
	r.steps[t]++
	k := optim.Derive(r.Rule, r.Hyper, r.steps[t])
	optim.Update(r.Rule, &k, r.W[t], r.states[t], g, out)
	return out
}

// Answer returns the answer to a worker for parameters, or for a sum.
func (r *Reference) Answer(x []float32) []float32 {
	if r.Core == chunk.BF16 && r.Wire == chunk.F32 {
		x = OnWire(r.Core, x)
	}
	return OnWire(r.Wire, x)
}

// Push adds every worker's gradients to the tensor's accumulator.
func (r *Reference) Push(t int, grads [][]float32) { r.accumulate(t, r.received(t, grads)) }

func (r *Reference) accumulate(t int, summands [][]float32) {
	first := r.acc[t] == nil
	if first {
		r.acc[t] = make([]float32, len(r.W[t]))
	}
	optim.SumInto(r.acc[t], summands, !first)
}

// Commit ends a two-phase step and returns the gradient's global norm, which is added chunk by chunk, in the plan's order.
func (r *Reference) Commit(rec chunk.TensorRecord, chunkBytes int) (norm float32) {
	perChunk := chunkBytes / r.Wire.Size()
	total := 0.0
	for t := range r.acc {
		eachChunk(r.acc[t], perChunk, func(sumSq float64) { total += sumSq })
		if k := r.Tables[t]; k != nil && k.acc != nil {
			for _, rows := range r.TableRows(t) {
				total += k.sumSq(rows)
			}
		}
	}
	scale := rec.Scale
	if scale == 0 {
		scale = 1
	}
	n := math.Sqrt(total) * math.Abs(float64(scale))
	if coef := float64(rec.Clip) / (n + 1e-6); rec.Clip > 0 && coef < 1 {
		scale = float32(float64(scale) * coef)
	}
	h := r.Hyper
	h.LR, h.WD, h.Scale = float64(rec.LR), float64(rec.WD), float64(scale)
	finite := n <= math.MaxFloat32
	skip := rec.Flags&chunk.RecordSkip != 0 || rec.Flags&chunk.RecordSkipNonFinite != 0 && !finite
	for t := range r.acc {
		if r.acc[t] != nil && !skip {
			r.apply(t, h, perChunk)
		}
	}
	for _, k := range r.Tables {
		k.Commit(r.Rule, h, skip)
	}
	clear(r.acc)
	return float32(n)
}

// apply updates one tensor with its accumulated gradient.
func (r *Reference) apply(t int, h optim.Hyper, perChunk int) {
	r.steps[t]++
	k := optim.Derive(r.Rule, h, r.steps[t])
	acc := [][]float32{r.acc[t]}
	if !r.Rule.NeedsNorms() {
		optim.Update(r.Rule, &k, r.W[t], r.states[t], acc, nil)
		return
	}
	direction := make([]float32, len(r.W[t]))
	optim.Update(r.Rule, &k, r.W[t], r.states[t], acc, direction)
	var w, step float64
	eachChunk(r.W[t], perChunk, func(sumSq float64) { w += sumSq })
	eachChunk(direction, perChunk, func(sumSq float64) { step += sumSq })
	k = optim.DeriveLAMBApply(h, r.steps[t], w, step)
	optim.Update(optim.LAMBApply, &k, r.W[t], r.states[t], acc, nil)
}

func eachChunk(x []float32, perChunk int, f func(sumSq float64)) {
	for len(x) > 0 {
		n := min(len(x), perChunk)
		f(optim.SumSq(x[:n]))
		x = x[n:]
	}
}

func onWire(d chunk.DType, grads [][]float32) [][]float32 {
	out := make([][]float32, len(grads))
	for i, g := range grads {
		out[i] = OnWire(d, g)
	}
	return out
}

// OnWire returns f32 values after their rounding to a wire type.
func OnWire(d chunk.DType, x []float32) []float32 {
	if d == chunk.F32 {
		return x
	}
	out := make([]float32, len(x))
	for i, v := range x {
		if d == chunk.BF16 {
			out[i] = optim.FromBF16(optim.BF16(v))
		} else {
			out[i] = optim.FromF16(optim.F16(v))
		}
	}
	return out
}

// SameBits reports whether two vectors are equal bit for bit, and the first index at which they differ.
func SameBits(a, b []float32) (int, bool) {
	for i := range a {
		if math.Float32bits(a[i]) != math.Float32bits(b[i]) {
			return i, false
		}
	}
	return 0, len(a) == len(b)
}
