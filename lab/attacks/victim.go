package attacks

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/rackweave/rackweave/client"
)

// Victim is a job of two workers that sums gradients without pause and compares every bit.
type Victim struct {
	workers   [2]*client.Worker
	stop      chan struct{}
	ended     sync.WaitGroup
	mu        sync.Mutex
	errs      []error
	latencies []time.Duration
}

const victimElems = 20_000

// Join joins the victim's job and starts its exchange.
func Join(ctx context.Context, url, job, token, provider string) (*Victim, error) {
	v, err := enrol(ctx, url, job, token, provider)
	if err != nil {
		return nil, err
	}
	for rank := range v.workers {
		v.ended.Go(func() { v.exchange(rank) })
	}
	return v, nil
}

// enrol joins the victim's job, and exchanges nothing.
func enrol(ctx context.Context, url, job, token, provider string) (*Victim, error) {
	v := &Victim{stop: make(chan struct{})}
	var joining sync.WaitGroup
	ctx, cancel := context.WithCancel(ctx) // one that is refused does not leave the other waiting
	defer cancel()
	errs := make([]error, len(v.workers))
	for rank := range v.workers {
		joining.Go(func() {
			w, err := client.Join(ctx, client.Config{Server: url, Job: job, Token: token, Rank: rank, Workers: len(v.workers),
				Provider: provider})
			if err == nil {
				v.workers[rank] = w
				err = w.Register(ctx, []client.Tensor{{Name: "w", Shape: []uint64{victimElems}}})
			}
			if errs[rank] = err; err != nil {
				cancel()
			}
		})
	}
	joining.Wait()
	if err := errors.Join(errs...); err != nil {
		return nil, errors.Join(err, v.close())
	}
	return v, nil
}

// gradient is element i of a rank's gradient in a round.
func gradient(rank, round, i int) float32 {
	return float32(math.Sin(float64(1+i+7*round)))*float32(1+rank) + float32(rank)/3
}

// exchange runs rounds until the victim is to stop. Both ranks do the same number: rank 0 decides, and says so in its gradient.
func (v *Victim) exchange(rank int) {
	x := make([]float32, victimElems)
	w := v.workers[rank]
	for round := 0; ; round++ {
		for i := range x {
			x[i] = gradient(rank, round, i)
		}
		x[0] = 0
		select {
		case <-v.stop:
			if rank == 0 {
				x[0] = 1
			}
		default:
		}
		began := time.Now()
		h, err := w.PushPull(0, client.Bytes(x), client.Bytes(x), 0)
		if err == nil {
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			err = h.Wait(ctx)
			cancel()
		}
		took := time.Since(began)
		for i := 1; err == nil && i < len(x); i++ {
			if want := gradient(0, round, i) + gradient(1, round, i); math.Float32bits(x[i]) != math.Float32bits(want) {
				err = fmt.Errorf("round %d: element %d is %v, want %v", round, i, x[i], want)
			}
		}
		v.mu.Lock()
		if err != nil {
			v.errs = append(v.errs, fmt.Errorf("victim's rank %d: %w", rank, err))
		} else if rank == 0 {
			v.latencies = append(v.latencies, took)
		}
		v.mu.Unlock()
		if err != nil || x[0] == 1 {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// Rounds returns how many rounds were right so far, and the 99th percentile of those from round first on.
func (v *Victim) Rounds(first int) (n int, p99 time.Duration) {
	v.mu.Lock()
	defer v.mu.Unlock()
	some := slices.Sorted(slices.Values(v.latencies[min(first, len(v.latencies)):]))
	if len(some) > 0 {
		p99 = some[len(some)*99/100]
	}
	return len(v.latencies), p99
}

// Err returns what has gone wrong so far.
func (v *Victim) Err() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	return errors.Join(v.errs...)
}

// Leave ends the job. It returns what went wrong in it.
func (v *Victim) Leave() error {
	close(v.stop)
	v.ended.Wait()
	return errors.Join(append(v.errs, v.close())...)
}

// SaveAndLeave ends the job after it has tried to save what it has: a job of mode aggregate has nothing, and is told so.
func (v *Victim) SaveAndLeave(ctx context.Context) error {
	if _, err := v.workers[0].Save(ctx, "soak"); !errors.Is(err, client.ErrRefused) {
		return fmt.Errorf("save: %w, want it refused", err)
	}
	return v.Leave()
}

// Kill ends one worker with operations in flight: the job fails.
func (v *Victim) Kill() {
	v.workers[1].Close()
	v.ended.Wait()
	v.close()
}

func (v *Victim) close() error {
	var errs []error
	for _, w := range v.workers {
		if w != nil {
			errs = append(errs, w.Close())
		}
	}
	return errors.Join(errs...)
}
