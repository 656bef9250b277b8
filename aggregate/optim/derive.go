package optim

import "math"

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
