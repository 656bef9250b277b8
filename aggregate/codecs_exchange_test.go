package aggregate_test

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/rackweave/rackweave/aggregate"
	"github.com/rackweave/rackweave/aggregate/optim"
	"github.com/rackweave/rackweave/aggregate/racktest"
	"github.com/rackweave/rackweave/cgo/fabric/simfabric"
	"github.com/rackweave/rackweave/cgo/worker"
	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/codec"
	"github.com/rackweave/rackweave/hierarchy"
	"github.com/rackweave/rackweave/hierarchy/outer"
	"github.com/rackweave/rackweave/verbs"
)

// The first steps' residuals are in the last step's gradients.
func TestJobsWithCodecsEqualPlainGoBitForBit(t *testing.T) {
	momentum := optim.SGDMXNet.Defaults()
	momentum.Momentum, momentum.WD = 0.9, 1e-4
	for _, transport := range []struct{ provider, options string }{
		{simfabric.Provider, ""}, {simfabric.Provider, ",by_reference=1"}, {verbs.ProviderSHM, ""}, {verbs.ProviderTCP, ""},
	} {
		for _, tc := range []struct {
			codecs string
			mode   aggregate.Mode
			rule   optim.Rule
			hyper  optim.Hyper
		}{
			{"int8/none", aggregate.Eager, optim.SGDMXNet, momentum},
			{"int8", aggregate.Eager, optim.SGDMXNet, momentum},
			{"int4/int8:stochastic", aggregate.Eager, optim.AdamTorch, optim.AdamTorch.Defaults()},
			{"int4:stochastic", aggregate.Aggregate, optim.Sum, optim.Sum.Defaults()},
			{"sign/none", aggregate.Aggregate, optim.Sum, optim.Sum.Defaults()},
			{"sign", aggregate.Eager, optim.SGDMXNet, momentum},
			{"2bit:0.5", aggregate.Eager, optim.SGDMXNet, momentum},
			{"ternary", aggregate.Aggregate, optim.Sum, optim.Sum.Defaults()},
			{"topk:1%/none", aggregate.Eager, optim.SGDMXNet, momentum},
			{"topk:20%", aggregate.Aggregate, optim.Sum, optim.Sum.Defaults()},
			{"fp8-e4m3/fp8-e5m2", aggregate.Eager, optim.AdamTorch, optim.AdamTorch.Defaults()},
			{"none/int4", aggregate.Eager, optim.SGDMXNet, momentum},
			{"none/int4", aggregate.Aggregate, optim.Sum, optim.Sum.Defaults()},
		} {
			t.Run(fmt.Sprint(transport.provider, transport.options, " ", pair(t, tc.codecs, true), " ", tc.mode), func(t *testing.T) {
				r, network := manualRack(t, transport.provider, transport.options, 3, racktest.Config{
					Lanes: 2, Window: 4, Staging: 3, Arena: tc.mode == aggregate.Eager,
					Job: aggregate.JobConfig{Name: "job", Mode: tc.mode, Rule: tc.rule, Hyper: tc.hyper, ChunkBytes: 4096,
						Compress: pair(t, tc.codecs, true)},
					Tensors: tensorsOf(chunk.F32, 1, 5000, 1023, 20000, 3),
				})
				exchange(t, r, 4, driven(r, network))
			})
		}
	}
}

// Where answers that are raw come into the memory of compressed gradients, no answer is written before the gradients are read.
func TestRawAnswersComeAfterTheShorterGradientsWereRead(t *testing.T) {
	for _, mode := range []aggregate.Mode{aggregate.Eager, aggregate.Aggregate} {
		for _, copies := range []bool{false, true} {
			t.Run(fmt.Sprintf("%v, copies %v", mode, copies), func(t *testing.T) {
				c := sumJob("job", 30_000, 700)
				c.Copy, c.Job.Mode, c.Job.ChunkBytes, c.Job.Compress = copies, mode, 32<<10, pair(t, "int8/none", true)
				if mode == aggregate.Eager {
					c.Job.Rule, c.Job.Hyper = optim.SGDTorch, optim.SGDTorch.Defaults()
				}
				r := threadedRack(t, verbs.ProviderSHM, 2, c)
				exchange(t, r, 3, func(ops [][]worker.Op) error { return runAll(r, ops) })
			})
		}
	}
}

// within puts the codecs of the racks' workers around a cluster in plain Go.
func within(c *racktest.Cluster, p codec.Pair, step plainGo, initial [][]float32) plainGo {
	plan, job := c.Racks[0].Plan, &c.Racks[0].Config.Job
	streams := func(s codec.Spec, rank int) (out []*codec.Stream) {
		for t := range plan.NumTensors() {
			key := codec.Key{Tensor: uint32(t), Rank: uint32(rank)}
			out = append(out, codec.NewStream(s, int(plan.Tensor(t).Elems), job.ChunkBytes/4, key))
		}
		return out
	}
	var gradients [][][]*codec.Stream // by rack, worker and tensor
	var answers [][]*codec.Stream     // by rack and tensor
	for i, r := range c.Racks {
		var of [][]*codec.Stream
		for _, w := range r.Workers {
			of = append(of, streams(p.Up, r.Config.FirstRank+w.Rank))
		}
		gradients, answers = append(gradients, of), append(answers, streams(p.Down, codec.AnswerRank))
		for t := range initial {
			if job.Mode == aggregate.Eager {
				copy(answers[i][t].Kept, initial[t])
			}
		}
	}
	return func(grads [][][][]float32) [][][]float32 {
		for r := range grads {
			for w := range grads[r] {
				for t, g := range grads[r][w] {
					grads[r][w][t] = gradients[r][w][t].Gradient(g, 1)
				}
			}
		}
		out := make([][][]float32, len(grads))
		for r, values := range step(grads) {
			for t, x := range values {
				switch s := answers[r][t]; {
				case p.Down.ID == codec.Raw:
				case job.Mode == aggregate.Eager:
					x = s.Parameters(x)
				default:
					x = s.Gradient(x, 1)
				}
				out[r] = append(out[r], x)
			}
		}
		return out
	}
}

// What comes back from above the rack is encoded in each rack, for its own workers.
func TestRacksOfAJobWithCodecsEqualPlainGoBitForBit(t *testing.T) {
	momentum := optim.SGDMXNet.Defaults()
	momentum.Momentum = 0.9
	apart := outer.Optimizer{Every: 3, Fragments: 2, Rule: outer.Nesterov, LR: 0.7, Momentum: 0.9}
	for seed, tc := range []struct {
		codecs string
		mode   aggregate.Mode
		rule   optim.Rule
		hyper  optim.Hyper
		core   chunk.DType
		shape  hierarchy.Shape
		outer  outer.Optimizer
	}{
		{"int8", aggregate.Eager, optim.SGDMXNet, momentum, chunk.F32, hierarchy.Sharded, outer.Optimizer{}},
		{"sign/int8", aggregate.Eager, optim.SGDMXNet, momentum, chunk.BF16, hierarchy.Sharded, outer.Optimizer{}},
		{"int4/none", aggregate.Eager, optim.AdamTorch, optim.AdamTorch.Defaults(), chunk.F32, hierarchy.Ring, outer.Optimizer{}},
		{"topk:3%", aggregate.Aggregate, optim.Sum, optim.Sum.Defaults(), chunk.F32, hierarchy.Chain, outer.Optimizer{}},
		{"none/int4:stochastic", aggregate.Aggregate, optim.Sum, optim.Sum.Defaults(), chunk.F32, hierarchy.Root, outer.Optimizer{}},
		{"int4", aggregate.Eager, optim.SGDMXNet, momentum, chunk.F32, hierarchy.Sharded, apart},
	} {
		t.Run(fmt.Sprint(tc.codecs[:4], " ", tc.mode, " ", tc.shape, " every ", tc.outer.Every), func(t *testing.T) {
			workers, p := []int{2, 1, 2}, pair(t, tc.codecs, true)
			c, network := simCluster(t, uint64(seed), hierarchy.Topology{Racks: len(workers), Shape: tc.shape}, workers, racktest.Config{
				Lanes: 2, Window: 4, Staging: 3, Core: tc.core,
				Job: aggregate.JobConfig{Name: "job", Mode: tc.mode, Rule: tc.rule, Hyper: tc.hyper, ChunkBytes: 4096, Outer: tc.outer,
					Compress: p},
				Tensors: tensorsOf(chunk.F32, 1, 5000, 1023, 9000, 3),
			})
			exchangeWith(t, uint64(seed), c, 7, network, func(ref *racktest.Reference) plainGo {
				initial := make([][]float32, len(ref.W))
				for t := range initial {
					initial[t] = slices.Clone(ref.W[t])
				}
				ref.Core = tc.core
				step := func(grads [][][][]float32) [][][]float32 {
					return slices.Repeat([][][]float32{ref.StepRacks(grads, 0)}, len(grads))
				}
				if tc.outer.Every > 0 {
					plan := c.Racks[0].Plan
					step = racktest.NewOuter(tc.outer, ref, workers, 0, func(tensor, elem int) int {
						first, _ := plan.TensorChunks(tensor)
						return first + elem/1024
					}).Step
				}
				return within(c, p, step, initial)
			})
		})
	}
}

// Workers that only push, or pull alone, are not lost: the next answers are such that all have the same again.
func TestWorkersThatPullNowAndThenHaveTheSameParameters(t *testing.T) {
	h, p := optim.SGDTorch.Defaults(), pair(t, "int8/int4", true)
	r, network := simRack(t, 5, ",by_reference=1", 3, racktest.Config{Lanes: 2, Window: 4, Tensors: tensorsOf(chunk.F32, 3000),
		Job: aggregate.JobConfig{Name: "job", Mode: aggregate.Eager, Rule: optim.SGDTorch, Hyper: h, ChunkBytes: 4096, Compress: p}})
	ref := racktest.NewReference(aggregate.Eager, optim.SGDTorch, h, chunk.F32, [][]float32{make([]float32, 3000)})
	ref.Compress(codec.Pair{Up: p.Up}, 3, 4096)
	answers, first := codec.NewStream(p.Down, 3000, 1024, codec.Key{Rank: codec.AnswerRank}), true
	rng := rand.New(rand.NewPCG(1, 2))
	for step := range uint64(40) {
		var grads [][]float32
		var ops [][]worker.Op
		pulling, pulls := 0, make([]bool, 3)
		for rank, w := range r.Workers {
			g, op := gaussian(3000, 3*step+uint64(rank)), push
			if pulls[rank] = step%4 > 1 || rng.IntN(3) > 0; pulls[rank] {
				op = pushpull
				pulling++
			}
			copy(w.SrcF32(0), g)
			grads, ops = append(grads, g), append(ops, []worker.Op{w.Op(op, 0, 0)})
		}
		want := ref.StepTensor(0, grads)
		switch {
		case pulling > 0 && !first:
			want = answers.Parameters(want)
		case pulling > 0:
			copy(answers.Kept, want)
			first = false
		}
		if err := driven(r, network)(ops); err != nil {
			t.Fatal(err)
		}
		for rank, w := range r.Workers {
			if i, same := racktest.SameBits(w.DstF32(0)[:3000], want); pulls[rank] && !same {
				t.Fatalf("step %d: worker %d has %v as element %d, plain Go says %v", step, rank, w.DstF32(0)[i], i, want[i])
			}
		}
		if step%7 == 3 {
			alone := make([][]worker.Op, 3)
			alone[step%3] = []worker.Op{r.Workers[step%3].Op(chunk.OpPull, 0, 0)}
			if err := driven(r, network)(alone); err != nil {
				t.Fatal(err)
			}
			if i, same := racktest.SameBits(r.Workers[step%3].DstF32(0)[:3000], ref.W[0]); !same {
				t.Fatalf("step %d: element %d that was pulled differs", step, i)
			}
		}
	}
}

// Whether a rack's workers have asked for an answer makes no difference to those of the others.
func TestWorkersOfAllRacksThatPullNowAndThenHaveTheSameParameters(t *testing.T) {
	const elems = 3000
	h, p, workers := optim.SGDTorch.Defaults(), pair(t, "none/int4:stochastic", true), []int{2, 1}
	c, network := simCluster(t, 5, hierarchy.Topology{Racks: 2, Shape: hierarchy.Sharded}, workers, racktest.Config{
		Lanes: 2, Window: 4, Tensors: tensorsOf(chunk.F32, elems),
		Job: aggregate.JobConfig{Name: "job", Mode: aggregate.Eager, Rule: optim.SGDTorch, Hyper: h, ChunkBytes: 4096, Compress: p}})
	ref := racktest.NewReference(aggregate.Eager, optim.SGDTorch, h, chunk.F32, [][]float32{make([]float32, elems)})
	answers := codec.NewStream(p.Down, elems, 1024, codec.Key{Rank: codec.AnswerRank})
	rng := rand.New(rand.NewPCG(1, 3))
	for step := range uint64(40) {
		grads, ops, pulls := make([][][][]float32, 2), make([][][]worker.Op, 2), map[*racktest.Worker]bool{}
		for i, r := range c.Racks {
			for _, w := range r.Workers {
				g, op := gaussian(elems, 3*step+uint64(r.Config.FirstRank+w.Rank)), push
				if pulls[w] = rng.IntN(3) > 0; pulls[w] {
					op = pushpull
				}
				copy(w.SrcF32(0), g)
				grads[i], ops[i] = append(grads[i], [][]float32{g}), append(ops[i], []worker.Op{w.Op(op, 0, 0)})
			}
		}
		want := ref.StepRacks(grads, 0)[0]
		if step > 0 {
			want = answers.Parameters(want)
		} else {
			copy(answers.Kept, want)
		}
		handles, err := c.Submit(ops)
		if err == nil {
			err = c.Drive(network, handles, 100000)
		}
		if err != nil {
			t.Fatal(err)
		}
		for w, pulled := range pulls {
			if i, same := racktest.SameBits(w.DstF32(0)[:elems], want); pulled && !same {
				t.Fatalf("step %d: a worker has %v as element %d, plain Go says %v", step, w.DstF32(0)[i], i, want[i])
			}
		}
	}
}

// owned returns the parameters of a tensor of so many elements, each from the rack that updates it.
func owned(c *racktest.Cluster, elems int) []float32 {
	out := make([]float32, elems)
	for i, r := range c.Racks {
		for _, s := range r.Job.Shards() {
			for k := range s.Store.Chunks {
				if at := &s.Store.Chunks[k]; int(at.Owner) == i {
					copy(out[at.Offset/4:], s.Store.Values(at, 0))
				}
			}
		}
	}
	return out
}

// Whole gradients are small, so sums of codes and residuals are exact.
func TestAFlushLeavesNothingBehind(t *testing.T) {
	const elems = 3000
	for _, tc := range []struct {
		within, core string
		mode         aggregate.Mode
		shape        hierarchy.Shape
	}{
		{"none", "int4", aggregate.Aggregate, hierarchy.Sharded}, {"none", "int4/none", aggregate.Aggregate, hierarchy.Chain},
		{"none", "none/int4", aggregate.Aggregate, hierarchy.Ring}, {"int4", "none", aggregate.Aggregate, hierarchy.Sharded},
		{"int4", "int8/int4", aggregate.Aggregate, hierarchy.Root}, {"none", "int4", aggregate.Eager, hierarchy.Sharded},
		{"none/int4", "int4/none", aggregate.Eager, hierarchy.Root},
	} {
		t.Run(fmt.Sprint(tc.within, " ", tc.core, " ", tc.mode, " ", tc.shape), func(t *testing.T) {
			rule, h := optim.Sum, optim.Sum.Defaults()
			if tc.mode == aggregate.Eager {
				rule, h = optim.SGDTorch, optim.SGDTorch.Defaults()
			}
			c, network := simCluster(t, 5, hierarchy.Topology{Racks: 3, Shape: tc.shape}, []int{2, 1, 1}, racktest.Config{
				Lanes: 2, Window: 4, Tensors: tensorsOf(chunk.F32, elems), CoreCodecs: pair(t, tc.core, true),
				Job: aggregate.JobConfig{Name: "job", Mode: tc.mode, Rule: rule, Hyper: h, ChunkBytes: 4096,
					Compress: pair(t, tc.within, true)}})
			run := func(op chunk.Op) {
				t.Helper()
				handles, err := c.Submit(c.AllOps(op))
				if err == nil {
					err = c.Drive(network, handles, 100000)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			sent, came, rng := make([]float32, elems), map[*racktest.Worker][]float32{}, rand.New(rand.NewPCG(1, 4))
			for step := range 9 {
				for _, r := range c.Racks {
					for _, w := range r.Workers {
						for i := range sent {
							g := float32(rng.IntN(41) - 20)
							w.SrcF32(0)[i], sent[i] = g, sent[i]+g
						}
						if step%4 == 3 {
							worker.Flush(w.C)
						}
					}
				}
				run(pushpull)
				want := sent
				if tc.mode == aggregate.Eager {
					want = owned(c, elems)
				}
				same := true
				for _, r := range c.Racks {
					for _, w := range r.Workers {
						got := slices.Clone(w.DstF32(0)[:elems])
						for i, x := range came[w] {
							got[i] += x
						}
						if tc.mode == aggregate.Aggregate {
							came[w] = got
						}
						_, equal := racktest.SameBits(got, want)
						same = same && equal
					}
				}
				if flushed := step%4 == 3; same != flushed && step > 0 {
					t.Errorf("step %d: nothing is left behind: %v, flushed: %v", step, same, flushed)
				}
			}
		})
	}
}

// After a restore, the next answer carries the parameters uncompressed.
func TestAnswersAfterARestoreLeadToTheRestoredParameters(t *testing.T) {
	h, p := optim.SGDTorch.Defaults(), pair(t, "none/int8", true)
	r, network := simRack(t, 5, "", 2, racktest.Config{Lanes: 2, Window: 4, Tensors: tensorsOf(chunk.F32, 3000),
		Job: aggregate.JobConfig{Name: "job", Mode: aggregate.Eager, Rule: optim.SGDTorch, Hyper: h, ChunkBytes: 4096, Compress: p}})
	ref := racktest.NewReference(aggregate.Eager, optim.SGDTorch, h, chunk.F32, [][]float32{make([]float32, 3000)})
	ref.Compress(p, 2, 4096)
	step := func(seed uint64) {
		t.Helper()
		var grads [][]float32
		var ops [][]worker.Op
		for rank, w := range r.Workers {
			g := gaussian(3000, 2*seed+uint64(rank))
			copy(w.SrcF32(0), g)
			grads, ops = append(grads, g), append(ops, []worker.Op{w.Op(pushpull, 0, 0)})
		}
		want := ref.StepTensor(0, grads)
		if err := driven(r, network)(ops); err != nil {
			t.Fatal(err)
		}
		for _, w := range r.Workers {
			if i, same := racktest.SameBits(w.DstF32(0)[:3000], want); !same {
				t.Fatalf("step %d: worker %d has %v as element %d, plain Go says %v", seed, w.Rank, w.DstF32(0)[i], i, want[i])
			}
		}
	}
	step(1)
	s, err := r.Job.Snapshot(t.Context(), r.Plan)
	if err != nil {
		t.Fatal(err)
	}
	saved := gaussian(3000, 77)
	var pieces []aggregate.Piece
	for i := range r.Plan.NumChunks() {
		c := r.Plan.Chunk(i)
		pieces = append(pieces, aggregate.Piece{Chunk: i, Data: saved[c.Offset:][:c.Elems]})
	}
	if err := errors.Join(s.Write(t.Context(), pieces), s.SetUpdates(t.Context(), []uint32{1})); err != nil {
		t.Fatal(err)
	}
	ref.Replace(0, saved)
	step(2)
	step(3)
}

func TestATraceHasTheCodecsAndBytesOfGradientsAndAnswers(t *testing.T) {
	const elems = 1000
	r := threadedRack(t, verbs.ProviderTCP, 2, racktest.Config{
		Lanes: 1, Job: aggregate.JobConfig{Name: "job", Mode: aggregate.Aggregate, Hyper: optim.Sum.Defaults(),
			Compress: pair(t, "sign/int8", true)},
		Tensors: tensorsOf(chunk.F32, elems),
	})
	if _, _, err := r.Job.Trace(t.Context(), 100); err != nil {
		t.Fatal(err)
	}
	exchange(t, r, 2, func(ops [][]worker.Op) error { return runAll(r, ops) })
	lanes, _, err := r.Job.Trace(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]int{}
	for _, e := range lanes[0] {
		if e.Bytes > 0 {
			seen[fmt.Sprint(e.Kind, e.Codec, e.Bytes)]++
		}
	}
	up, down := codec.Spec{ID: codec.Sign}, codec.Spec{ID: codec.Int8}
	want := map[string]int{
		fmt.Sprint(aggregate.TraceArrive, codec.Raw, 4*elems): 1, fmt.Sprint(aggregate.TraceFold, codec.Raw, 4*elems): 1, // a broadcast
		fmt.Sprint(aggregate.TraceArrive, up.ID, up.Bytes(elems)): 4, fmt.Sprint(aggregate.TraceFold, down.ID, down.Bytes(elems)): 2,
	}
	if !maps.Equal(seen, want) {
		t.Errorf("%v, want %v", seen, want)
	}
}
