package aggregate_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/rackweave/rackweave/aggregate"
	"github.com/rackweave/rackweave/aggregate/optim"
	"github.com/rackweave/rackweave/aggregate/racktest"
	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/hierarchy"
	"github.com/rackweave/rackweave/verbs"
)

// simParts returns a job's manual workers and the manual aggregators over which it is spread, on a simulated network.
func simParts(t *testing.T, seed uint64, aggregators, workers int, cfg racktest.Config) (*racktest.Cluster, func()) {
	t.Helper()
	sim, open := simNetwork(t, seed)
	cfg.Manual, cfg.Now = true, func() int64 { return int64(sim.Now()) }
	cfg.NICs = []*verbs.Device{open("aggregator0")}
	for i := 1; i < aggregators; i++ {
		cfg.Others = append(cfg.Others, []*verbs.Device{open("aggregator%d", i)})
	}
	for w := range workers {
		cfg.Workers = append(cfg.Workers, []*verbs.Device{open("worker%d", w)})
	}
	r, err := racktest.Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return &racktest.Cluster{Racks: []*racktest.Rack{r}}, func() {
		for range 4 {
			sim.Step()
		}
	}
}

// However many aggregators a job is spread over, and in any order of its workers' pushes, its bits are those of racks that reduce
// among themselves.
func TestAJobInPartsEqualsPlainGoOfItsRacks(t *testing.T) {
	for seed := range racksSeeds(t, 20) {
		rng := rand.New(rand.NewPCG(seed, 3))
		part := aggregate.Part{Pods: 1}
		all := 0
		for range 1 + rng.IntN(6) {
			n := 1 + rng.IntN(3)
			part.RackWorkers, all = append(part.RackWorkers, n), all+n
		}
		if n := len(part.RackWorkers); n%2 == 0 && n > 2 {
			part.Pods = 2
		}
		job := aggregate.JobConfig{Name: "job", Mode: aggregate.Aggregate, ChunkBytes: 4096, Hyper: optim.Sum.Defaults(), Part: part}
		if rng.IntN(2) == 0 {
			job.Mode, job.Rule, job.Hyper = aggregate.Eager, optim.AdamTorch, optim.AdamTorch.Defaults()
		}
		wire := []chunk.DType{chunk.F32, chunk.BF16, chunk.F16}[rng.IntN(3)]
		aggregators, window := 1+rng.IntN(4), 2+rng.IntN(6)
		name := fmt.Sprintf("seed %d: workers %v, %d pods, %d aggregators, mode %v, %v, window %d", seed, part.RackWorkers, part.Pods, aggregators,
			job.Mode, wire, window)
		ok := t.Run(name, func(t *testing.T) {
			c, network := simParts(t, seed, aggregators, all, racktest.Config{
				Lanes: 1 + rng.IntN(2), Window: window, Job: job, Shuffle: seed + 1,
				Tensors: tensorsOf(wire, 1, 5000, 1023, 20000, 3, 4000, 9000),
			})
			exchangeWith(t, seed, c, 2, network, func(ref *racktest.Reference) plainGo {
				return func(grads [][][][]float32) [][][]float32 {
					var byRack [][][][]float32
					left := grads[0]
					for _, n := range part.RackWorkers {
						byRack, left = append(byRack, left[:n]), left[n:]
					}
					return [][][]float32{ref.StepRacks(byRack, part.Pods)}
				}
			})
		})
		if !ok {
			return
		}
	}
}

func TestWhatCannotBeAPartIsRefusedByName(t *testing.T) {
	two := aggregate.Part{Of: 2}
	for _, tc := range []struct {
		job  aggregate.JobConfig
		want string
	}{
		{aggregate.JobConfig{Mode: aggregate.Aggregate, Part: aggregate.Part{Number: 2, Of: 2}}, "part 2 of 2"},
		{aggregate.JobConfig{Mode: aggregate.Stream, Rule: optim.SGDTorch, Hyper: optim.SGDTorch.Defaults(), Part: two},
			"mode stream runs at one aggregator"},
		{aggregate.JobConfig{Mode: aggregate.TwoPhase, Rule: optim.SGDTorch, Hyper: optim.SGDTorch.Defaults(), Part: two},
			"mode two-phase runs at one aggregator"},
		{aggregate.JobConfig{Mode: aggregate.Aggregate, Part: aggregate.Part{Of: 2, RackWorkers: []int{1, 2}}},
			"2 workers in racks of [1 2]"},
	} {
		if tc.job.Hyper == (optim.Hyper{}) {
			tc.job.Hyper = optim.Sum.Defaults()
		}
		_, open := simNetwork(t, 1)
		tc.job.Name = "job"
		r, err := racktest.Open(racktest.Config{
			NICs: []*verbs.Device{open("aggregator")}, Lanes: 1, Window: 4, Absent: 2, MaxConns: 2, Manual: true, Job: tc.job,
		})
		if err == nil {
			err = r.Close()
		}
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%v, want one that says %q", err, tc.want)
		}
	}
}

// A plan has the chunks of all parts, so a job that claims many parts is charged for its plan.
func TestAPartIsChargedForTheWholePlan(t *testing.T) {
	const elems, chunkBytes = 1 << 30, 4096
	_, open := simNetwork(t, 1)
	job := aggregate.JobConfig{Name: "job", Mode: aggregate.Aggregate, ChunkBytes: chunkBytes, Hyper: optim.Sum.Defaults()}
	e, err := aggregate.Start(aggregate.Config{
		Lanes: []aggregate.LaneConfig{{Device: open("aggregator"), CPU: -1, Node: -1}}, Window: 4, MaxConns: 2, Manual: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	need := func(parts int) int64 {
		job.Part.Of = parts
		return e.TensorsNeed(job, tensorsOf(chunk.F32, elems)).Bytes
	}
	whole, part := need(1), need(1024)
	if least := int64(elems / (chunkBytes / 4) * 64); part < least || part > whole/8 {
		t.Errorf("a part of 1024 needs %d bytes, want from %d to an eighth of the whole's %d", part, least, whole)
	}
}

// A part may get up to twice its even share of a tensor that is placed by its touches.
func TestAPartIsChargedForTheMostThatTouchesGiveIt(t *testing.T) {
	_, open := simNetwork(t, 1)
	e, err := aggregate.Start(aggregate.Config{
		Lanes: []aggregate.LaneConfig{{Device: open("aggregator"), CPU: -1, Node: -1}}, Window: 4, MaxConns: 2, Manual: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	job := aggregate.JobConfig{Name: "job", Mode: aggregate.Aggregate, ChunkBytes: 4096, Hyper: optim.Sum.Defaults()}
	need := func(parts int, touches []float32) int64 {
		job.Part.Of = parts
		table := chunk.Tensor{Name: "t", Elems: 64 << 20, DType: chunk.F32, Width: 64, Touches: touches}
		return e.TensorsNeed(job, []chunk.Tensor{table}).Bytes
	}
	touches := make([]float32, 64<<10)
	if whole := need(1, touches); whole != need(1, nil) {
		t.Errorf("the whole needs %d bytes, and %d without touches", whole, need(1, nil))
	}
	even, most := need(4, nil), need(4, touches)
	if most < even*3/2 || most > even*2 {
		t.Errorf("a part needs %d bytes, and %d without touches: want nearly twice as many", most, even)
	}
}

// A rack's aggregator is charged for the others' memory: 21 sums and 3 blocks of rows, of 3 MiB each, and
// for each other rack 7 slots for sums and 3 for rows, of 2 MiB each in a lane.
func TestARackIsChargedForTheOthers(t *testing.T) {
	const chunkBytes, lanes, others = 1 << 20, 2, 2
	_, open := simNetwork(t, 1)
	lane := aggregate.LaneConfig{Device: open("aggregator"), CPU: -1, Node: -1}
	e, err := aggregate.Start(aggregate.Config{
		Lanes: []aggregate.LaneConfig{lane, lane}, Window: 64, MaxConns: 8, Manual: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	c := aggregate.JobConfig{Name: "job", Workers: 2, Mode: aggregate.Aggregate, ChunkBytes: chunkBytes, Hyper: optim.Sum.Defaults()}
	alone := e.JobNeed(c)
	c.Place = &aggregate.Place{Topology: hierarchy.Topology{Racks: 1 + others}}
	among := e.JobNeed(c)
	least, got := int64(lanes*(21*3+others*7*2)<<20), among.Bytes-alone.Bytes
	if got < least || got > least+8<<20 {
		t.Errorf("%d bytes for the other racks, want %d and little more", got, least)
	}
	if n := among.Regions - alone.Regions; n != lanes*(1+others) {
		t.Errorf("%d regions for the other racks, want %d", n, lanes*(1+others))
	}
	if n := among.Connections - alone.Connections; n != others {
		t.Errorf("%d connections of each lane to the other racks, want %d", n, others)
	}
	c.Place, c.Part = nil, aggregate.Part{RackWorkers: []int{1, 1}}
	if n := e.JobNeed(c).Regions - alone.Regions; n != lanes {
		t.Errorf("%d regions for sums by rack, want %d", n, lanes)
	}
}
