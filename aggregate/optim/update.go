package optim

import (
	"fmt"
	"math"
)

// Derive computes the scalars of a tensor's step-th update, counted from 1. PyTorch's rules are derived in f64 and rounded once, as
// Python does. For MXNet's rules, the values that its kernels compute from their f32 parameters are computed in f32.
func Derive(r Rule, h Hyper, step uint32) Scalars {
	v := r.Record(h)
	k := Scalars{
		KScale: v[placeScale], KClip: v[placeClip], KLR: v[placeLR], KWD: v[placeWD],
		KKeep:     float32(1 - float64(h.LR*h.WD)),
		KMomentum: v[placeMomentum], KBeta2: v[placeBeta2], KEps: v[placeEps],
	}
	if !(k[KClip] > 0) {
		k[KClip] = float32(inf)
	}
	if derive := table[r].derive; derive != nil {
		return derive(k, h, step)
	}
	return k
}

// DeriveLAMBApply computes the scalars of LAMB's second pass from the sums of squares of the tensor's weights and of the step r
// from the first pass: lr·‖w‖/‖r‖, or lr where either is zero.
func DeriveLAMBApply(h Hyper, step uint32, weightSq, stepSq float64) Scalars {
	k := Derive(LAMBApply, h, step)
	weight, r := float32(math.Sqrt(weightSq)), float32(math.Sqrt(stepSq))
	if weight != 0 && r != 0 {
		k[KLR] = float32(k[KLR]*weight) / r
	}
	return k
}

// Update runs one step of a rule over len(w) elements. It sums grads in index order, updates w and the states in place and writes
// the result to out, unless out is nil. The result is the new weight. For [Sum], whose w may be nil, it is the scaled sum, and for
// [LAMB] the step. A missing state or arrays of different lengths panic.
func Update(r Rule, k *Scalars, w []float32, states [MaxStates][]float32, grads [][]float32, out []float32) {
	n := len(grads[0])
	check := func(what string, a []float32, needed bool) {
		if len(a) != n && (needed || a != nil) {
			panic(fmt.Sprintf("optim: %v: %s has %d elements, the gradient %d", r, what, len(a), n))
		}
	}
	for _, g := range grads {
		check("a gradient", g, true)
	}
	check("w", w, r != Sum)
	check("out", out, false)
	form := &table[r.form(k[KMomentum])]
	for i, s := range states {
		check("a state", s, i < form.states)
	}
	var e element
	for i := range n {
		g := grads[0][i]
		for _, more := range grads[1:] {
			g += more[i]
		}
		e = element{}
		if w != nil {
			e.w = w[i]
		}
		for j := range form.states {
			e.s[j] = states[j][i]
		}
		form.step(&e, k, mul(k[KScale], g))
		if r != Sum && !r.NeedsNorms() {
			w[i] = e.w
		}
		for j := range form.states {
			states[j][i] = e.s[j]
		}
		if out != nil {
			out[i] = e.w
		}
	}
}

// SumInto adds the sources in index order: ((s0 + s1) + s2) + …. With accumulate, dst comes before s0. So a sum over a prefix,
// followed by an accumulation of the rest, gives the bits of one sum over all.
func SumInto(dst []float32, srcs [][]float32, accumulate bool) {
	for i := range dst {
		rest := srcs
		x := dst[i]
		if !accumulate {
			x, rest = srcs[0][i], srcs[1:]
		}
		for _, s := range rest {
			x += s[i]
		}
		dst[i] = x
	}
}

// SumSq returns the sum of squares in f64: element i goes to partial sum i mod 16, and the sixteen are added in halves (0 to 8,
// 1 to 9, …, then 0 to 4, …). Each square of an f32 is exact in f64.
func SumSq(x []float32) float64 {
	var part [16]float64
	for i, v := range x {
		part[i%16] += float64(float64(v) * float64(v))
	}
	for half := 8; half > 0; half /= 2 {
		for j := range half {
			part[j] += part[j+half]
		}
	}
	return part[0]
}
