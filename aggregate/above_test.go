package aggregate_test

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/rackweave/rackweave/aggregate"
	"github.com/rackweave/rackweave/aggregate/optim"
	"github.com/rackweave/rackweave/aggregate/racktest"
	"github.com/rackweave/rackweave/cgo/fabric/simfabric"
	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/codec"
	"github.com/rackweave/rackweave/hierarchy"
	"github.com/rackweave/rackweave/verbs"
)

// simNetwork returns a simulated network, and a function that opens devices on it. They are closed when the test ends.
func simNetwork(t *testing.T, seed uint64) (sim *simfabric.World, open func(format string, args ...any) *verbs.Device) {
	t.Helper()
	sim, err := simfabric.New(seed)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { sim.Close() })
	return sim, func(format string, args ...any) *verbs.Device {
		d, err := verbs.Open(simfabric.Provider, fmt.Sprintf(format, args...), sim.Options())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := d.Close(); err != nil {
				t.Error(err)
			}
		})
		return d
	}
}

// simCluster returns racks of manual lanes and workers over a simulated network, with so many workers in each rack. With an odd
// seed messages are delayed, lost and turned away.
func simCluster(t *testing.T, seed uint64, topology hierarchy.Topology, workers []int,
	cfg racktest.Config, each ...func(rack int, cfg *racktest.Config)) (*racktest.Cluster, func()) {
	t.Helper()
	sim, open := simNetwork(t, seed)
	if seed%2 == 1 {
		sim.SetNetwork(simfabric.Network{Delay: 2000, DelayMax: time.Millisecond, Drop: 1000, RNR: 1000})
	}
	return clusterOn(t, sim, open, topology, workers, cfg, each...)
}

func clusterOn(t *testing.T, sim *simfabric.World, open func(string, ...any) *verbs.Device, topology hierarchy.Topology,
	workers []int, cfg racktest.Config, each ...func(rack int, cfg *racktest.Config)) (*racktest.Cluster, func()) {
	t.Helper()
	byHand(t)
	cfg.Manual, cfg.Now = true, func() int64 { return int64(sim.Now()) }
	racks := make([]racktest.Config, len(workers))
	for r, n := range workers {
		racks[r] = cfg
		racks[r].NICs = []*verbs.Device{open("aggregator%d", r)}
		for w := range n {
			racks[r].Workers = append(racks[r].Workers, []*verbs.Device{open("worker%d.%d", r, w)})
		}
		for _, f := range each {
			f(r, &racks[r])
		}
	}
	c, err := racktest.OpenCluster(topology, racks)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c, func() {
		for range 4 {
			sim.Step()
		}
	}
}

// exchangeRacks runs broadcast and steps over a cluster and compares every result with plain Go, bit for bit.
func exchangeRacks(t *testing.T, seed uint64, c *racktest.Cluster, pods, steps int, network func()) {
	t.Helper()
	exchangeWith(t, seed, c, steps, network, func(ref *racktest.Reference) plainGo {
		ref.Core = c.Racks[0].Config.Core
		return func(grads [][][][]float32) [][][]float32 {
			return slices.Repeat([][][]float32{ref.StepRacks(grads, pods)}, len(grads))
		}
	})
}

// plainGo takes gradients by rack, worker and tensor, and returns the answers to pushpulls, by rack and tensor.
type plainGo func(grads [][][][]float32) [][][]float32

// exchangeWith is exchangeRacks with the plainGo that begin makes from a reference with the broadcast's values.
func exchangeWith(t *testing.T, seed uint64, c *racktest.Cluster, steps int, network func(),
	begin func(*racktest.Reference) plainGo) {
	t.Helper()
	rng := rand.New(rand.NewPCG(seed, 2))
	job, plan := c.Racks[0].Config.Job, c.Racks[0].Plan
	wire := plan.Tensor(0).DType
	run := func(kind chunk.Op) {
		t.Helper()
		handles, err := c.Submit(c.AllOps(kind))
		if err == nil {
			err = c.Drive(network, handles, 100000)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	check := func(what string, all [][][]float32) {
		t.Helper()
		for r, rack := range c.Racks {
			want := all[r]
			for _, w := range rack.Workers {
				for k := range want {
					got := w.DstF32(k)[:len(want[k])]
					if i, same := racktest.SameBits(got, want[k]); !same {
						t.Fatalf("%s: rack %d worker %d tensor %d element %d is %v, plain Go says %v", what, r, w.Rank, k, i, got[i],
							want[k][i])
					}
				}
			}
		}
	}
	gradients := func() [][][][]float32 {
		grads := make([][][][]float32, len(c.Racks))
		for r, rack := range c.Racks {
			grads[r] = make([][][]float32, len(rack.Workers))
			for i, w := range rack.Workers {
				for k := range plan.NumTensors() {
					g := w.SrcF32(k)[:plan.Tensor(k).Elems]
					fill(rng, g)
					grads[r][i] = append(grads[r][i], append([]float32(nil), g...))
				}
			}
		}
		return grads
	}
	var initial [][]float32
	for _, x := range gradients()[0][0] {
		initial = append(initial, append([]float32(nil), racktest.OnWire(wire, x)...))
	}
	run(chunk.OpBroadcast)
	want := slices.Repeat([][][]float32{initial}, len(c.Racks))
	check("broadcast", want)
	step := begin(racktest.NewReference(job.Mode, job.Rule, job.Hyper, wire, initial))
	for n := range steps {
		want = step(gradients())
		run(chunk.OpPushPull)
		check(fmt.Sprintf("step %d", n), want)
	}
	if job.Mode == aggregate.Eager && job.Compress.Down.ID == codec.Raw { // else workers do not hold the parameters
		run(chunk.OpPull)
		check("pull", want)
	}
}

func TestRacksEqualPlainGoBitForBit(t *testing.T) {
	momentum := optim.SGDMXNet.Defaults()
	momentum.Momentum, momentum.WD = 0.9, 1e-4
	type shape = hierarchy.Topology
	for _, tc := range []struct {
		name     string
		mode     aggregate.Mode
		rule     optim.Rule
		hyper    optim.Hyper
		wire     chunk.DType
		topology shape
		workers  []int
	}{
		{"sum", aggregate.Aggregate, optim.Sum, optim.Sum.Defaults(), chunk.F32, shape{Shape: hierarchy.Sharded}, []int{2, 2}},
		{"momentum", aggregate.Eager, optim.SGDMXNet, momentum, chunk.F32, shape{Shape: hierarchy.Sharded}, []int{2, 1, 3}},
		{"bf16", aggregate.Eager, optim.AdamTorch, optim.AdamTorch.Defaults(), chunk.BF16, shape{Shape: hierarchy.Sharded}, []int{1, 2}},
		{"root", aggregate.Eager, optim.SGDMXNet, momentum, chunk.F32, shape{Shape: hierarchy.Root}, []int{2, 1, 2}},
		{"chain", aggregate.Eager, optim.SGDMXNet, momentum, chunk.F32, shape{Shape: hierarchy.Chain}, []int{2, 1, 2, 1}},
		{"ring", aggregate.Aggregate, optim.Sum, optim.Sum.Defaults(), chunk.F16, shape{Shape: hierarchy.Ring}, []int{1, 1, 1}},
		{"pods first", aggregate.Eager, optim.SGDMXNet, momentum, chunk.F32, shape{Shape: hierarchy.Sharded, Pods: 2}, []int{1, 2, 1, 1}},
		{"pods", aggregate.Eager, optim.SGDMXNet, momentum, chunk.F32, shape{Shape: hierarchy.Pods, Pods: 2}, []int{1, 2, 1, 1}},
		{"one rack", aggregate.Eager, optim.SGDMXNet, momentum, chunk.F32, shape{Shape: hierarchy.Sharded}, []int{3}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tc.topology.Racks = len(tc.workers)
			c, network := simCluster(t, 7, tc.topology, tc.workers, racktest.Config{
				Lanes: 2, Window: 4, Staging: 3,
				Job:     aggregate.JobConfig{Name: "job", Mode: tc.mode, Rule: tc.rule, Hyper: tc.hyper, ChunkBytes: 4096},
				Tensors: tensorsOf(tc.wire, 1, 5000, 1023, 20000, 3),
			})
			exchangeRacks(t, 1, c, tc.topology.Pods, 3, network)
		})
	}
}

// racksSeeds returns the number of seeds of a test of racks: an eighth of n in a short run, as with detectors, which check code and
// not schedules. RACKS_SEEDS sets it.
func racksSeeds(t *testing.T, n int) uint64 {
	if testing.Short() {
		n = (n + 7) / 8
	}
	seeds, err := strconv.ParseUint(cmp.Or(os.Getenv("RACKS_SEEDS"), strconv.Itoa(n)), 10, 32)
	if err != nil {
		t.Fatal(err)
	}
	return seeds
}

// anyShape draws a shape that is possible for the racks and pods of a topology.
func anyShape(rng *rand.Rand, top hierarchy.Topology) hierarchy.Shape {
	shapes := slices.DeleteFunc(hierarchy.Shapes(), func(s hierarchy.Shape) bool {
		top.Shape = s
		return top.Check() != nil
	})
	return shapes[rng.IntN(len(shapes))]
}

// anyCore draws a type for sums between racks.
func anyCore(rng *rand.Rand, top hierarchy.Topology) chunk.DType {
	if top.CheckOnce() == nil && rng.IntN(2) == 0 {
		return chunk.BF16
	}
	return chunk.F32
}

// Racks may have 1 to 8 members in any shape, and workers may push in different orders. Windows of a few slots then fill with
// chunks that other racks cannot send. All runs end with equal bits.
func TestRacksInAnyShapeAndOrderEqualPlainGo(t *testing.T) {
	for seed := range racksSeeds(t, 20) {
		rng := rand.New(rand.NewPCG(seed, 1))
		workers := make([]int, 1+rng.IntN(8))
		for i := range workers {
			workers[i] = 1 + rng.IntN(2)
		}
		topology := hierarchy.Topology{Racks: len(workers), Pods: 1}
		if n := len(workers); n%2 == 0 && n > 2 && rng.IntN(2) == 0 {
			topology.Pods = 2
		}
		topology.Shape = anyShape(rng, topology)
		job := aggregate.JobConfig{Name: "job", Mode: aggregate.Aggregate, ChunkBytes: 4096, Hyper: optim.Sum.Defaults()}
		if rng.IntN(2) == 0 {
			job.Mode, job.Rule, job.Hyper = aggregate.Eager, optim.AdamTorch, optim.AdamTorch.Defaults()
		}
		wire := []chunk.DType{chunk.F32, chunk.BF16}[rng.IntN(2)]
		window, core := 2+rng.IntN(6), anyCore(rng, topology)
		name := fmt.Sprintf("seed %d: workers %v, %v, %d pods, mode %v, %v, %v between racks, window %d", seed, workers, topology.Shape,
			topology.Pods, job.Mode, wire, core, window)
		ok := t.Run(name, func(t *testing.T) {
			c, network := simCluster(t, seed, topology, workers, racktest.Config{
				Lanes: 1 + rng.IntN(2), Window: window, Job: job, Shuffle: seed + 1, Core: core,
				Tensors: tensorsOf(wire, 1, 5000, 1023, 20000, 3, 4000, 9000),
			})
			exchangeRacks(t, seed, c, topology.Pods, 2, network)
		})
		if !ok {
			return
		}
	}
}

func TestRacksWithCodecsBetweenThemEqualPlainGo(t *testing.T) {
	momentum := optim.SGDMXNet.Defaults()
	momentum.Momentum = 0.9
	type shape = hierarchy.Topology
	for _, tc := range []struct {
		codecs   string
		mode     aggregate.Mode
		wire     chunk.DType
		topology shape
		workers  []int
	}{
		{"int8", aggregate.Eager, chunk.F32, shape{Shape: hierarchy.Sharded}, []int{2, 1, 3}},
		{"int4", aggregate.Aggregate, chunk.F32, shape{Shape: hierarchy.Sharded}, []int{2, 2}},
		{"sign/int8:stochastic", aggregate.Eager, chunk.F32, shape{Shape: hierarchy.Root}, []int{2, 1, 2}},
		{"topk:2%/int4", aggregate.Eager, chunk.F32, shape{Shape: hierarchy.Chain}, []int{2, 1, 2, 1}},
		{"ternary/none", aggregate.Aggregate, chunk.F32, shape{Shape: hierarchy.Ring}, []int{1, 1, 1}},
		{"none/fp8-e4m3", aggregate.Eager, chunk.F32, shape{Shape: hierarchy.Sharded, Pods: 2}, []int{1, 2, 1, 1}},
		{"int8", aggregate.Eager, chunk.F32, shape{Shape: hierarchy.Pods, Pods: 2}, []int{1, 2, 1, 1}},
		{"int8", aggregate.Eager, chunk.BF16, shape{Shape: hierarchy.Sharded}, []int{1, 2}},
	} {
		t.Run(fmt.Sprint(tc.codecs, " ", tc.topology.Shape, " ", tc.mode, " ", tc.wire), func(t *testing.T) {
			codecs, err := codec.ParsePair(tc.codecs, true)
			if err != nil {
				t.Fatal(err)
			}
			rule, hyper := optim.SGDMXNet, momentum
			if tc.mode == aggregate.Aggregate {
				rule, hyper = optim.Sum, optim.Sum.Defaults()
			}
			tc.topology.Racks = len(tc.workers)
			// In different orders, few slots fill with chunks that other racks cannot send, so sums are given back and made again.
			for seed := range racksSeeds(t, 3) {
				c, network := simCluster(t, seed, tc.topology, tc.workers, racktest.Config{
					Lanes: 2, Window: 2 + int(seed)%3, Staging: 3, Shuffle: seed, CoreCodecs: codecs,
					Job:     aggregate.JobConfig{Name: "job", Mode: tc.mode, Rule: rule, Hyper: hyper, ChunkBytes: 4096},
					Tensors: tensorsOf(tc.wire, 1, 5000, 1023, 20000, 3),
				})
				exchangeWith(t, seed, c, 4, network, func(ref *racktest.Reference) plainGo {
					core := racktest.NewCodedCore(c, ref)
					return func(grads [][][][]float32) [][][]float32 {
						return slices.Repeat([][][]float32{core.Step(grads)}, len(grads))
					}
				})
			}
		})
	}
}
