package racktest

import (
	"github.com/rackweave/rackweave/aggregate/optim"
	"github.com/rackweave/rackweave/policy"
)

// Replay makes an update that a policy decided, in a job of mode stream with so many workers. gradient gives a worker's of a step,
// for all tensors.
func (r *Reference) Replay(update policy.Act, workers int, gradient func(rank int, step uint64) [][]float32) {
	size := float64(len(update.Parts))
	sums := make([][]float32, len(r.W))
	for i, part := range update.Parts {
		for t, g := range onWire(r.Wire, gradient(part.W, part.Step)) {
			if weight := part.Weight * size; weight != 1 {
				scaled := make([]float32, len(g))
				k := optim.Derive(optim.Sum, optim.Hyper{Scale: weight}, 1)
				optim.Update(optim.Sum, &k, nil, [optim.MaxStates][]float32{}, [][]float32{g}, scaled)
				g = scaled
			}
			if i == 0 {
				sums[t] = make([]float32, len(g))
			}
			optim.SumInto(sums[t], [][]float32{g}, i > 0)
		}
	}
	h := r.Rule.Rounded(r.Hyper)
	h.LR *= update.Rate
	h.Scale *= float64(workers) / size
	for t, sum := range sums {
		r.steps[t]++
		k := optim.Derive(r.Rule, h, r.steps[t])
		optim.Update(r.Rule, &k, r.W[t], r.states[t], [][]float32{sum}, nil)
	}
}
