package data

import (
	"cmp"
	"context"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/rackweave/rackweave/data"
	"github.com/rackweave/rackweave/pqueue"
)

const (
	rate   = 0.5 // of a gradient that is the mean of all workers' rows
	epochs = 30
	// jitter is the deviation of the logarithm of the time that a batch takes.
	jitter = 0.1
)

// condition is the circumstances of a training.
type condition struct {
	synchronous bool
	// slow is the time of the last worker's batch over the others'.
	slow float64
	// balanced divides each step's rows by the workers' speeds. Otherwise all have batches of one size.
	balanced bool
	// cover trains until each row was applied as often as there are epochs. Otherwise the rows in all count.
	cover bool
}

// outcome is the result of a training.
type outcome struct {
	accuracy, loss float64
	// time of an epoch, in those of a fast worker's batch.
	time float64
}

// training is one under way.
type training struct {
	condition
	*problem
	supply *supply
	model  softmax
	clocks [workers]*rand.Rand
	rows   int
	counts []int // of each row: how often it was applied
	short  int   // rows that were applied less often than there are epochs
	now    float64
}

// train trains in a way. The same seed has the same clocks in all ways.
func train(ctx context.Context, p *problem, w *way, c condition, seed uint64) (o outcome, err error) {
	t := &training{condition: c, problem: p, counts: make([]int, len(p.train)), short: len(p.train)}
	if t.supply, err = w.open(p, c.synchronous, seed); err != nil {
		return o, err
	}
	for i := range t.clocks {
		t.clocks[i] = rand.New(rand.NewPCG(seed, uint64(i)))
	}
	run := t.apart
	if c.synchronous {
		run = t.inStep
	}
	if err := run(ctx); err != nil {
		return o, err
	}
	o.loss, o.accuracy = t.model.measure(p.test)
	o.accuracy, o.time = 100*o.accuracy, t.now/epochs
	return o, nil
}

// over reports whether the training has ended.
func (t *training) over() bool {
	if t.cover {
		return t.short == 0
	}
	return t.rows >= epochs*len(t.train)
}

// takes draws the time of a worker's batch.
func (t *training) takes(worker, rows int) float64 {
	time := float64(rows) / batch * math.Exp(jitter*t.clocks[worker].NormFloat64())
	if worker == workers-1 {
		time *= t.slow
	}
	return time
}

// apply adds the gradient of rows at other parameters to the model. Every row has the same weight, also in a ragged batch.
func (t *training) apply(at *softmax, rows []int) {
	for _, row := range rows {
		t.model.add(at, &t.train[row], -rate/(workers*batch))
		if t.counts[row]++; t.counts[row] == epochs {
			t.short--
		}
	}
	t.rows += len(rows)
}

// inStep trains synchronously: a step has a batch of every worker, and takes as long as the longest.
func (t *training) inStep(ctx context.Context) error {
	b, err := data.NewBatches(workers*batch, workers)
	for err == nil && !t.over() {
		before, longest, sizes := t.model, 0.0, b.Sizes()
		for w := range workers {
			rows, err := t.supply.take(w, sizes[w])
			if err != nil {
				return err
			}
			t.apply(&before, rows)
			if err := t.supply.applied(w); err != nil {
				return err
			}
			took := t.takes(w, len(rows))
			if longest = max(longest, took); t.balanced {
				b.Took(w, len(rows), took)
			}
		}
		t.now += longest
		err = context.Cause(ctx)
	}
	return err
}

// arrival is a worker's gradient that will be there at a time.
type arrival struct {
	at     float64
	worker int
	rows   []int
	had    softmax // the parameters that it is computed at
}

// apart trains asynchronously: each gradient is applied when it is there, on parameters that others have changed meanwhile.
func (t *training) apart(ctx context.Context) error {
	agenda := pqueue.New(func(a, b *arrival) bool { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.worker, b.worker)) < 0 })
	idle := []int{0, 1, 2, 3}
	for !t.over() && ctx.Err() == nil {
		for i := 0; i < len(idle); {
			w := idle[i]
			rows, err := t.supply.take(w, batch)
			if err != nil {
				return err
			}
			if len(rows) == 0 { // the epoch ends with batches that others hold
				i++
				continue
			}
			agenda.Push(&arrival{t.now + t.takes(w, len(rows)), w, rows, t.model})
			idle = slices.Delete(idle, i, i+1)
		}
		a := agenda.Pop()
		t.now = a.at
		t.apply(&a.had, a.rows)
		if err := t.supply.applied(a.worker); err != nil {
			return err
		}
		idle = append(idle, a.worker)
	}
	return context.Cause(ctx)
}
