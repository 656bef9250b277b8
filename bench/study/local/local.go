// Package local trains through an aggregator of this process, over shared memory.
package local

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/rackweave/rackweave/client"
	"github.com/rackweave/rackweave/service"
)

const timeout = 30 * time.Second

// Serve starts an aggregator, which reads manifests of training sets in a directory, and returns it with a function that ends it.
func Serve(ctx context.Context, dataDir string) (*service.Service, func() error, error) {
	s, err := service.New(service.Options{
		Listen: "127.0.0.1:0", Providers: []string{"shm"}, Unpinned: true, DataDir: dataDir, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return nil, nil, err
	}
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx) }()
	return s, func() error { return errors.Join(s.Close(), <-ended) }, nil
}

// Worker is a worker of a job that trains one tensor by SGD.
type Worker struct {
	*client.Worker
	params []float32
	pull   bool // the parameters, before the next step
}

// Join joins a job, with rank 0's parameters. Without a policy, workers are in step.
func Join(ctx context.Context, c client.Config, params []float32) (*Worker, error) {
	if c.Mode = "eager"; c.Policy != "" {
		c.Mode = "stream"
	}
	c.Optimizer, c.Provider, c.Timeout = "sgd_torch", "shm", timeout
	joined, err := client.Join(ctx, c)
	if err != nil {
		return nil, err
	}
	w := &Worker{Worker: joined, params: params}
	err = w.Register(ctx, []client.Tensor{{Name: "model", Shape: []uint64{uint64(len(params))}}})
	if err == nil {
		err = wait(ctx)(w.Broadcast(0, client.Bytes(params)))
	}
	if err != nil {
		return nil, errors.Join(err, w.Close())
	}
	return w, nil
}

// Begin begins a step. It pulls the parameters if the policy wants newer ones.
func (w *Worker) Begin(ctx context.Context) error {
	if !w.pull {
		return nil
	}
	return wait(ctx)(w.Pull(0, client.Bytes(w.params), 0))
}

// End sends a gradient, receives the updated parameters, and ends the step.
func (w *Worker) End(ctx context.Context, gradient []float32) error {
	err := wait(ctx)(w.PushPull(0, client.Bytes(gradient), client.Bytes(w.params), 0))
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
