package aggregate_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/rackweave/rackweave/aggregate"
	"github.com/rackweave/rackweave/aggregate/optim"
	"github.com/rackweave/rackweave/aggregate/racktest"
	"github.com/rackweave/rackweave/cgo/worker"
	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/hierarchy"
)

// twoPhaseRacks is a cluster in two-phase mode, and its reference.
type twoPhaseRacks struct {
	*racktest.Cluster
	t       *testing.T
	ref     *racktest.Reference
	rng     *rand.Rand
	pods    int
	network func()
}

func (c *twoPhaseRacks) drive(handles [][][]uint64) {
	c.t.Helper()
	if err := c.Drive(c.network, handles, 200000); err != nil {
		c.t.Fatal(err)
	}
}

// each runs an operation on some tensors with every worker.
func (c *twoPhaseRacks) each(kind chunk.Op, tensors []int) {
	c.t.Helper()
	ops := make([][][]worker.Op, len(c.Racks))
	for r, rack := range c.Racks {
		for _, w := range rack.Workers {
			var of []worker.Op
			for _, k := range tensors {
				of = append(of, w.Op(kind, k, 0))
			}
			c.rng.Shuffle(len(of), func(a, b int) { of[a], of[b] = of[b], of[a] })
			ops[r] = append(ops[r], of)
		}
	}
	handles, err := c.Submit(ops)
	if err != nil {
		c.t.Fatal(err)
	}
	c.drive(handles)
}

func (c *twoPhaseRacks) push(tensors []int) {
	c.t.Helper()
	grads := make([][][][]float32, len(c.Racks))
	for r, rack := range c.Racks {
		for _, w := range rack.Workers {
			of := make([][]float32, rack.Plan.NumTensors())
			for _, k := range tensors {
				of[k] = w.SrcF32(k)[:rack.Plan.Tensor(k).Elems]
				fill(c.rng, of[k])
			}
			grads[r] = append(grads[r], of)
		}
	}
	for _, k := range tensors {
		c.ref.PushRacks(k, grads, c.pods)
	}
	c.each(chunk.OpPush, tensors)
}

func (c *twoPhaseRacks) commit(rec chunk.TensorRecord) {
	c.t.Helper()
	handles := make([][][]uint64, len(c.Racks))
	for r, rack := range c.Racks {
		for _, w := range rack.Workers {
			h, rc := w.CommitStart(rec)
			if rc < 0 {
				c.t.Fatal(w.Error(rc))
			}
			handles[r] = append(handles[r], []uint64{h})
		}
	}
	c.drive(handles)
	want := c.ref.Commit(rec, c.Racks[0].Config.Job.ChunkBytes)
	for r, rack := range c.Racks {
		for _, w := range rack.Workers {
			a, err := w.Answer()
			if norm := a.Norm; err != nil || norm != want && (norm == norm || want == want) { // both may be NaN
				c.t.Fatalf("rack %d worker %d got norm %v, %v; plain Go says %v", r, w.Rank, norm, err, want)
			}
		}
	}
}

// pull checks that every worker of every rack gets the reference's parameters.
func (c *twoPhaseRacks) pull(what string, tensors []int) {
	c.t.Helper()
	c.each(chunk.OpPull, tensors)
	for r, rack := range c.Racks {
		for _, w := range rack.Workers {
			for _, k := range tensors {
				want := c.ref.Answer(c.ref.W[k])
				if i, same := racktest.SameBits(want, w.DstF32(k)[:len(want)]); !same {
					c.t.Fatalf("%s: rack %d worker %d tensor %d element %d is %v, plain Go says %v", what, r, w.Rank, k, i, w.DstF32(k)[i],
						want[i])
				}
			}
		}
	}
}

func (c *twoPhaseRacks) run(commits []chunk.TensorRecord) {
	c.t.Helper()
	all := make([]int, c.Racks[0].Plan.NumTensors())
	for k := range all {
		all[k] = k
		x := c.Racks[0].Workers[0].SrcF32(k)[:c.Racks[0].Plan.Tensor(k).Elems]
		fill(c.rng, x)
		c.ref.Add(append([]float32(nil), racktest.OnWire(c.ref.Wire, x)...))
	}
	c.each(chunk.OpBroadcast, all)
	c.pull("broadcast", all)
	for step, rec := range commits {
		for range c.rng.IntN(3) {
			c.push(all[c.rng.IntN(len(all)):])
		}
		c.commit(rec)
		c.pull(fmt.Sprintf("step %d", step), all)
	}
}

// The norm of the gradients, clipping and LAMB's trust ratios are the whole model's, whichever racks own its chunks.
func TestTwoPhaseStepsOverRacksEqualPlainGo(t *testing.T) {
	commits := []chunk.TensorRecord{
		{LR: 0.1, Scale: 1},
		{LR: 0.1, Scale: 0.25, WD: 0.01, Clip: 0.5},
		{LR: 0.1, Scale: 1, Flags: chunk.RecordSkip},
		{LR: 0.05, Scale: 0.5, Clip: 1e6},
		{LR: 0.05, Scale: float32(math.Inf(1)), Flags: chunk.RecordSkipNonFinite},
		{LR: 0.1, Scale: 1, Clip: 1},
	}
	rules := []optim.Rule{optim.SGDTorch, optim.AdamWTorch, optim.LAMB}
	for seed := range racksSeeds(t, 24) {
		rng := rand.New(rand.NewPCG(seed, 5))
		workers := make([]int, 1+rng.IntN(4))
		for i := range workers {
			workers[i] = 1 + rng.IntN(2)
		}
		top := hierarchy.Topology{Racks: len(workers), Pods: 1}
		if len(workers) == 4 && rng.IntN(2) == 0 {
			top.Pods = 2
		}
		top.Shape = anyShape(rng, top)
		rule, wire := rules[rng.IntN(len(rules))], []chunk.DType{chunk.F32, chunk.BF16}[rng.IntN(2)]
		core := anyCore(rng, top)
		name := fmt.Sprintf("seed %d: workers %v, %v, %d pods, %v, %v, %v between racks", seed, workers, top.Shape, top.Pods, rule, wire,
			core)
		if !t.Run(name, func(t *testing.T) {
			c, network := simCluster(t, seed, top, workers, racktest.Config{
				Lanes: 1 + rng.IntN(3), Window: 2 + rng.IntN(6), Core: core,
				Job:     aggregate.JobConfig{Name: "job", Mode: aggregate.TwoPhase, Rule: rule, Hyper: rule.Defaults(), ChunkBytes: 4096},
				Tensors: tensorsOf(wire, 3000, 1, 12345, 70),
			})
			ref := racktest.NewReference(aggregate.TwoPhase, rule, rule.Defaults(), wire, nil)
			ref.Core = core
			(&twoPhaseRacks{c, t, ref, rng, top.Pods, network}).run(commits)
		}) {
			return
		}
	}
}

// A lane with many chunks sends its norms in several messages.
func TestNormsThatNeedSeveralMessagesAddUp(t *testing.T) {
	c, network := simCluster(t, 3, hierarchy.Topology{Shape: hierarchy.Sharded, Racks: 2}, []int{1, 1}, racktest.Config{
		Lanes: 1, Window: 16, Tensors: tensorsOf(chunk.F32, 1_200_000, 5),
		Job: aggregate.JobConfig{Name: "job", Mode: aggregate.TwoPhase, Rule: optim.LAMB, Hyper: optim.LAMB.Defaults(), ChunkBytes: 4096},
	})
	ref := racktest.NewReference(aggregate.TwoPhase, optim.LAMB, optim.LAMB.Defaults(), chunk.F32, nil)
	r := &twoPhaseRacks{c, t, ref, rand.New(rand.NewPCG(1, 6)), 1, network}
	steps := []chunk.TensorRecord{{LR: 0.1, Scale: 1, Clip: 1}, {LR: 0.1, Scale: 1, Clip: 1}}
	if testing.Short() {
		steps = steps[:1]
	}
	r.run(steps)
}
