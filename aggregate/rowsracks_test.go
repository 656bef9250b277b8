package aggregate_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/rackweave/rackweave/aggregate"
	"github.com/rackweave/rackweave/aggregate/optim"
	"github.com/rackweave/rackweave/aggregate/racktest"
	"github.com/rackweave/rackweave/cgo/worker"
	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/hierarchy"
)

// rowsCluster returns the workers of several racks as one rack's for the oracle.
func rowsCluster(t *testing.T, c *racktest.Cluster, network func()) *rowsRack {
	all := &racktest.Rack{Config: c.Racks[0].Config, Plan: c.Racks[0].Plan}
	var racks []int
	for _, r := range c.Racks {
		racks = append(racks, len(r.Workers))
		for _, w := range r.Workers {
			as := *w
			as.Rank = len(all.Workers)
			all.Workers = append(all.Workers, &as)
		}
	}
	wait := func(handles [][]uint64) error {
		var of [][][]uint64
		for _, n := range racks {
			of, handles = append(of, handles[:n]), handles[n:]
		}
		return c.Drive(network, of, 100000)
	}
	x := newRowsRack(t, all, func(ops [][]worker.Op) error {
		handles := make([][]uint64, len(ops))
		for i, w := range all.Workers {
			var err error
			if handles[i], err = w.Submit(ops[i]...); err != nil {
				return err
			}
		}
		return wait(handles)
	}, wait)
	for _, k := range x.tables {
		k.racks = racks
	}
	return x
}

func TestRowsOfRacksEqualPlainGoBitForBit(t *testing.T) {
	momentum := optim.SGDMXNet.Defaults()
	momentum.Momentum, momentum.WD = 0.9, 1e-4
	for _, tc := range []struct {
		mode     aggregate.Mode
		rule     optim.Rule
		hyper    optim.Hyper
		standard bool
		shape    hierarchy.Shape
		workers  []int
	}{
		{aggregate.Aggregate, optim.Sum, optim.Sum.Defaults(), false, hierarchy.Sharded, []int{2, 2}},
		{aggregate.Aggregate, optim.Sum, optim.Sum.Defaults(), false, hierarchy.Chain, []int{1, 2, 3}},
		{aggregate.Eager, optim.SGDMXNet, momentum, false, hierarchy.Sharded, []int{2, 1, 3}},
		{aggregate.Eager, optim.AdamMXNet, optim.AdamMXNet.Defaults(), false, hierarchy.Root, []int{2, 2}},
		{aggregate.Eager, optim.SGDTorch, optim.SGDTorch.Defaults(), false, hierarchy.Ring, []int{1, 1, 1}},
		{aggregate.Eager, optim.SGDTorch, optim.SGDTorch.Defaults(), false, hierarchy.Sharded, []int{3}},
		{aggregate.TwoPhase, optim.AdamMXNet, optim.AdamMXNet.Defaults(), false, hierarchy.Sharded, []int{2, 2}},
		{aggregate.TwoPhase, optim.SGDMXNet, momentum, true, hierarchy.Chain, []int{2, 1, 2}},
	} {
		for seed := range racksSeeds(t, 4) {
			name := fmt.Sprintf("%v %v standard %t %v %v seed %d", tc.mode, tc.rule, tc.standard, tc.shape, tc.workers, seed)
			t.Run(name, func(t *testing.T) {
				c, network := simCluster(t, seed, hierarchy.Topology{Racks: len(tc.workers), Shape: tc.shape}, tc.workers, racktest.Config{
					Lanes: 2, Window: 40, Staging: 24, Tensors: tables, Standard: tc.standard,
					Job: aggregate.JobConfig{Name: "job", Mode: tc.mode, Rule: tc.rule, Hyper: tc.hyper, ChunkBytes: 4096},
				})
				x := rowsCluster(t, c, network)
				if tc.mode != aggregate.Aggregate {
					x.broadcast()
				}
				for step := range 3 {
					x.racksStep(fmt.Sprintf("step %d", step), tc.mode, tc.rule, tc.hyper, step == 1)
				}
			})
		}
	}
}

// racksStep runs a step in any mode, and compares what workers pull.
func (x *rowsRack) racksStep(what string, mode aggregate.Mode, rule optim.Rule, h optim.Hyper, skip bool) {
	x.Helper()
	if mode == aggregate.TwoPhase {
		x.twoPhase(rule, h, skip)
		x.pull(what)
		return
	}
	if mode == aggregate.Eager {
		for i, g := range x.push() {
			x.tables[i].Step(rule, h, x.tables[i].union(g))
		}
		x.pull(what)
	}
	x.pushPull(what, func(i int, g gradients) map[int64][]float32 {
		k := x.tables[i]
		union := k.union(g)
		if mode == aggregate.Aggregate {
			return union
		}
		k.Step(rule, h, union)
		for id := range union {
			union[id] = k.Row(k.W, id)
		}
		return union
	})
}

func sparseRacks(t *testing.T, mode aggregate.Mode, each ...func(rack int, cfg *racktest.Config)) (*rowsRack, *racktest.Cluster) {
	job := aggregate.JobConfig{Name: "job", Mode: mode, Rule: optim.SGDTorch, Hyper: optim.SGDTorch.Defaults(), ChunkBytes: 4096}
	if mode == aggregate.Aggregate {
		job.Rule, job.Hyper = optim.Sum, optim.Sum.Defaults()
	}
	c, network := simCluster(t, 4, hierarchy.Topology{Racks: 2, Shape: hierarchy.Sharded}, []int{2, 2}, racktest.Config{
		Lanes: 2, Window: 40, Staging: 24, Tensors: tables, Job: job,
	}, each...)
	return rowsCluster(t, c, network), c
}

// Every rack's job ends if one is lost while rows are on their way.
func TestARackThatIsLostEndsAJobOfRows(t *testing.T) {
	x, c := sparseRacks(t, aggregate.Aggregate)
	handles := make([][]uint64, len(x.Workers))
	for i, ops := range x.ops(func(w *racktest.Worker, t int) worker.Op { return x.op(w, chunk.OpPush, t, nil) }) {
		var err error
		if handles[i], err = x.Workers[i].Submit(ops...); err != nil {
			t.Fatal(err)
		}
	}
	c.Racks[1].Job.Fail(-1, errors.New("its host is lost"))
	if err := x.wait(handles); err == nil {
		t.Fatal("the workers go on")
	}
	if f := c.Racks[0].Job.Failure(); f == nil || !strings.Contains(f.Err.Error(), "rack1") {
		t.Errorf("rack 0 fails by %v", f)
	}
}

func TestRacksWhoseWorkersSendOtherHyperParametersForRowsFail(t *testing.T) {
	x, _ := sparseRacks(t, aggregate.Eager, func(rack int, cfg *racktest.Config) { cfg.Job.Hyper.LR = float64(1 + rack) })
	err := x.run(x.ops(func(w *racktest.Worker, i int) worker.Op { return x.op(w, chunk.OpPush, i, nil) }))
	if err == nil || !strings.Contains(err.Error(), "sent other hyper-parameters for tensor") {
		t.Errorf("the workers go on: %v", err)
	}
}

func TestARackThatPushesRowsWhileAnotherBroadcastsThemEndsTheJob(t *testing.T) {
	for _, mode := range []aggregate.Mode{aggregate.Aggregate, aggregate.Eager, aggregate.TwoPhase} {
		for pushes := range 2 {
			x, _ := sparseRacks(t, mode)
			var ops [][]worker.Op
			for i, w := range x.Workers {
				op := w.Op(chunk.OpBroadcast, 0, 0)
				if i/2 == pushes {
					op = x.op(w, chunk.OpPush, 0, nil)
				}
				ops = append(ops, []worker.Op{op})
			}
			err := x.run(ops)
			want := fmt.Sprintf(`rack "rack%d" sent rows of tensor "table" of lane`, pushes)
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%v, rack %d pushes: %v, want %s", mode, pushes, err, want)
			}
		}
	}
}

func TestRacksOutOfStepMayPushAndBroadcastRows(t *testing.T) {
	for seed := range racksSeeds(t, 8) {
		mode := []aggregate.Mode{aggregate.TwoPhase, aggregate.Eager, aggregate.TwoPhase, aggregate.Aggregate}[seed%4]
		shape := []hierarchy.Shape{hierarchy.Sharded, hierarchy.Chain, hierarchy.Root}[seed%3]
		job := aggregate.JobConfig{Name: "job", Mode: mode, Rule: optim.SGDTorch, Hyper: optim.SGDTorch.Defaults(), ChunkBytes: 4096}
		if mode == aggregate.Aggregate {
			job.Rule, job.Hyper = optim.Sum, optim.Sum.Defaults()
		}
		c, network := simCluster(t, seed, hierarchy.Topology{Racks: 3, Shape: shape}, []int{2, 1, 1}, racktest.Config{
			Lanes: 2, Window: 40, Staging: 24, Tensors: tables, Job: job,
		})
		if err := outOfStep(rowsCluster(t, c, network), c, network, seed); err != nil {
			t.Errorf("seed %d, %v, %v: %v", seed, mode, shape, err)
		}
	}
}

// outOfStep lets each worker broadcast, push and commit by itself, at some time after the answer to its last.
func outOfStep(x *rowsRack, c *racktest.Cluster, network func(), seed uint64) error {
	const steps = 14
	x.rng = rand.New(rand.NewPCG(seed, 3))
	done, under := make([]int, len(x.Workers)), make([][]uint64, len(x.Workers))
	for round := range 200000 {
		network()
		at, all := 0, true
		for rack, r := range c.Racks {
			n := len(r.Workers)
			if _, err := r.Step(under[at:at+n], round%16 == 15); err != nil {
				return fmt.Errorf("rack %d: %w: %v", rack, err, r.Job.Failure())
			}
			at += n
		}
		for i, w := range x.Workers {
			idle := true
			for _, h := range under[i] {
				ended, err := w.Done(h)
				if err != nil {
					return err
				}
				idle = idle && ended
			}
			all = all && idle && done[i] == steps
			if !idle || done[i] == steps || x.rng.IntN(100) > 0 {
				continue
			}
			var err error
			if under[i], err = x.begin(w, done[i]); err != nil {
				return err
			}
			done[i]++
		}
		if all {
			return nil
		}
	}
	return fmt.Errorf("after all rounds, workers have done %v of %d steps", done, steps)
}

// begin begins a worker's step: a broadcast, or, in mode two-phase, a commit after two pushes.
func (x *rowsRack) begin(w *racktest.Worker, step int) ([]uint64, error) {
	if x.Config.Job.Mode == aggregate.TwoPhase && step%3 == 0 && step > 0 {
		h, rc := w.CommitStart(chunk.TensorRecord{LR: 0.5, Scale: 0.5})
		if rc < 0 {
			return nil, w.Error(rc)
		}
		return []uint64{h}, nil
	}
	var ops []worker.Op
	for i, k := range x.tables {
		if step%7 == 0 {
			ops = append(ops, w.Op(chunk.OpBroadcast, i, 0))
		} else {
			ops = append(ops, x.op(w, chunk.OpPush, i, x.draw(k)))
		}
	}
	return w.Submit(ops...)
}

func TestASparseTensorForWhichRacksHaveNoSlotIsRefusedByName(t *testing.T) {
	_, c := sparseRacks(t, aggregate.Aggregate)
	r := c.Racks[0]
	one := []chunk.Tensor{{Name: "six", Elems: 4, DType: chunk.F32, Width: 4}}
	const want = `sparse tensor "six" is number 6, and with a window of 40 job "job" has room for 5`
	if err := r.Add(one); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("6 sparse tensors: %v", err)
	}
}
