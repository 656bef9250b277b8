package attacks

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/rackweave/rackweave/client"
)

// updating joins a job of one worker whose parameters lie at the aggregator.
func (a *Aggregator) updating(ctx context.Context, job, mode, provider string) (*client.Worker, error) {
	return client.Join(ctx, client.Config{Server: a.URL, Job: job, Workers: 1, Provider: provider, Mode: mode, Optimizer: "adam_torch",
		Timeout: 20 * time.Second})
}

// CommitWhileRegistering commits steps in a loop while the same worker registers more tensors.
func CommitWhileRegistering(ctx context.Context, a *Aggregator) error {
	w, err := a.updating(ctx, newName("commits"), "two-phase", "shm")
	if err != nil {
		return err
	}
	defer w.Close()
	if err := w.Register(ctx, []client.Tensor{{Name: "first", Shape: []uint64{100_000}}}); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second/2)
	defer cancel()
	var commits sync.WaitGroup
	commits.Go(func() {
		for ctx.Err() == nil {
			w.Commit(ctx, client.Step{LR: 0.1, Clip: 1})
		}
	})
	for i := 0; ctx.Err() == nil; i++ {
		w.Register(ctx, []client.Tensor{{Name: fmt.Sprint("late", i), Shape: []uint64{50_000}}})
	}
	commits.Wait()
	return nil
}

// RegisterOneByOne registers more batches of tensors than a device has regions, and lets others come then.
func RegisterOneByOne(ctx context.Context, a *Aggregator) error {
	w, err := a.updating(ctx, newName("ones"), "eager", "shm")
	if err != nil {
		return err
	}
	defer w.Close()
	for i := range 4500 {
		if w.Register(ctx, []client.Tensor{{Name: fmt.Sprint("w", i), Shape: []uint64{10}}}) != nil {
			break // its quota is spent
		}
	}
	v, err := Join(ctx, a.URL, newName("beside"), "", "shm")
	if err != nil {
		return fmt.Errorf("a new job beside one of many registrations: %w", err)
	}
	time.Sleep(100 * time.Millisecond)
	return v.Leave()
}

// FloodLanes keeps every lane's windows full of another job's chunks, over the victim's provider.
func FloodLanes(ctx context.Context, a *Aggregator) error {
	w, err := client.Join(ctx, client.Config{Server: a.URL, Job: newName("flood"), Workers: 1, Provider: "tcp",
		Timeout: 20 * time.Second})
	if err != nil {
		return err
	}
	defer w.Close()
	const tensors = 8
	batch := make([]client.Tensor, tensors)
	for i := range batch {
		batch[i] = client.Tensor{Name: fmt.Sprint("w", i), Shape: []uint64{1 << 20}}
	}
	if err := w.Register(ctx, batch); err != nil {
		return err
	}
	x := make([][]float32, tensors)
	for end := time.Now().Add(time.Second / 2); time.Now().Before(end); {
		ops := make([]client.Op, tensors)
		for i := range ops {
			if x[i] == nil {
				x[i] = make([]float32, 1<<20)
			}
			ops[i] = client.Op{Kind: client.PushPull, Tensor: i, Src: client.Bytes(x[i]), Dst: client.Bytes(x[i])}
		}
		handles, err := w.Submit(ops...)
		if err == nil {
			err = w.WaitAll(ctx, handles)
		}
		if err != nil {
			return fmt.Errorf("the job that floods: %w", err)
		}
	}
	return nil
}

// DieAmidAll ends workers' connections in the middle of an exchange, again and again.
func DieAmidAll(ctx context.Context, a *Aggregator) error {
	var errs []error
	for i := range 4 {
		provider := [...]string{"tcp", "shm"}[i%2]
		w, err := client.Join(ctx, client.Config{Server: a.URL, Job: newName("dies"), Workers: 1, Provider: provider,
			Timeout: 20 * time.Second})
		if err != nil {
			errs = append(errs, err)
			continue
		}
		x := make([]float32, 1<<20)
		err = w.Register(ctx, []client.Tensor{{Name: "w", Shape: []uint64{1 << 20}}})
		if err == nil {
			_, err = w.PushPull(0, client.Bytes(x), client.Bytes(x), 0)
		}
		errs = append(errs, err)
		w.Close() // with gradients under way
	}
	return errors.Join(errs...)
}
