package attacks

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/rackweave/rackweave/client"
)

// trainer is a job of mode eager whose parameters are all of one value.
type trainer struct {
	workers []*client.Worker
	elems   int
}

// train joins a job of so many workers, and gives its parameters a value.
func (a *Aggregator) train(ctx context.Context, job, token string, workers, elems int, value float32) (*trainer, error) {
	t := &trainer{make([]*client.Worker, workers), elems}
	err := t.each(func(rank int) error {
		w, err := client.Join(ctx, client.Config{Server: a.URL, Job: job, Token: token, Rank: rank, Workers: workers, Provider: "tcp",
			Optimizer: "sgd_torch", Hyper: map[string]float64{"lr": 0.5}, Timeout: 20 * time.Second})
		if err != nil {
			return err
		}
		t.workers[rank] = w
		if err := w.Register(ctx, []client.Tensor{{Name: "w", Shape: []uint64{uint64(elems)}}}); err != nil {
			return err
		}
		h, err := w.Broadcast(0, client.Bytes(t.filled(value)))
		if err == nil {
			err = h.Wait(ctx)
		}
		return err
	})
	if err != nil {
		return nil, errors.Join(err, t.close())
	}
	return t, nil
}

func (t *trainer) filled(value float32) []float32 {
	x := make([]float32, t.elems)
	for i := range x {
		x[i] = value
	}
	return x
}

// each does something in all workers at once.
func (t *trainer) each(f func(rank int) error) error {
	var all sync.WaitGroup
	errs := make([]error, len(t.workers))
	for rank := range t.workers {
		all.Go(func() { errs[rank] = f(rank) })
	}
	all.Wait()
	return errors.Join(errs...)
}

// step takes a step whose gradients are 1 in all workers: parameters become smaller by 0.5, as their mean's rate says.
func (t *trainer) step(ctx context.Context) error {
	return t.each(func(rank int) error {
		x := t.filled(1)
		h, err := t.workers[rank].PushPull(0, client.Bytes(x), client.Bytes(x), 0)
		if err == nil {
			err = h.Wait(ctx)
		}
		return err
	})
}

// value returns the value of all parameters, and an error where they differ.
func (t *trainer) value(ctx context.Context) (float32, error) {
	x := make([]float32, t.elems)
	h, err := t.workers[0].Pull(0, client.Bytes(x), 0)
	if err == nil {
		err = h.Wait(ctx)
	}
	if err != nil {
		return 0, err
	}
	for i := range x {
		if x[i] != x[0] {
			return 0, fmt.Errorf("parameter 0 is %v and parameter %d is %v: %w", x[0], i, x[i], errTorn)
		}
	}
	return x[0], nil
}

// wants returns an error unless all parameters have a value.
func (t *trainer) wants(ctx context.Context, want float32) error {
	v, err := t.value(ctx)
	if err == nil && v != want {
		err = fmt.Errorf("parameters are %v, want %v", v, want)
	}
	return err
}

var errTorn = errors.New("the model is torn")

func (t *trainer) close() error {
	var errs []error
	for _, w := range t.workers {
		if w != nil {
			errs = append(errs, w.Close())
		}
	}
	return errors.Join(errs...)
}

// SaveAndResize trains a job, saves it, and goes on with another number of workers.
func SaveAndResize(ctx context.Context, a *Aggregator) error {
	job := newName("resized")
	saved := float32(0)
	for round := range 3 {
		t, err := a.train(ctx, job, "its own", 1+rand.IntN(3), 10_000, 7)
		if err != nil {
			return err
		}
		if round > 0 {
			if err := t.workers[0].Restore(ctx, "c"); err != nil {
				return errors.Join(err, t.close())
			}
			if err := t.wants(ctx, saved); err != nil {
				return errors.Join(fmt.Errorf("restored: %w", err), t.close())
			}
		}
		err = t.step(ctx)
		if err == nil {
			saved, err = t.value(ctx)
		}
		if err == nil {
			_, err = t.workers[0].Save(ctx, "c")
		}
		if err = errors.Join(err, t.close()); err != nil {
			return err
		}
	}
	return nil
}

// OthersCheckpoints joins, with a token of its own, a job that has ended, and tries to read and to replace what it saved.
func OthersCheckpoints(ctx context.Context, a *Aggregator) error {
	const elems = 1000
	job := newName("owned")
	owner, err := a.train(ctx, job, "owner's", 1, elems, 3)
	if err != nil {
		return err
	}
	_, err = owner.workers[0].Save(ctx, "c")
	if err = errors.Join(err, owner.close()); err != nil {
		return err
	}
	thief, err := a.train(ctx, job, "thief's", 1, elems, 4)
	if err != nil {
		return fmt.Errorf("the thief cannot try: %w", err)
	}
	if err := thief.workers[0].Restore(ctx, "c"); err == nil {
		return errors.Join(errors.New("another's checkpoint was restored"), thief.close())
	}
	if _, err := thief.workers[0].Save(ctx, "c"); err == nil {
		return errors.Join(errors.New("another's checkpoint was replaced"), thief.close())
	}
	if err := thief.wants(ctx, 4); err != nil {
		return errors.Join(fmt.Errorf("the thief: %w", err), thief.close())
	}
	if err := thief.close(); err != nil {
		return err
	}
	owner, err = a.train(ctx, job, "owner's", 1, elems, 5)
	if err != nil {
		return err
	}
	if err = owner.workers[0].Restore(ctx, "c"); err == nil {
		err = owner.wants(ctx, 3)
	}
	return errors.Join(err, owner.close())
}

// TearRestore ends restores midway: by their deadline, and by gradients that come meanwhile. The model is then the old one or the
// new one, or the job has failed for it.
func TearRestore(ctx context.Context, a *Aggregator) error {
	const elems = 4 << 20
	job := newName("torn")
	whole := time.Duration(0) // what a restore takes
	for i := range 5 {
		t, err := a.train(ctx, job, "its own", 1, elems, 2)
		if err != nil {
			return err
		}
		if i == 0 {
			_, err := t.workers[0].Save(ctx, "c")
			began := time.Now()
			if err == nil {
				err = t.workers[0].Restore(ctx, "c")
			}
			if err != nil {
				return errors.Join(err, t.close())
			}
			whole = time.Since(began)
		}
		err = t.step(ctx) // parameters are 1.5 now, and 2 in the checkpoint
		if err == nil {
			err = t.tear(ctx, time.Duration(i)*whole/5)
		}
		if err != nil {
			return errors.Join(err, t.close())
		}
		t.close() // the job may have failed
	}
	return nil
}

// tear restores a checkpoint within a time, or, where that is 0, while gradients come.
func (t *trainer) tear(ctx context.Context, within time.Duration) error {
	var pushing sync.WaitGroup
	restoring, end := ctx, func() {}
	if within > 0 {
		restoring, end = context.WithTimeout(ctx, within)
	} else {
		pushing.Go(func() { t.step(ctx) })
	}
	restored := t.workers[0].Restore(restoring, "c")
	end()
	pushing.Wait()
	v, err := t.value(ctx)
	switch {
	case errors.Is(err, errTorn):
		return fmt.Errorf("after a restore within %v that said %v: %w", within, restored, err)
	case err != nil && t.workers[0].Err() == nil:
		return fmt.Errorf("after a restore within %v that said %v the job goes on, and cannot be read: %w", within, restored, err)
	case err != nil && !strings.Contains(t.workers[0].Err().Error(), "restore"):
		return fmt.Errorf("the job failed, and its restore within %v (%v) is not named: %w", within, restored, t.workers[0].Err())
	case err == nil && within > 0 && restored == nil && v != 2:
		return fmt.Errorf("a restore within %v said %v, and parameters are %v", within, restored, v)
	}
	return nil
}
