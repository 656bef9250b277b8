package racktest

import (
	"github.com/rackweave/rackweave/aggregate/optim"
	"github.com/rackweave/rackweave/policy"
)

// Replay makes an update that a policy decided, in a job of mode stream with so many workers. gradient returns a worker's gradient
// of a step, for all tensors.
func (r *Reference) Replay(update policy.Act, workers int, gradient func(rank int, step uint64) [][]float32) {
	for t := range r.W {
		r.ReplayTensor(t, update, workers, func(rank int, step uint64) []float32 { return gradient(rank, step)[t] })
	}
}

// ReplayTensor is Replay for one tensor. gradient returns nil for a worker that did not push it in the step.
func (r *Reference) ReplayTensor(t int, update policy.Act, workers int, gradient func(rank int, step uint64) []float32) {
	size := float64(len(update.Parts))
	var sum []float32
	for _, part := range update.Parts {
		g := gradient(part.W, part.Step)
		if g == nil {
			continue
		}
		g = OnWire(r.Wire, g)
		if weight := part.Weight * size; weight != 1 {
			scaled := make([]float32, len(g))
			k := optim.Derive(optim.Sum, optim.Hyper{Scale: weight}, 1)
			optim.Update(optim.Sum, &k, nil, [optim.MaxStates][]float32{}, [][]float32{g}, scaled)
			g = scaled
		}
		first := sum == nil
		if first {
			sum = make([]float32, len(g))
		}
		optim.SumInto(sum, [][]float32{g}, !first)
	}
	if sum == nil {
		return
	}
	h := r.Rule.Rounded(r.Hyper)
	h.LR *= update.Rate
	h.Scale *= float64(workers) / size
	r.steps[t]++
	k := optim.Derive(r.Rule, h, r.steps[t])
	optim.Update(r.Rule, &k, r.W[t], r.states[t], [][]float32{sum}, nil)
}
