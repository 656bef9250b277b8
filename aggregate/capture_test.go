package aggregate_test

import (
	"cmp"
	"context"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/rackweave/rackweave/aggregate"
	"github.com/rackweave/rackweave/aggregate/optim"
	"github.com/rackweave/rackweave/aggregate/racktest"
	"github.com/rackweave/rackweave/cgo/fabric/simfabric"
	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/hierarchy"
	"github.com/rackweave/rackweave/hierarchy/outer"
	"github.com/rackweave/rackweave/lab/plant"
	"github.com/rackweave/rackweave/verbs"
)

// stepsApart bounds the distance between the tensors of a worker.
const stepsApart = 4

// trainer trains with all workers of some manual racks. In modes without commits each worker sends a tensor's next gradient as soon
// as it has the last one's answer, so that the tensors of a job are steps apart.
type trainer struct {
	t       *testing.T
	racks   []*racktest.Rack
	network func()
	at      [][]*trainee // by rack and worker
	commits bool
	round   int
}

type trainee struct {
	*racktest.Worker
	rank    int        // in the whole job
	step    []int      // by tensor
	handles [][]uint64 // by tensor: the operation under way, if there is one
	phase   int        // of a step that ends with a commit: 0 before its gradients, 1 before the commit, 2 behind it
	keep    []int64
}

// fill draws a gradient, or for step -1 initial values.
func (w *trainee) fill(tensor, step int, elems uint64) {
	fill(rand.New(rand.NewPCG(uint64(w.rank)<<32|uint64(tensor), uint64(step+1))), w.SrcF32(tensor)[:elems])
}

func newTrainer(t *testing.T, racks []*racktest.Rack, network func()) *trainer {
	mode, plan := racks[0].Config.Job.Mode, racks[0].Plan
	x := &trainer{t: t, racks: racks, network: network, commits: mode == aggregate.TwoPhase || mode == aggregate.Stream}
	for _, r := range racks {
		var all []*trainee
		for _, worker := range r.Workers {
			w := &trainee{Worker: worker, rank: r.Config.FirstRank + worker.Rank, step: make([]int, plan.NumTensors())}
			w.handles = make([][]uint64, len(w.step))
			all = append(all, w)
			for k := range w.step {
				w.fill(k, -1, plan.Tensor(k).Elems)
				w.handles[k] = x.must(w.Submit(w.Op(chunk.OpBroadcast, k, 0)))
			}
		}
		x.at = append(x.at, all)
	}
	x.until(func() bool {
		idle := true
		x.each(func(w *trainee) {
			for k := range w.handles {
				idle = x.idle(w, k) && idle
			}
		})
		return idle
	})
	return x
}

func (x *trainer) must(h []uint64, err error) []uint64 {
	x.t.Helper()
	if err != nil {
		x.t.Fatal(err)
	}
	return h
}

func (x *trainer) each(f func(w *trainee)) {
	for _, rack := range x.at {
		for _, w := range rack {
			f(w)
		}
	}
}

// turn lets the network, every lane and every worker make progress.
func (x *trainer) turn() {
	x.t.Helper()
	x.network()
	x.round++
	for i, r := range x.racks {
		handles := make([][]uint64, len(r.Workers))
		for rank, w := range x.at[i] {
			handles[rank] = slices.Concat(w.handles...)
		}
		if _, err := r.Step(handles, x.round%16 == 15); err != nil {
			x.t.Fatal(err)
		}
	}
}

func (x *trainer) until(holds func() bool) {
	x.t.Helper()
	for range 1_000_000 {
		if x.turn(); holds() {
			return
		}
	}
	x.t.Fatal("not done")
}

// idle reports whether a worker has no operation of a tensor under way.
func (x *trainer) idle(w *trainee, tensor int) bool {
	if w.handles[tensor] != nil {
		done, err := w.Done(w.handles[tensor][0])
		if err != nil {
			x.t.Fatal(err)
		}
		if !done {
			return false
		}
		w.handles[tensor] = nil
	}
	return true
}

// push sends a worker's next gradient of a tensor, of every third row if it is sparse.
func (x *trainer) push(w *trainee, tensor int) {
	x.t.Helper()
	d, kind, step := x.racks[0].Plan.Tensor(tensor), chunk.OpPushPull, w.step[tensor]
	if x.racks[0].Config.Job.Mode == aggregate.TwoPhase || d.Width > 0 {
		kind = chunk.OpPush
	}
	op, n := w.Op(kind, tensor, int32(tensor%3)), d.Elems
	if d.Width > 0 {
		ids := make([]int64, 0, d.Elems)
		for id := int64(step % 3); id < int64(d.Elems/uint64(d.Width)); id += 3 {
			ids = append(ids, id)
		}
		op.IDs, op.NIDs = uintptr(unsafe.Pointer(unsafe.SliceData(ids))), uint64(len(ids))
		w.keep, n = ids, uint64(len(ids))*uint64(d.Width)
	}
	w.fill(tensor, step, n)
	w.handles[tensor] = x.must(w.Submit(op))
}

// advance takes a worker further, up to a step.
func (x *trainer) advance(w *trainee, limit int) {
	x.t.Helper()
	idle := true
	for k := range w.step {
		was := w.handles[k] != nil
		if now := x.idle(w, k); !now || x.commits {
			idle = idle && now
			continue
		}
		if was {
			w.step[k]++
		}
		if w.step[k] < min(limit, slices.Min(w.step)+stepsApart) {
			x.push(w, k)
		}
	}
	if !x.commits || !idle || w.phase == 0 && w.step[0] == limit {
		return
	}
	switch w.phase {
	case 0:
		for k := range w.step {
			x.push(w, k)
		}
	case 1:
		h, rc := w.CommitStart(chunk.TensorRecord{LR: 0.1, Scale: 0.5, WD: 0.01, Clip: 1})
		if rc < 0 {
			x.t.Fatal(w.Error(rc))
		}
		w.handles[0] = []uint64{h}
	case 2:
		for k := range w.step {
			w.step[k]++
		}
	}
	w.phase = (w.phase + 1) % 3
}

// train takes all workers to a step, and calls each after every turn.
func (x *trainer) train(limit int, each func()) {
	x.t.Helper()
	x.until(func() bool {
		there := true
		x.each(func(w *trainee) {
			x.advance(w, limit)
			there = there && w.phase == 0 && slices.Min(w.step) == limit
		})
		each()
		return there
	})
}

// settle lets results arrive that no worker waits for.
func (x *trainer) settle() {
	for range 500 {
		x.turn()
	}
}

// parameters returns a rack's parameters, by tensor.
func parameters(r *racktest.Rack) (all [][]float32) {
	for k := range r.Plan.NumTensors() {
		var x []float32
		for id, end := r.Plan.TensorChunks(k); id < end; id++ {
			at := r.Plan.Chunk(id)
			st := r.Job.Shards()[at.Lane].Store
			x = append(x, st.Values(&st.Chunks[at.LaneIndex], 0)...)
		}
		all = append(all, x)
	}
	return all
}

// captured returns what a capture holds, by tensor.
func captured(t *testing.T, c *aggregate.Capture, plan *chunk.Plan) (all [][]float32) {
	t.Helper()
	all = make([][]float32, plan.NumTensors())
	for x, values := range c.Chunks() {
		if of := &all[x.Tensor]; x.Offset == uint64(len(*of)) {
			*of = append(*of, unsafe.Slice((*float32)(unsafe.Pointer(&values[0])), x.Elems)...)
		} else {
			t.Fatalf("tensor %d: a chunk at element %d, expected one at %d", x.Tensor, x.Offset, len(*of))
		}
	}
	return all
}

// captureCase is a job whose captures are compared with stopped runs.
type captureCase struct {
	name    string
	mode    aggregate.Mode
	rule    optim.Rule
	policy  string
	codec   string
	core    string      // codecs between racks
	wire    chunk.DType // if 0, F32
	workers []int       // by rack
	sparse  bool
	buddies bool
	outer   outer.Optimizer
}

var captureCases = []captureCase{
	{name: "eager", mode: aggregate.Eager, rule: optim.AdamWTorch, workers: []int{3}},
	{name: "eager over bf16", mode: aggregate.Eager, rule: optim.SGDTorch, wire: chunk.BF16, workers: []int{2}},
	{name: "codecs of gradients and answers", mode: aggregate.Eager, rule: optim.SGDTorch, codec: "int4", workers: []int{2}},
	{name: "sparse", mode: aggregate.Eager, rule: optim.SGDMXNet, workers: []int{2}, sparse: true},
	{name: "two-phase", mode: aggregate.TwoPhase, rule: optim.AdamWTorch, workers: []int{2}},
	{name: "two-phase with norms", mode: aggregate.TwoPhase, rule: optim.LAMB, workers: []int{2}},
	{name: "two-phase, sparse", mode: aggregate.TwoPhase, rule: optim.SGDMXNet, workers: []int{2}, sparse: true},
	{name: "stream", mode: aggregate.Stream, rule: optim.AdamTorch, policy: "asp", workers: []int{1}},
	{name: "stream of sets", mode: aggregate.Stream, rule: optim.SGDTorch, policy: "bsp", workers: []int{2}},
	{name: "racks", mode: aggregate.Eager, rule: optim.AdamWTorch, workers: []int{2, 1}},
	{name: "racks over bf16", mode: aggregate.Eager, rule: optim.SGDTorch, wire: chunk.BF16, workers: []int{1, 1}},
	{name: "racks with codecs between them", mode: aggregate.Eager, rule: optim.SGDTorch, core: "int8", workers: []int{1, 2}},
	{name: "racks, sparse", mode: aggregate.Eager, rule: optim.SGDMXNet, workers: []int{1, 2}, sparse: true},
	{name: "racks, two-phase", mode: aggregate.TwoPhase, rule: optim.AdamWTorch, workers: []int{1, 2}},
	{name: "racks, two-phase with norms", mode: aggregate.TwoPhase, rule: optim.LAMB, workers: []int{2, 1}},
	{name: "racks, two-phase, sparse", mode: aggregate.TwoPhase, rule: optim.SGDMXNet, workers: []int{1, 1}, sparse: true},
	{name: "racks with buddies", mode: aggregate.Eager, rule: optim.AdamWTorch, workers: []int{1, 1, 1}, buddies: true},
	{name: "racks that train apart", mode: aggregate.Eager, rule: optim.AdamTorch, workers: []int{1, 2},
		outer: outer.Optimizer{Every: 3, Fragments: 2, Rule: outer.Nesterov, LR: 0.7, Momentum: 0.9}},
	{name: "racks whose rounds follow the drift", mode: aggregate.Eager, rule: optim.SGDTorch, workers: []int{1, 1},
		outer: outer.Optimizer{Every: 4, Fragments: 1, Rule: outer.SGD, LR: 1, Drift: 0.02}},
}

// open returns a trainer of the job. With an odd network seed messages are delayed, lost and turned away.
func (tc *captureCase) open(t *testing.T, seed, network uint64) *trainer {
	t.Helper()
	byHand(t)
	hyper, wire := tc.rule.Defaults(), cmp.Or(tc.wire, chunk.F32)
	if tc.mode == aggregate.Stream {
		hyper.LR = 0.25
	}
	cfg := racktest.Config{
		Lanes: 1 + int((seed+1)%3), Window: 4 + int(seed%4), Shuffle: seed + 1,
		Job: aggregate.JobConfig{Name: "job", Mode: tc.mode, Rule: tc.rule, Hyper: hyper, ChunkBytes: 4096,
			Compress: pair(t, tc.codec, true), Outer: tc.outer},
		CoreCodecs: pair(t, tc.core, true), Buddies: tc.buddies,
		Tensors: tensorsOf(wire, 1, 5000, 12345, 70, 2500),
	}
	if tc.policy != "" {
		cfg.Job.Policy = spec(t, tc.policy)
	}
	if tc.sparse {
		cfg.Tensors[2] = chunk.Tensor{Name: "table", Elems: 8 * 700, DType: wire, Width: 8}
		cfg.Window = 8
	}
	if len(tc.workers) > 1 {
		c, turn := simCluster(t, network, hierarchy.Topology{Racks: len(tc.workers), Shape: hierarchy.Sharded, Pods: 1}, tc.workers, cfg)
		return newTrainer(t, c.Racks, turn)
	}
	sim, err := simfabric.New(network)
	if err != nil {
		t.Fatal(err)
	}
	if network%2 == 1 {
		sim.SetNetwork(simfabric.Network{Delay: 2000, DelayMax: time.Millisecond, Drop: 1000, RNR: 1000})
	}
	r, turn := rackIn(t, sim, "", tc.workers[0], cfg)
	return newTrainer(t, []*racktest.Rack{r}, turn)
}

// stopped returns the parameters after each step, by rack and tensor, of a run that stops after each.
func (tc *captureCase) stopped(t *testing.T, seed uint64, steps int) (all [][][][]float32) {
	t.Helper()
	x := tc.open(t, seed, 2*seed)
	for k := range steps + 1 {
		x.train(k, func() {})
		x.settle()
		var of [][][]float32
		for _, r := range x.racks {
			of = append(of, parameters(r))
		}
		all = append(all, of)
	}
	return all
}

// check captures a running job again and again, beginning at any moment, and compares each capture with the run that was stopped.
func (tc *captureCase) check(t *testing.T, seed uint64) {
	t.Helper()
	const steps = 12
	want := tc.stopped(t, seed, steps)
	x, rng := tc.open(t, seed, seed), rand.New(rand.NewPCG(seed, 8))
	under, captures := make([]*aggregate.Capture, len(x.racks)), 0
	x.train(steps, func() {
		for i, r := range x.racks {
			switch c := under[i]; {
			case c == nil && rng.IntN(20) == 0:
				var err error
				if under[i], err = r.Job.Capture(t.Context(), r.Plan, 0); err != nil {
					t.Fatal(err)
				}
			case c != nil && c.Ended():
				if err := c.Wait(t.Context()); err != nil {
					t.Fatal(err)
				}
				captures++
				for k, got := range captured(t, c, r.Plan) {
					if e, same := racktest.SameBits(got, want[c.Step][i][k]); !same {
						t.Fatalf("rack %d, tensor %d, element %d after step %d is %v, in a run that stops then %v", i, k, e, c.Step, got[e],
							want[c.Step][i][k][e])
					}
				}
				under[i] = nil
				if err := c.Close(); err != nil {
					t.Error(err)
				}
			}
		}
	})
	for _, c := range under {
		if c != nil {
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		}
	}
	if captures == 0 {
		t.Fatal("no capture")
	}
}

func TestACaptureOfARunningJobIsThatOfAStoppedOne(t *testing.T) {
	for _, tc := range captureCases {
		t.Run(tc.name, func(t *testing.T) {
			for seed := range racksSeeds(t, 3) {
				tc.check(t, seed)
			}
		})
	}
}

// capturePlants are bugs that the test above must find.
var capturePlants = []plant.Plant{
	{Name: "a chunk is captured after its next update", File: "aggregate/store/capture.go",
		Old: "c.Updates < p.Step", New: "c.Updates <= p.Step"},
	{Name: "a chunk is captured before its update", File: "aggregate/store/arithmetic.go",
		Old: "\tt.derive(s, h, c.Updates)\n\tk.run(", New: "\ts.Updated(c)\n\tt.derive(s, h, c.Updates)\n\tk.run("},
	{Name: "a chunk is captured between the passes of its update", File: "aggregate/store/capture.go",
		Old: " || c.Dirty && s.Rule.NeedsNorms()", New: ""},
	{Name: "a chunk is captured before its racks meet", File: "aggregate/store/capture.go", Old: " || c.Stepped ||", New: " ||"},
	{Name: "another rack's result is captured before it has come", File: "aggregate/store/arithmetic.go",
		Old: "\tk.Replace(s, c, result, uint8(s.Tensors[c.Tensor].Result))\n\tc.Updates++\n\ts.Updated(c)",
		New: "\tc.Updates++\n\ts.Updated(c)\n\tk.Replace(s, c, result, uint8(s.Tensors[c.Tensor].Result))"},
}

func TestPlantsInCapturesNameOnePlaceEach(t *testing.T) {
	for _, p := range capturePlants {
		t.Run(p.Name, func(t *testing.T) { p.Check(t) })
	}
}

func TestBugsPlantedInCapturesAreCaught(t *testing.T) {
	byHand(t)
	if testing.Short() {
		t.Skip("-short leaves out tests that build programs, as this one does for each bug: run without it")
	}
	bed, run := plant.Build(t, capturePlants), []string{"-test.run", "^TestACaptureOfARunningJobIsThatOfAStoppedOne$", "-test.short"}
	if out, err := bed.Run(t.Context(), plant.None, run...); err != nil {
		t.Fatalf("without a bug: %v\n%s", err, out)
	}
	for i, p := range capturePlants {
		t.Run(p.Name, func(t *testing.T) {
			if out, err := bed.Run(t.Context(), i, run...); err == nil || !strings.Contains(out, "in a run that stops then") {
				t.Fatalf("not found: %v\n%s", err, out)
			}
		})
	}
}

// Threads do what the simulation does by hand: each worker trains on its own, and captures are taken one after the other.
func TestCapturesOfThreadsAreThoseOfStoppedRuns(t *testing.T) {
	const captures, workers = 5, 2
	for _, provider := range []string{verbs.ProviderSHM, verbs.ProviderTCP} {
		t.Run(provider, func(t *testing.T) {
			rule := optim.AdamTorch
			r := threadedRack(t, provider, workers, racktest.Config{
				Lanes: 2, Window: 8, Tensors: tensorsOf(chunk.F32, 5000, 1, 70_000),
				Job: aggregate.JobConfig{Name: "job", Mode: aggregate.Eager, Rule: rule, Hyper: rule.Defaults(), ChunkBytes: 4096},
			})
			plan, grads := r.Plan, make([][][]float32, workers)
			ref := racktest.NewReference(aggregate.Eager, rule, rule.Defaults(), chunk.F32, nil)
			for k := range plan.NumTensors() {
				ref.Add(make([]float32, plan.Tensor(k).Elems))
				for w := range grads {
					g := make([]float32, plan.Tensor(k).Elems)
					fill(rand.New(rand.NewPCG(uint64(w), uint64(k))), g)
					grads[w] = append(grads[w], g)
					copy(r.Workers[w].SrcF32(k), g)
				}
			}
			var enough atomic.Bool
			more, done := make(chan bool), make(chan error, workers)
			for i, w := range r.Workers {
				// The first worker decides whether all take another step.
				another := func() bool { return <-more }
				if i == 0 {
					another = func() bool {
						goOn := !enough.Load()
						for range workers - 1 {
							more <- goOn
						}
						return goOn
					}
				}
				go func() {
					var err error
					for another() {
						for k := range plan.NumTensors() {
							if err == nil {
								err = w.Run(time.Minute, w.Op(chunk.OpPushPull, k, 0))
							}
						}
						time.Sleep(time.Millisecond)
					}
					done <- err
				}()
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			var steps []uint32
			var got [][][]float32
			for range captures {
				c, err := r.Job.Capture(ctx, plan, 0)
				if err == nil {
					err = c.Wait(ctx)
				}
				if err != nil {
					t.Error(err)
					break
				}
				steps, got = append(steps, c.Step), append(got, captured(t, c, plan))
				if err := c.Close(); err != nil {
					t.Error(err)
				}
			}
			enough.Store(true)
			for range workers {
				if err := <-done; err != nil {
					t.Error(err)
				}
			}
			step := uint32(0)
			for i, have := range got {
				for ; step < steps[i]; step++ {
					ref.Step(grads)
				}
				for k := range have {
					if e, same := racktest.SameBits(have[k], ref.W[k]); !same {
						t.Errorf("capture %d: tensor %d, element %d after step %d is %v, plain Go says %v", i, k, e, step, have[k][e],
							ref.W[k][e])
					}
				}
			}
		})
	}
}
