package aggregate_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/rackweave/rackweave/aggregate"
	"github.com/rackweave/rackweave/aggregate/racktest"
	"github.com/rackweave/rackweave/cgo/fabric/simfabric"
	"github.com/rackweave/rackweave/cgo/worker"
	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/verbs"
)

// Both jobs have sent their full windows before the lane polls, the flood first.
func TestALaneServesJobsByTheirWeights(t *testing.T) {
	for _, tc := range []struct {
		flood, small int // weights
		most         float64
	}{{1, 1, 1.2}, {4, 1, 4.6}, {1, 4, 0.4}, {100, 1, 100}} {
		t.Run(fmt.Sprintf("%d to %d", tc.flood, tc.small), func(t *testing.T) {
			sim, err := simfabric.New(3)
			if err != nil {
				t.Fatal(err)
			}
			const elems, window = 64 << 10, 64 // 64 chunks
			config := func(name string, weight int) racktest.Config {
				cfg := sumJob(name, elems)
				cfg.Lanes, cfg.Window, cfg.Job.Weight, cfg.Manual = 1, window, weight, true
				cfg.Now = func() int64 { return int64(sim.Now()) }
				return cfg
			}
			flood, network := rackIn(t, sim, "", 8, config("flood", tc.flood))
			cfg := config("small", tc.small)
			cfg.Engine, cfg.NICs = flood.Engine, flood.Config.NICs
			d, err := verbs.Open(simfabric.Provider, "small", sim.Options())
			if err != nil {
				t.Fatal(err)
			}
			cfg.Workers = [][]*verbs.Device{{d}}
			small, err := racktest.Open(cfg)
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := small.Close(); err != nil {
					t.Error(err)
				}
				if err := d.Close(); err != nil {
					t.Error(err)
				}
			}()
			for _, r := range []*racktest.Rack{flood, small} {
				for _, w := range r.Workers {
					if _, err := w.Submit(w.Op(chunk.OpPushPull, 0, 0)); err != nil {
						t.Fatal(err)
					}
				}
			}
			progress := func() {
				for range 4 {
					network()
				}
				for _, r := range []*racktest.Rack{flood, small} {
					for _, w := range r.Workers {
						worker.Progress(w.C)
					}
				}
			}
			for range 2000 {
				progress()
			}
			received := func(r *racktest.Rack) (bytes uint64) {
				for _, w := range r.Job.WorkerCounters() {
					bytes += w.RecvBytes + w.SentBytes
				}
				return bytes
			}
			lane := flood.Engine.Lanes()[0]
			for received(small) < 4*elems { // half of it, because the rest is sent when answers free the window
				if _, err := lane.Step(); err != nil {
					t.Fatal(err)
				}
				progress()
				lane.Counters()
			}
			got := float64(received(flood)) / float64(received(small))
			if got > tc.most {
				t.Errorf("while the small job's %d bytes were moved, %.2f times as many of the flood were, at most %.2f are its part",
					received(small), got, tc.most)
			}
		})
	}
}

// The job adds a million chunks, and its state is queried in a loop, while another job's messages are answered.
func TestNoCommandOfAJobKeepsAnotherWaiting(t *testing.T) {
	added := 200_000
	if testing.Short() {
		added /= 10
	}
	victim := threadedRack(t, verbs.ProviderSHM, 1, sumJob("victim", 1000))
	large := beside(t, victim, verbs.ProviderSHM, 1, sumJob("large", 1000))
	ended := make(chan error, 1)
	go func() {
		ended <- func() error {
			first := large.Plan.NumTensors()
			tensors := make([]chunk.Tensor, added)
			specs := make([]aggregate.TensorSpec, len(tensors))
			for i := range tensors {
				tensors[i] = chunk.Tensor{Name: fmt.Sprint("late", i), Elems: 5000, DType: chunk.F32}
				specs[i] = aggregate.TensorSpec{LRMult: 1, WDMult: 1}
			}
			if err := large.Plan.Add(tensors); err != nil {
				return err
			}
			if err := large.Job.AddTensors(context.Background(), large.Plan, first, specs); err != nil {
				return err
			}
			for range 100 {
				if _, _, err := large.Job.Awaited(context.Background()); err != nil {
					return err
				}
			}
			return nil
		}()
	}()
	longest := time.Duration(0)
	for done := false; !done; {
		began := time.Now()
		if err := runAll(victim, pushPullAll(victim)); err != nil {
			t.Fatal(err)
		}
		longest = max(longest, time.Since(began))
		select {
		case err := <-ended:
			if done = true; err != nil {
				t.Fatal(err)
			}
		default:
		}
	}
	t.Logf("the other job's longest step took %v", longest)
	exchange(t, victim, 2, func(ops [][]worker.Op) error { return runAll(victim, ops) })
}
