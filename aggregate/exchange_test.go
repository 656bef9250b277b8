package aggregate_test

import (
	"fmt"
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
	"github.com/rackweave/rackweave/verbs"
)

// simRack returns a manual rack over a simulated network.
func simRack(t *testing.T, seed uint64, options string, workers int, cfg racktest.Config) (*racktest.Rack, func()) {
	t.Helper()
	sim, err := simfabric.New(seed)
	if err != nil {
		t.Fatal(err)
	}
	return rackIn(t, sim, options, workers, cfg)
}

// byHand skips a test whose goroutine runs lanes and workers, without another one, if only races are looked for.
func byHand(t *testing.T) {
	t.Helper()
	if raceEnabled {
		t.Skip("one goroutine runs everything: the race detector has nothing to see")
	}
}

// rackIn returns a manual rack in a world of its own, and closes the world.
func rackIn(t *testing.T, sim *simfabric.World, options string, workers int, cfg racktest.Config) (*racktest.Rack, func()) {
	t.Helper()
	byHand(t)
	open := func(name string) *verbs.Device {
		d, err := verbs.Open(simfabric.Provider, name, sim.Options()+options)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	devices := []*verbs.Device{open("aggregator")}
	cfg.NICs, cfg.Manual = devices, true
	for w := range workers {
		d := open(fmt.Sprintf("worker%d", w))
		devices, cfg.Workers = append(devices, d), append(cfg.Workers, []*verbs.Device{d})
	}
	cfg.Now = func() int64 { return int64(sim.Now()) }
	r, err := racktest.Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
		for _, d := range devices {
			if err := d.Close(); err != nil {
				t.Error(err)
			}
		}
		sim.Close()
	})
	return r, func() {
		for range 4 {
			sim.Step()
		}
	}
}

// manualRack returns a rack whose lanes and workers run only when the test calls them, over any provider.
func manualRack(t *testing.T, provider, options string, workers int, cfg racktest.Config) (*racktest.Rack, func()) {
	t.Helper()
	switch {
	case provider == simfabric.Provider && options == ",link=1":
		r := newNICRack(t, 3, workers, cfg)
		return r.Rack, func() {
			for range 4 {
				r.sim.Step()
			}
		}
	case provider == simfabric.Provider:
		return simRack(t, 3, options, workers, cfg)
	}
	byHand(t)
	cfg.Manual = true
	return threadedRack(t, provider, workers, cfg), func() {}
}

func tensorsOf(wire chunk.DType, sizes ...uint64) []chunk.Tensor {
	var out []chunk.Tensor
	for i, n := range sizes {
		out = append(out, chunk.Tensor{Name: fmt.Sprintf("t%d", i), Elems: n, DType: wire})
	}
	return out
}

func fill(rng *rand.Rand, x []float32) {
	for i := range x {
		x[i] = float32(rng.NormFloat64())
	}
}

// exchange runs broadcast and steps over a rack and compares every result with plain Go, bit for bit.
func exchange(t *testing.T, r *racktest.Rack, steps int, run func(ops [][]worker.Op) error) {
	t.Helper()
	rng := rand.New(rand.NewPCG(1, 2))
	job := r.Config.Job
	n := r.Plan.NumTensors()
	all := func(kind chunk.Op) [][]worker.Op {
		ops := make([][]worker.Op, len(r.Workers))
		for i, w := range r.Workers {
			for k := range n {
				ops[i] = append(ops[i], w.Op(kind, k, int32(k%3)))
			}
		}
		return ops
	}
	wire := r.Plan.Tensor(0).DType
	initial := make([][]float32, n)
	for k := range n {
		for _, w := range r.Workers {
			fill(rng, w.SrcF32(k)[:r.Plan.Tensor(k).Elems])
		}
		initial[k] = append([]float32(nil), racktest.OnWire(wire, r.Workers[0].SrcF32(k)[:r.Plan.Tensor(k).Elems])...)
	}
	check := func(what string, want [][]float32) {
		t.Helper()
		for _, w := range r.Workers {
			for k := range n {
				got := w.DstF32(k)[:len(want[k])]
				if i, same := racktest.SameBits(got, want[k]); !same {
					t.Fatalf("%s: worker %d tensor %d element %d is %v, plain Go says %v", what, w.Rank, k, i, got[i], want[k][i])
				}
			}
		}
	}
	if err := run(all(chunk.OpBroadcast)); err != nil {
		t.Fatal(err)
	}
	check("broadcast", initial)
	ref := racktest.NewReference(job.Mode, job.Rule, job.Hyper, wire, initial)
	if job.Compress != (codec.Pair{}) {
		ref.Compress(job.Compress, len(r.Workers), job.ChunkBytes)
		for k := range n {
			ref.Broadcast(k, initial[k])
		}
	}
	for step := range steps {
		grads := make([][][]float32, len(r.Workers))
		for i, w := range r.Workers {
			for k := range n {
				g := w.SrcF32(k)[:r.Plan.Tensor(k).Elems]
				fill(rng, g)
				grads[i] = append(grads[i], append([]float32(nil), g...))
			}
		}
		if err := run(all(chunk.OpPushPull)); err != nil {
			t.Fatalf("step %d: %v", step, err)
		}
		check(fmt.Sprintf("step %d", step), ref.Step(grads))
	}
}

func TestPushPullEqualsPlainGoBitForBit(t *testing.T) {
	momentum := optim.SGDMXNet.Defaults()
	momentum.Momentum, momentum.WD = 0.9, 1e-4
	for _, tc := range []struct {
		name    string
		options string
		mode    aggregate.Mode
		rule    optim.Rule
		hyper   optim.Hyper
		wire    chunk.DType
		arena   bool
	}{
		{"sum", "", aggregate.Aggregate, optim.Sum, optim.Sum.Defaults(), chunk.F32, false},
		{"sum in arenas", "", aggregate.Aggregate, optim.Sum, optim.Sum.Defaults(), chunk.F32, true},
		{"sum by reference", ",by_reference=1", aggregate.Aggregate, optim.Sum, optim.Sum.Defaults(), chunk.F32, false},
		{"sum by reference in arenas", ",by_reference=1", aggregate.Aggregate, optim.Sum, optim.Sum.Defaults(), chunk.F32, true},
		{"momentum", "", aggregate.Eager, optim.SGDMXNet, momentum, chunk.F32, false},
		{"momentum by reference in arenas", ",by_reference=1", aggregate.Eager, optim.SGDMXNet, momentum, chunk.F32, true},
		{"adam", "", aggregate.Eager, optim.AdamTorch, optim.AdamTorch.Defaults(), chunk.F32, true},
		{"bf16 wire", "", aggregate.Eager, optim.AdamWTorch, optim.AdamWTorch.Defaults(), chunk.BF16, false},
		{"f16 wire by reference", ",by_reference=1", aggregate.Eager, optim.SGDTorch, optim.SGDTorch.Defaults(), chunk.F16, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r, network := simRack(t, 7, tc.options, 3, racktest.Config{
				Lanes: 2, Window: 4, Staging: 3, Arena: tc.arena,
				Job:     aggregate.JobConfig{Name: "job", Mode: tc.mode, Rule: tc.rule, Hyper: tc.hyper, ChunkBytes: 4096},
				Tensors: tensorsOf(tc.wire, 1, 5000, 1023, 20000, 3),
			})
			exchange(t, r, 3, driven(r, network))
		})
	}
}

// driven returns a function that runs operations of a manual rack until they are done.
func driven(r *racktest.Rack, network func()) func(ops [][]worker.Op) error {
	return func(ops [][]worker.Op) error {
		handles := make([][]uint64, len(ops))
		for i, w := range r.Workers {
			h, err := w.Submit(ops[i]...)
			if err != nil {
				return err
			}
			handles[i] = h
		}
		return r.Drive(network, handles, 100000)
	}
}

// streams reports whether a tensor's results for a worker go past the cache in every lane with part of it.
func streams(j *aggregate.Job, rank, tensor int) bool {
	some := false
	for _, s := range j.Shards() {
		if streaming, named := s.Workers.Streaming(rank, tensor); named {
			if some = streaming; !some {
				break
			}
		}
	}
	return some
}

// A framework may add its tensors one by one, with exchanges in between.
func TestResultsGoPastTheCacheOnceAllTensorsTogetherAreLarger(t *testing.T) {
	const elems, tensors, fits = 3000, 5, 3
	all := tensorsOf(chunk.F32, slices.Repeat([]uint64{elems}, tensors)...)
	r, network := simRack(t, 7, "", 2, racktest.Config{
		Lanes: 2, Window: 4, Arena: true, CacheBytes: fits * elems * 4, Tensors: all[:1],
		Job: aggregate.JobConfig{Name: "job", Mode: aggregate.Aggregate, Rule: optim.Sum, Hyper: optim.Sum.Defaults(), ChunkBytes: 4096},
	})
	for n := 1; n <= tensors; n++ {
		if n > 1 {
			if err := r.Add(all[n-1 : n]); err != nil {
				t.Fatal(err)
			}
		}
		exchange(t, r, 1, driven(r, network))
		for rank := range r.Workers {
			for k := range n {
				if got, want := streams(r.Job, rank, k), n > fits; got != want {
					t.Errorf("worker %d, tensor %d of %d, a cache for %d: past the cache: %t, expected %t", rank, k, n, fits, got, want)
				}
			}
		}
	}
}
