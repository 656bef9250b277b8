package client_test

import (
	"context"
	"fmt"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/rackweave/rackweave/client"
	"github.com/rackweave/rackweave/service"
	"github.com/rackweave/rackweave/verbs"
)

// BenchmarkStepsWhileCaptured compares the median time of a worker's step in blocks without an observer and in blocks in which one
// captures without a pause, in alternation. Workers compute for a while in each step, or not at all. All of it shares this machine:
// us-cpu/capture counts the processor time of a capture, with the observer's part.
func BenchmarkStepsWhileCaptured(b *testing.B) {
	const tensors, elems, workers, block = 16, 1 << 18, 2, 40
	for _, compute := range []time.Duration{0, 20 * time.Millisecond, 100 * time.Millisecond} {
		b.Run(fmt.Sprintf("compute=%v", compute), func(b *testing.B) {
			s := serve(b, service.Options{Providers: []string{verbs.ProviderSHM}, Cores: 1})
			ws := joinAll(b, s, client.Config{Job: "bench", Token: "secret", Workers: workers, Provider: verbs.ProviderSHM, Mode: "eager",
				Optimizer: "adam_torch"})
			ops := make([][]client.Op, workers)
			each(b, ws, func(rank int, w *client.Worker) error {
				var model []client.Tensor
				for i := range tensors {
					buf, err := w.Alloc(elems * 4)
					if err != nil {
						return err
					}
					model = append(model, client.Tensor{Name: fmt.Sprint(i), Shape: []uint64{elems}})
					ops[rank] = append(ops[rank], client.Op{Kind: client.PushPull, Tensor: i, Src: buf, Dst: buf})
				}
				return w.Register(bounded(b), model)
			})
			steps := func() time.Duration {
				var took []time.Duration
				each(b, ws, func(rank int, w *client.Worker) error {
					for range block {
						time.Sleep(compute)
						began := time.Now()
						handles, err := w.Submit(ops[rank]...)
						if err == nil {
							err = w.WaitAll(context.Background(), handles)
						}
						if err != nil {
							return err
						}
						if rank == 0 {
							took = append(took, time.Since(began)+compute)
						}
					}
					return nil
				})
				slices.Sort(took)
				return took[len(took)/2]
			}
			spent := func() time.Duration {
				var u syscall.Rusage
				if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
					b.Fatal(err)
				}
				return time.Duration(u.Utime.Nano() + u.Stime.Nano())
			}
			o, err := client.Observe(client.Config{Server: s.URL(), Job: "bench", Token: "secret"})
			if err != nil {
				b.Fatal(err)
			}
			defer o.Close()
			var alone, observed []time.Duration
			captures, cost := 0, time.Duration(0)
			steps()
			for b.Loop() {
				cost += spent()
				alone = append(alone, steps())
				cost -= 2 * spent()
				ctx, cancel := context.WithCancel(context.Background())
				done := make(chan struct{})
				go func() {
					defer close(done)
					for {
						if _, _, err := o.Capture(ctx); err != nil {
							return
						}
						captures++
					}
				}()
				observed = append(observed, steps())
				cancel()
				<-done
				cost += spent()
			}
			slices.Sort(alone)
			slices.Sort(observed)
			a, c := alone[len(alone)/2], observed[len(observed)/2]
			b.ReportMetric(float64(a.Microseconds()), "us/alone")
			b.ReportMetric(float64(c.Microseconds()), "us/observed")
			b.ReportMetric(float64(c)/float64(a), "ratio")
			b.ReportMetric(float64(cost.Microseconds())/float64(max(captures, 1)), "us-cpu/capture")
			b.ReportMetric(float64(captures)/float64(len(observed)*block), "captures/step")
		})
	}
}
