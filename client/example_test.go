package client_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"sync"
	"time"

	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/client"
	"github.com/rackweave/rackweave/service"
)

// aggregator runs an aggregator in this process, in place of rackweave serve, and returns its URL.
func aggregator() (url string, stop func()) {
	s, err := service.New(service.Options{
		Listen: "127.0.0.1:0", Cores: 1, Unpinned: true, Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
	})
	if err != nil {
		log.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- s.Serve(context.Background()) }()
	return s.URL(), func() {
		if err := s.Close(); err != nil {
			log.Fatal(err)
		}
		<-done
	}
}

// together runs the same program as every worker of a job, here in goroutines instead of processes.
func together(workers int, program func(rank int) error) {
	var all sync.WaitGroup
	for rank := range workers {
		all.Go(func() {
			if err := program(rank); err != nil {
				log.Fatalf("worker %d: %v", rank, err)
			}
		})
	}
	all.Wait()
}

// done waits for an operation that was just started.
func done(ctx context.Context, h client.Handle, err error) error {
	if err != nil {
		return err
	}
	return h.Wait(ctx)
}

// Two workers add their gradients of a tensor of three elements.
func Example() {
	server, stop := aggregator()
	defer stop()
	together(2, func(rank int) error {
		ctx := context.Background()
		w, err := client.Join(ctx, client.Config{Server: server, Job: "sum", Rank: rank, Workers: 2})
		if err != nil {
			return err
		}
		defer w.Close()
		if err := w.Register(ctx, []client.Tensor{{Name: "weight", Shape: []uint64{3}}}); err != nil {
			return err
		}
		gradient := []float32{1, 2, float32(rank)}
		sum := make([]float32, 3)
		h, err := w.PushPull(0, client.Bytes(gradient), client.Bytes(sum), 0)
		if err := done(ctx, h, err); err != nil {
			return err
		}
		if rank == 0 {
			fmt.Println(sum)
		}
		return nil
	})
	// Output: [2 4 1]
}

// Memory from Alloc is sent from and received into without a copy. Of the tensors that wait, those with the higher priority go
// first: here the first layer's, which the next step needs first.
func ExampleWorker_Alloc() {
	server, stop := aggregator()
	defer stop()
	together(2, func(rank int) error {
		ctx := context.Background()
		w, err := client.Join(ctx, client.Config{Server: server, Job: "arena", Rank: rank, Workers: 2})
		if err != nil {
			return err
		}
		defer w.Close()
		model := []client.Tensor{{Name: "first", Shape: []uint64{100, 30}}, {Name: "second", Shape: []uint64{30}}}
		if err := w.Register(ctx, model); err != nil {
			return err
		}
		var ops []client.Op
		for i := range model {
			gradient, err := w.Alloc(int(4 * model[i].Elems()))
			if err != nil {
				return err
			}
			client.Floats(gradient)[0] = 1.5
			ops = append(ops, client.Op{Kind: client.PushPull, Tensor: i, Src: gradient, Dst: gradient, Priority: int32(-i)})
		}
		handles, err := w.Submit(ops...)
		if err != nil {
			return err
		}
		if err := w.WaitAll(ctx, handles); err != nil {
			return err
		}
		if rank == 0 {
			fmt.Println(client.Floats(ops[0].Dst)[:2], client.Floats(ops[1].Dst)[:2])
		}
		return nil
	})
	// Output: [3 0] [3 0]
}

// A worker has the gradients of an embedding's rows that its batch looked up, one for each lookup. Gradients of the same row are
// summed, and the aggregator adds up the workers'. The union lists the rows that any worker sent: only these are written.
func ExampleSumRows() {
	server, stop := aggregator()
	defer stop()
	together(2, func(rank int) error {
		ctx := context.Background()
		w, err := client.Join(ctx, client.Config{Server: server, Job: "rows", Rank: rank, Workers: 2})
		if err != nil {
			return err
		}
		defer w.Close()
		if err := w.Register(ctx, []client.Tensor{{Name: "embedding", Shape: []uint64{1000, 2}, Sparse: true}}); err != nil {
			return err
		}
		ids := []int64{7, int64(rank), 7}
		gradient := []float32{1, 2, 3, 4, 5, 6} // a row for each id
		n, err := client.SumRows(ids, client.Bytes(gradient), 2, chunk.F32)
		if err != nil {
			return err
		}
		sums := make([]float32, 1000*2)
		var union client.Union
		handles, err := w.Submit(client.Op{
			Kind: client.PushPull, Src: client.Bytes(gradient[:2*n]), Dst: client.Bytes(sums),
			Rows: ids[:n], Union: &union,
		})
		if err != nil {
			return err
		}
		if err := w.WaitAll(ctx, handles); err != nil {
			return err
		}
		if rank == 0 {
			for _, id := range union.Rows() {
				fmt.Println(id, sums[2*id:][:2])
			}
		}
		return nil
	})
	// Output:
	// 0 [3 4]
	// 1 [3 4]
	// 7 [12 16]
}

// The aggregator runs the optimizer: workers push gradients and get parameters. The learning rate halves after every step.
func ExampleWorker_SetHyper() {
	server, stop := aggregator()
	defer stop()
	together(2, func(rank int) error {
		ctx := context.Background()
		w, err := client.Join(ctx, client.Config{
			Server: server, Job: "train", Rank: rank, Workers: 2,
			Optimizer: "sgd_torch", Hyper: map[string]float64{"lr": 0.5},
		})
		if err != nil {
			return err
		}
		defer w.Close()
		if err := w.Register(ctx, []client.Tensor{{Name: "weight", Shape: []uint64{2}}}); err != nil {
			return err
		}
		parameters := []float32{8, 4}
		h, err := w.Broadcast(0, client.Bytes(parameters))
		if err := done(ctx, h, err); err != nil {
			return err
		}
		hyper := w.Hyper()
		for range 3 {
			gradient := []float32{1, 1}
			h, err := w.PushPull(0, client.Bytes(gradient), client.Bytes(parameters), 0)
			if err := done(ctx, h, err); err != nil {
				return err
			}
			if rank == 0 {
				fmt.Println(parameters)
			}
			hyper.LR /= 2
			if err := w.SetHyper(client.AllTensors, hyper); err != nil {
				return err
			}
		}
		return nil
	})
	// Output:
	// [7 3]
	// [6.5 2.5]
	// [6.25 2.25]
}

// A two-phase step: gradients gather at the aggregator, and the commit scales them, clips them by their global norm and updates
// the parameters.
func ExampleWorker_Commit() {
	server, stop := aggregator()
	defer stop()
	together(2, func(rank int) error {
		ctx := context.Background()
		w, err := client.Join(ctx, client.Config{
			Server: server, Job: "clip", Rank: rank, Workers: 2, Mode: "two-phase", Optimizer: "sgd_torch",
		})
		if err != nil {
			return err
		}
		defer w.Close()
		if err := w.Register(ctx, []client.Tensor{{Name: "weight", Shape: []uint64{2}}}); err != nil {
			return err
		}
		parameters := []float32{1, 1}
		h, err := w.Broadcast(0, client.Bytes(parameters))
		if err := done(ctx, h, err); err != nil {
			return err
		}
		gradient := []float32{3, 4}
		h, err = w.Push(0, client.Bytes(gradient), 0)
		if err := done(ctx, h, err); err != nil {
			return err
		}
		outcome, err := w.Commit(ctx, client.Step{LR: 1, Scale: 0.5, Clip: 1})
		if err != nil {
			return err
		}
		h, err = w.Pull(0, client.Bytes(parameters), 0)
		if err := done(ctx, h, err); err != nil {
			return err
		}
		if rank == 0 {
			fmt.Printf("norm %.1f, scaled by %.1f: %.1f\n", outcome.Norm, outcome.Scale, parameters)
		}
		return nil
	})
	// Output: norm 5.0, scaled by 0.1: [0.4 0.2]
}

// A step that fails is taken up again in the job's next run, wherever this worker's rack is served by then.
func ExampleWorker_Rejoin() {
	train := func(ctx context.Context, w *client.Worker, steps int, gradient func(step int) []float32, x []float32) error {
		defer func() { w.Close() }() // whichever it is then
		for step := 1; step <= steps; step++ {
			h, err := w.PushPull(0, client.Bytes(gradient(step)), client.Bytes(x), 0)
			if err == nil {
				err = h.Wait(ctx)
			}
			if err == nil {
				continue
			}
			if w.Err() == nil {
				return err // the worker has not failed: a mistake in the call
			}
			next, last, err := w.Rejoin(ctx)
			if err != nil {
				return err
			}
			w, step = next, last
			if h, err = w.Pull(0, client.Bytes(x), 0); err == nil {
				err = h.Wait(ctx)
			}
			if err != nil {
				return err
			}
		}
		return nil
	}
	_ = train
}

// Worker 1 waits in vain for a sum to which worker 0 adds nothing: the job fails, and worker 0 learns because of whom.
func ExampleJobError() {
	server, stop := aggregator()
	defer stop()
	ready := make(chan struct{}) // in place of whatever makes workers late
	together(2, func(rank int) error {
		ctx := context.Background()
		w, err := client.Join(ctx, client.Config{Server: server, Job: "broken", Rank: rank, Workers: 2})
		if err != nil {
			return err
		}
		defer w.Close()
		if err := w.Register(ctx, []client.Tensor{{Name: "weight", Shape: []uint64{2}}}); err != nil {
			return err
		}
		if rank == 1 {
			<-ready
			gradient := client.Bytes([]float32{1, 1})
			h, err := w.PushPull(0, gradient, gradient, 0)
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
			defer cancel()
			fmt.Println("worker 1 timed out:", errors.Is(h.Wait(ctx), client.ErrTimeout))
			return nil
		}
		close(ready)
		<-w.Failed()
		var failed *client.JobError
		if errors.As(w.Err(), &failed) {
			fmt.Println("worker 0 was told of worker", failed.Rank)
		}
		return nil
	})
	// Unordered output:
	// worker 1 timed out: true
	// worker 0 was told of worker 1
}
