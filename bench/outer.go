package bench

import (
	"fmt"

	"github.com/rackweave/rackweave/aggregate/optim"
	"github.com/rackweave/rackweave/aggregate/outer"
	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/codec"
	diloco "github.com/rackweave/rackweave/hierarchy/outer"
)

// take records how the job is spread over racks and which codecs it has, by the answer to its workers.
func (s *Spec) take(r *workerReport) (err error) {
	s.racks, s.pods = r.Racks, r.Pods
	if s.codecs, err = codec.ParsePair(r.Codecs.Names, true); err != nil {
		return err
	}
	if s.outer, err = diloco.Parse(r.Outer); err != nil {
		return err
	}
	if s.core, err = chunk.ParseDType(r.Core); err != nil {
		s.core, s.crossing = chunk.F32, r.Crossing
		if s.coreCodecs, err = codec.ParsePair(r.Core, true); err != nil {
			return err
		}
	}
	if s.outer.Every > 0 && s.coreCodecs != (codec.Pair{}) {
		return fmt.Errorf("codecs between racks (core: %s in the cluster's file) that meet by %v are not verified: use core f32, or no --verify",
			r.Core, s.outer)
	}
	if s.outer.Every > 0 && (s.outer.Fragments != 1 || s.outer.Drift > 0 || s.Steps()%s.outer.Every != 0) {
		return fmt.Errorf("%d exchanges of racks that meet by %v end with parameters that differ by rack, which are not verified: use 1 fragment, no drift and a multiple of %d exchanges",
			s.Steps(), s.outer, s.outer.Every)
	}
	if s.outer.Every > 0 && s.codecs.Down.ID != codec.Raw {
		return fmt.Errorf("racks that meet by %v with answers in %v end with parameters that differ by rack, which are not verified: use --compress %v/none",
			s.outer, s.codecs.Down, s.codecs.Up)
	}
	return nil
}

// weights are the parameters of a tensor in plain Go, with the states of their optimizer.
type weights struct {
	w      []float32
	states [optim.MaxStates][]float32
}

func newWeights(initial []float32, states int) weights {
	v := weights{w: append([]float32(nil), initial...)}
	for i := range states {
		v.states[i] = make([]float32, len(initial))
	}
	return v
}

// outerTensor is referenceTensor where racks train on their own and meet.
func (s *Spec) outerTensor(rule optim.Rule, h optim.Hyper, initial []float32, gradients func(step int) [][]float32) []float32 {
	outerRule, outerHyper := outer.Rule(s.outer, s.Workers)
	k := optim.Derive(outerRule, outerHyper, 1)
	outer := newWeights(initial, outerRule.States(outerHyper))
	start := append([]float32(nil), initial...)
	racks := make([]weights, len(s.racks))
	for r := range racks {
		racks[r] = newWeights(initial, rule.States(h))
	}
	come := make([][]float32, len(racks))
	for step := range s.Steps() {
		grads := gradients(step)
		for r, n := range s.racks {
			own := h
			own.Scale *= float64(s.Workers) / float64(n)
			inner := optim.Derive(rule, own, uint32(step+1))
			optim.Update(rule, &inner, racks[r].w, racks[r].states, grads[:n], nil)
			grads = grads[n:]
		}
		if !s.outer.Due(0, uint32(step+1)) {
			continue
		}
		for r, n := range s.racks {
			come[r] = make([]float32, len(initial))
			for i, x := range start {
				come[r][i] = (x - racks[r].w[i]) * float32(n)
			}
		}
		optim.Update(outerRule, &k, outer.w, outer.states, s.byPod(come), start)
		onWire(s.DType, start)
		for r := range racks {
			copy(racks[r].w, start)
		}
	}
	return start
}
