// Package local trains through aggregators of this process, over shared memory.
package local

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/rackweave/rackweave/client"
	"github.com/rackweave/rackweave/service"
)

const timeout = 30 * time.Second

// Worker is a worker of a job that trains one tensor by SGD.
type Worker struct {
	*client.Worker
	Params, gradient []float32
	pull             bool // the parameters, before the next step
}

// Train runs the workers of a job and an aggregator for them, which reads manifests of training sets in a directory. Every worker
// joins with rank 0's parameters, waits for the others, and works. Without a policy, workers are in step. It returns the parameters
// that the workers had last.
func Train(ctx context.Context, c client.Config, dir string, params []float32, work func(context.Context, *Worker) error) (
	_ [][]float32, err error) {
	s, err := service.New(service.Options{
		Listen: "127.0.0.1:0", Providers: []string{"shm"}, Unpinned: true, DataDir: dir, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return nil, err
	}
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx) }()
	defer func() { err = errors.Join(err, s.Close(), <-ended) }()
	c.Server, c.Job, c.Optimizer, c.Provider, c.Timeout = s.URL(), "study", "sgd_torch", "shm", timeout
	if c.Mode = "eager"; c.Policy != "" {
		c.Mode = "stream"
	}
	models := make([][]float32, c.Workers)
	g, running := errgroup.WithContext(ctx)
	for rank := range models {
		own := c
		own.Rank, models[rank] = rank, slices.Clone(params)
		g.Go(func() error { return join(running, own, models[rank], work) })
	}
	return models, g.Wait()
}

// join joins as a worker, and works.
func join(ctx context.Context, c client.Config, params []float32, work func(context.Context, *Worker) error) error {
	joined, err := client.Join(ctx, c)
	if err != nil {
		return err
	}
	w := &Worker{Worker: joined, Params: params, gradient: make([]float32, len(params))}
	err = w.Register(ctx, []client.Tensor{{Name: "model", Shape: []uint64{uint64(len(params))}}})
	if err == nil {
		err = wait(ctx)(w.Broadcast(0, client.Bytes(params)))
	}
	if err == nil {
		err = work(ctx, w)
	}
	return errors.Join(err, w.Close()) // the others wait for it no more
}

// Step makes a step: it pulls the parameters if the policy wants newer ones, calls gradient to fill in one, sleeps until the step
// has taken so long, and calls computed. Then it sends the gradient, and receives the updated parameters.
func (w *Worker) Step(ctx context.Context, takes time.Duration, gradient func(g []float32), computed func()) error {
	from := time.Now()
	if w.pull {
		if err := wait(ctx)(w.Pull(0, client.Bytes(w.Params), 0)); err != nil {
			return err
		}
	}
	gradient(w.gradient)
	time.Sleep(takes - time.Since(from))
	computed()
	err := wait(ctx)(w.PushPull(0, client.Bytes(w.gradient), client.Bytes(w.Params), 0))
	if err != nil || !w.Stream() {
		return err
	}
	end, err := w.EndStep(ctx)
	w.pull = end.Pull
	return err
}

// wait returns a function that waits for an operation, unless it did not start.
func wait(ctx context.Context) func(client.Handle, error) error {
	return func(h client.Handle, err error) error {
		if err != nil {
			return err
		}
		return h.Wait(ctx)
	}
}
