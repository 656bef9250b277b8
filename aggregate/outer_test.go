package aggregate_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/rackweave/rackweave/aggregate"
	"github.com/rackweave/rackweave/aggregate/optim"
	"github.com/rackweave/rackweave/aggregate/racktest"
	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/hierarchy"
	"github.com/rackweave/rackweave/hierarchy/outer"
	"github.com/rackweave/rackweave/verbs"
)

// exchangeOuter runs broadcast and steps over racks that train apart between rounds, and compares every result with plain Go.
func exchangeOuter(t *testing.T, seed uint64, c *racktest.Cluster, o outer.Optimizer, workers []int, pods, steps int,
	network func()) {
	t.Helper()
	exchangeWith(t, seed, c, steps, network, func(ref *racktest.Reference) plainGo {
		plan := c.Racks[0].Plan
		perChunk := c.Racks[0].Config.Job.ChunkBytes / plan.Tensor(0).DType.Size()
		return racktest.NewOuter(o, ref, workers, pods, func(tensor, elem int) int {
			first, _ := plan.TensorChunks(tensor)
			return first + elem/perChunk
		}).Step
	})
}

// Racks that train apart have the bits of plain Go, whatever the shape, the wire and the order of pushes.
func TestRacksThatMeetSeldomEqualPlainGo(t *testing.T) {
	for seed := range racksSeeds(t, 24) {
		rng := rand.New(rand.NewPCG(seed, 9))
		workers := make([]int, 1+rng.IntN(5))
		for i := range workers {
			workers[i] = 1 + rng.IntN(3)
		}
		topology := hierarchy.Topology{Racks: len(workers), Pods: 1}
		if len(workers) == 4 {
			topology.Pods = 1 + rng.IntN(2)
		}
		var shapes []hierarchy.Shape
		for _, s := range hierarchy.Shapes() {
			if topology.Shape = s; topology.Check() == nil {
				shapes = append(shapes, s)
			}
		}
		topology.Shape = shapes[rng.IntN(len(shapes))]
		o := outer.Optimizer{Every: 1 + rng.IntN(4), Rule: outer.SGD, LR: 0.5 + rng.Float64()}
		if o.Fragments = rng.IntN(o.Every + 1); seed%3 == 2 {
			o.Fragments, o.Drift = 1, math.Pow(10, 3*rng.Float64()-2)
		}
		if rng.IntN(2) == 0 {
			o.Rule, o.Momentum = outer.Nesterov, 0.9
		}
		rule := []optim.Rule{optim.SGDTorch, optim.AdamTorch}[rng.IntN(2)]
		wire := []chunk.DType{chunk.F32, chunk.BF16}[rng.IntN(2)]
		window := 2 + rng.IntN(6)
		name := fmt.Sprintf("seed %d: workers %v, %v, %d pods, %v, %v, %v, window %d", seed, workers, topology.Shape, topology.Pods, o,
			rule, wire, window)
		ok := t.Run(name, func(t *testing.T) {
			c, network := simCluster(t, seed, topology, workers, racktest.Config{
				Lanes: 1 + rng.IntN(2), Window: window, Shuffle: seed + 1,
				Job: aggregate.JobConfig{Name: "job", Mode: aggregate.Eager, Rule: rule, Hyper: rule.Defaults(), ChunkBytes: 4096,
					Outer: o},
				Tensors: tensorsOf(wire, 1, 5000, 1023, 9000, 3, 4000),
			})
			exchangeOuter(t, seed, c, o, workers, topology.Pods, 2*o.Every+1, network)
		})
		if !ok {
			return
		}
	}
}

func TestRacksCannotTrainOnTheirOwnWhereNothingIsTrained(t *testing.T) {
	device := openDevice(t, verbs.ProviderSHM)
	good := outer.Optimizer{Every: 4, Rule: outer.SGD, LR: 1}
	bad := good
	bad.LR = 0
	for _, tc := range []struct {
		mode aggregate.Mode
		rule optim.Rule
		o    outer.Optimizer
		want string
	}{
		{aggregate.Aggregate, optim.Sum, good, "which mode aggregate cannot: use mode eager"},
		{aggregate.Eager, optim.SGDTorch, bad, "an outer learning rate of 0"},
	} {
		_, err := racktest.OpenCluster(hierarchy.Topology{Shape: hierarchy.Sharded, Racks: 1}, []racktest.Config{{
			NICs: []*verbs.Device{device}, Lanes: 1, Absent: 1, Manual: true,
			Job: aggregate.JobConfig{Name: "job", Mode: tc.mode, Rule: tc.rule, Hyper: tc.rule.Defaults(), ChunkBytes: 4096,
				Outer: tc.o},
		}})
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("mode %v, %v: error %v, want %q", tc.mode, tc.o, err, tc.want)
		}
	}
}

// Racks with a round in every step, plain SGD inside and a rate of 1 outside equal racks that add gradients, because the mean of
// their parameters is the result of the mean of the gradients. Where rounding loses nothing, the bits are equal.
func TestRacksThatMeetInEveryStepAddGradients(t *testing.T) {
	hyper := optim.SGDTorch.Defaults()
	hyper.LR, hyper.Scale = 0.5, 0.25
	workers := []int{1, 3}
	o := outer.Optimizer{Every: 1, Rule: outer.SGD, LR: 1}
	top := hierarchy.Topology{Shape: hierarchy.Sharded, Racks: len(workers)}
	run := func(o outer.Optimizer) [][]float32 {
		c, network := simCluster(t, 5, top, workers, racktest.Config{
			Lanes: 1, Window: 4, Tensors: tensorsOf(chunk.F32, 3000, 70),
			Job: aggregate.JobConfig{Name: "job", Mode: aggregate.Eager, Rule: optim.SGDTorch, Hyper: hyper, ChunkBytes: 4096,
				Outer: o},
		})
		for step, kind := range []chunk.Op{chunk.OpBroadcast, chunk.OpPushPull, chunk.OpPushPull, chunk.OpPushPull} {
			for r, rack := range c.Racks {
				for i, w := range rack.Workers {
					for k := range rack.Plan.NumTensors() {
						for e, g := 0, w.SrcF32(k); e < int(rack.Plan.Tensor(k).Elems); e++ {
							g[e] = float32((e+3*k+step)%7-r) * float32(1+3*r*(i+1)) // over 4 workers, and over 3, dyadic
							if r == 1 {
								g[e] *= 3
							}
						}
					}
				}
			}
			handles, err := c.Submit(c.AllOps(kind))
			if err == nil {
				err = c.Drive(network, handles, 100000)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		var out [][]float32
		for k := range c.Racks[0].Plan.NumTensors() {
			out = append(out, append([]float32(nil), c.Racks[1].Workers[2].DstF32(k)...))
		}
		return out
	}
	added, met := run(outer.Optimizer{}), run(o)
	for k := range added {
		if i, same := racktest.SameBits(met[k], added[k]); !same {
			t.Fatalf("tensor %d element %d is %v where racks meet, and %v where they add gradients", k, i, met[k][i], added[k][i])
		}
	}
}

// Racks whose meetings follow the drift agree on them, also where codecs shorten what they exchange. Where their gradients differ
// they meet more often, and where there are none, less.
func TestRacksMeetAsOftenAsTheyDrift(t *testing.T) {
	for _, tc := range []struct {
		codecs string
		shape  hierarchy.Shape
		wire   chunk.DType
	}{{"none", hierarchy.Ring, chunk.BF16}, {"int8", hierarchy.Sharded, chunk.F32}, {"topk:3%/int8", hierarchy.Root, chunk.F32}} {
		t.Run(tc.codecs, func(t *testing.T) {
			workers := []int{2, 1, 1}
			h := optim.SGDTorch.Defaults()
			h.LR = 1
			c, network := simCluster(t, 5, hierarchy.Topology{Shape: tc.shape, Racks: len(workers)}, workers, racktest.Config{
				Lanes: 2, Window: 4, Staging: 3, CoreCodecs: pair(t, tc.codecs, true), Tensors: tensorsOf(tc.wire, 3000, 1, 70),
				Job: aggregate.JobConfig{Name: "job", Mode: aggregate.Eager, Rule: optim.SGDTorch, Hyper: h, ChunkBytes: 4096,
					Outer: outer.Optimizer{Every: 4, Rule: outer.SGD, LR: 1, Drift: 0.1}},
			})
			run := func(kind chunk.Op, value func(rack int) float32) {
				t.Helper()
				for r, rack := range c.Racks {
					for _, w := range rack.Workers {
						for k := range rack.Plan.NumTensors() {
							g := w.SrcF32(k)
							for i := range g {
								g[i] = value(r)
							}
						}
					}
				}
				handles, err := c.Submit(c.AllOps(kind))
				if err == nil {
					err = c.Drive(network, handles, 100000)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			calm, differ := func(int) float32 { return 0 }, func(rack int) float32 { return float32(rack - 1) }
			run(chunk.OpBroadcast, func(int) float32 { return 1 })
			if _, ok, err := c.Racks[0].Job.Drift(t.Context()); ok || err != nil {
				t.Errorf("a drift before the first meeting: %v, %v", ok, err)
			}
			step := 0
			for _, phase := range []struct {
				steps int
				value func(rack int) float32
				want  uint32
				share bool // there is a drift
			}{
				{1, calm, 2, false}, {8, calm, 4, false}, {5, calm, 4, false}, // in steps 1, 3, 6, 10, 14
				{4, differ, 2, true}, {2, differ, 1, true}, {3, differ, 1, true}, // 18, 20, 21, 22, 23
			} {
				for range phase.steps {
					run(chunk.OpPushPull, phase.value)
					step++
				}
				for r, rack := range c.Racks {
					d, ok, err := rack.Job.Drift(t.Context())
					same := d.Least == phase.want && d.Most == phase.want && d.Mean == float64(phase.want)
					if err != nil || !ok || !same || (d.Share > 0) != phase.share {
						t.Errorf("rack %d after %d steps: drift %+v, %v, %v, want meetings every %d steps", r, step, d, ok, err, phase.want)
					}
				}
			}
		})
	}
}
