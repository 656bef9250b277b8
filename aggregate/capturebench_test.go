package aggregate_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/rackweave/rackweave/aggregate"
	"github.com/rackweave/rackweave/aggregate/optim"
	"github.com/rackweave/rackweave/aggregate/racktest"
	"github.com/rackweave/rackweave/cgo/worker"
	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/verbs"
)

// BenchmarkStepsWhileCaptured compares the median time of a step in blocks without captures and in blocks with one after the other,
// in alternation. The captures have no reader, so the difference is the cost of lanes and memory.
func BenchmarkStepsWhileCaptured(b *testing.B) {
	const workers, block = 2, 50
	for _, mib := range []uint64{4, 64} {
		b.Run(fmt.Sprintf("model=%dMiB", mib), func(b *testing.B) {
			rule := optim.AdamTorch
			r := threadedRack(b, verbs.ProviderSHM, workers, racktest.Config{
				Lanes: 1, Window: 64, Arena: true, Tensors: tensorsOf(chunk.F32, slices.Repeat([]uint64{mib << 14}, 16)...),
				Job: aggregate.JobConfig{Name: "job", Mode: aggregate.Eager, Rule: rule, Hyper: rule.Defaults(),
					ChunkBytes: chunk.DefaultChunkBytes},
			})
			steps := func() time.Duration {
				var took []time.Duration
				done := make(chan error, workers)
				for _, w := range r.Workers {
					go func() {
						var ops []worker.Op
						for k := range r.Plan.NumTensors() {
							ops = append(ops, w.Op(chunk.OpPushPull, k, 0))
						}
						for range block {
							began := time.Now()
							if err := w.Run(time.Minute, ops...); err != nil {
								done <- err
								return
							}
							if w.Rank == 0 {
								took = append(took, time.Since(began))
							}
						}
						done <- nil
					}()
				}
				for range workers {
					if err := <-done; err != nil {
						b.Fatal(err)
					}
				}
				slices.Sort(took)
				return took[len(took)/2]
			}
			var alone, captured []time.Duration
			captures := 0
			steps()
			for b.Loop() {
				alone = append(alone, steps())
				ctx, cancel := context.WithCancel(context.Background())
				done := make(chan error)
				go func() {
					for {
						c, err := r.Job.Capture(context.Background(), r.Plan, 0)
						if err != nil {
							done <- err
							return
						}
						if c.Wait(ctx) == nil {
							captures++
						}
						if err := c.Close(); err != nil || ctx.Err() != nil {
							done <- err
							return
						}
					}
				}()
				captured = append(captured, steps())
				cancel()
				if err := <-done; err != nil {
					b.Fatal(err)
				}
			}
			slices.Sort(alone)
			slices.Sort(captured)
			a, c := alone[len(alone)/2], captured[len(captured)/2]
			b.ReportMetric(float64(a.Microseconds()), "us/alone")
			b.ReportMetric(float64(c.Microseconds()), "us/captured")
			b.ReportMetric(float64(c)/float64(a), "ratio")
			b.ReportMetric(float64(captures)/float64(len(captured)*block), "captures/step")
		})
	}
}
