package aggregate_test

import (
	"slices"
	"testing"
	"time"

	"github.com/rackweave/rackweave/aggregate"
	"github.com/rackweave/rackweave/aggregate/optim"
	"github.com/rackweave/rackweave/aggregate/racktest"
	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/verbs"
)

// BenchmarkChunkMovesOnAnUnevenPairOfJobs runs two jobs at a time on two lanes: a large one over both lanes, and one that is in
// lane 0 alone, as a job is that was placed while others filled lane 1. It reports the time of a step of both, as they are placed
// and after half of the chunks of the second job have moved, and the share of lane 0 in the chunks. Moves gain where workers leave
// lanes their cores: the busiest lane has that much less to do.
func BenchmarkChunkMovesOnAnUnevenPairOfJobs(b *testing.B) {
	type pair struct {
		unit  string
		jobs  [2]*racktest.Rack
		times []time.Duration
	}
	job := func(name string) racktest.Config {
		return racktest.Config{
			Lanes: 2, Arena: true, MaxConns: 4, Tensors: tensorsOf(chunk.F32, 4<<20),
			Job: aggregate.JobConfig{Name: name, Mode: aggregate.Aggregate, Hyper: optim.Sum.Defaults()},
		}
	}
	pairs := [2]pair{{unit: "uneven"}, {unit: "moved"}}
	for i := range pairs {
		p := &pairs[i]
		p.jobs[0] = threadedRack(b, verbs.ProviderSHM, 2, job("even"))
		cfg := job("uneven")
		cfg.Loads = []uint64{0, 1 << 40}
		p.jobs[1] = beside(b, p.jobs[0], verbs.ProviderSHM, 2, cfg)
	}
	step := func(p *pair) {
		ended := make(chan error)
		for _, r := range p.jobs {
			go func() { ended <- runAll(r, pushPullAll(r)) }()
		}
		for range p.jobs {
			if err := <-ended; err != nil {
				b.Fatal(err)
			}
		}
	}
	moved := pairs[1].jobs[1]
	if _, err := moved.Job.Move(0, 1, moved.Plan.NumChunks()/2); err != nil {
		b.Fatal(err)
	}
	for range 3 { // chunks move at their next answers
		step(&pairs[0])
		step(&pairs[1])
	}
	for b.Loop() {
		for i := range pairs {
			start := time.Now()
			step(&pairs[i])
			pairs[i].times = append(pairs[i].times, time.Since(start))
		}
	}
	for i := range pairs {
		p := &pairs[i]
		slices.Sort(p.times)
		b.ReportMetric(float64(p.times[len(p.times)/2].Microseconds())/1e3, "ms/step-"+p.unit)
		lanes := p.jobs[0].Engine.Lanes()
		first, second := float64(lanes[0].Counters().Chunks), float64(lanes[1].Counters().Chunks)
		b.ReportMetric(first/(first+second), "lane0-"+p.unit)
	}
}
