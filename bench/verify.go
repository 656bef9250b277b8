package bench

import (
	"context"
	"runtime"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/rackweave/rackweave/aggregate/optim"
	"github.com/rackweave/rackweave/bench/report"
	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/codec"
)

// onWire rounds values in place as sending them in a wire type does.
func onWire(d chunk.DType, x []float32) {
	if d == chunk.BF16 || d == chunk.F16 {
		wire := make([]byte, len(x)*d.Size())
		optim.Encode(wire, x, d)
		optim.Decode(x, wire, d)
	}
}

// reference computes in plain Go each tensor as every worker must hold it after the last exchange, and returns their digests by
// rank. Of rows it computes all that each worker must get.
func reference(ctx context.Context, s *Spec, progress *report.Progress) ([][]uint64, error) {
	rule, h, err := s.optimizer()
	if err != nil {
		return nil, err
	}
	h = rule.Rounded(h)
	if s.Sparse() {
		return referenceRows(s, rule, h), nil
	}
	out := make([]uint64, len(s.Model.Tensors))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(runtime.GOMAXPROCS(0))
	for t := range out {
		g.Go(func() error {
			if ctx.Err() == nil {
				out[t] = digest(referenceTensor(s, rule, h, t))
				progress.Add(1)
			}
			return ctx.Err()
		})
	}
	return slices.Repeat([][]uint64{out}, s.Workers), g.Wait()
}

func referenceTensor(s *Spec, rule optim.Rule, h optim.Hyper, t int) []float32 {
	n := int(s.Model.Tensors[t].Elems())
	w := make([]float32, n)
	Gradient(w, s.Seed, 0, t, InitialStep)
	onWire(s.DType, w)
	gradients := s.gradientsOf(t)
	if s.outer.Every > 0 {
		return s.outerTensor(rule, h, w, gradients)
	}
	v := newWeights(w, rule.States(h))
	answer, core := s.answersOf(rule, t, w), s.crosses(rule, t, w)
	result := make([]float32, n)
	first := 0
	if rule == optim.Sum && s.codecs == (codec.Pair{}) && core == nil {
		first = s.Steps() - 1 // sums do not build on each other
	}
	for step := first; step < s.Steps(); step++ {
		sums := s.byRack(gradients(step), core)
		if rule == optim.Sum {
			optim.SumInto(result, sums, false)
		} else {
			k := optim.Derive(rule, h, uint32(step+1))
			optim.Update(rule, &k, v.w, v.states, sums, result)
		}
		if core != nil {
			core.results(result)
		} else if s.DType == chunk.F32 {
			onWire(s.core, result) // it crosses between racks in their type
		}
		answer(result)
	}
	onWire(s.DType, result)
	return result
}

// byRack adds the gradients of each rack, rounds their sums to the type in which they cross, and adds those of each pod's racks, in
// order: as aggregators of racks do. With codecs between racks it adds all.
func (s *Spec) byRack(grads [][]float32, core *coded) [][]float32 {
	if len(s.racks) == 0 {
		return grads
	}
	sums := added(grads, s.racks)
	if core != nil {
		return [][]float32{core.total(sums)}
	}
	for _, sum := range sums {
		onWire(s.core, sum)
	}
	return s.byPod(sums)
}

// byPod adds the sums of each pod's racks.
func (s *Spec) byPod(sums [][]float32) [][]float32 {
	if s.pods > 1 {
		pods := make([]int, s.pods)
		for i := range pods {
			pods[i] = len(sums) / s.pods
		}
		sums = added(sums, pods)
	}
	return sums
}

// added adds runs of these lengths.
func added(all [][]float32, runs []int) (sums [][]float32) {
	for _, n := range runs {
		sum := make([]float32, len(all[0]))
		optim.SumInto(sum, all[:n], false)
		sums, all = append(sums, sum), all[n:]
	}
	return sums
}
