package data

import "fmt"

// Fixed deals by step and rank alone: step s of an epoch is the positions from s times the sum of the batch sizes on, in the order
// of ranks. In the last step of an epoch that does not divide, each worker has its share of the rest.
type Fixed struct {
	total, sum uint64
	batches    []uint64 // sizes, by worker
	shards     bool
	workers    []fixedWorker
}

type fixedWorker struct {
	worker
	next, applied point
}

// point is the number of steps that come before it in an epoch.
type point struct{ epoch, step uint64 }

// NewFixed returns the dealer of a division with these batch sizes. With shards, each worker has an order of its own, which goes on
// without end, and a batch is positions in that: step s is from s times its batch size on.
func NewFixed(total uint64, batches []uint64, shards bool, s State) (*Fixed, error) {
	f := &Fixed{total: total, batches: batches, shards: shards, workers: make([]fixedWorker, len(batches))}
	for rank, b := range batches {
		if b == 0 || b > MaxRows {
			return nil, fmt.Errorf("a batch of %d rows for worker %d: use 1 or more", b, rank)
		}
		f.sum += b
		at := point{s.Epoch, s.Cursor}
		f.workers[rank] = fixedWorker{next: at, applied: at}
	}
	if total > 0 && total <= MaxRows && !s.reachable(f.Steps()*f.sum) {
		return nil, fmt.Errorf("the state is in epoch %d of %d steps of %d rows, beyond what can be counted: begin anew", s.Epoch, f.Steps(), f.sum)
	}
	if total == 0 || total > MaxRows || s.Cursor > f.Steps() || len(s.Returned) > 0 {
		return nil, fmt.Errorf("step %d of an epoch of %d rows, with %d ranges returned: the state is not that of this division",
			s.Cursor, total, len(s.Returned))
	}
	return f, nil
}

// Steps returns the number of steps in an epoch.
func (f *Fixed) Steps() uint64 { return (f.total + f.sum - 1) / f.sum }

// Batch returns a worker's positions in a step.
func (f *Fixed) Batch(epoch, step uint64, rank int) Range {
	b := f.batches[rank]
	if f.shards {
		first := (epoch*f.Steps() + step) * b
		return Range{epoch, first, first + b}
	}
	first := step * f.sum
	n := min(f.sum, f.total-first)
	before := uint64(0)
	for _, o := range f.batches[:rank] {
		before += o
	}
	return Range{epoch, first + before*n/f.sum, first + (before+b)*n/f.sum}
}

// Next implements Dealer. The batch has the size of the division, whatever count is.
func (f *Fixed) Next(rank int, seq, epoch, _ uint64) (Lease, error) {
	w := &f.workers[rank]
	if last, again, err := w.repeated(seq); again || err != nil {
		return last, err
	}
	steps := f.Steps()
	if epoch == w.next.epoch+1 && w.next.step == steps {
		w.next = point{epoch: epoch}
	}
	switch {
	case epoch != w.next.epoch:
		return Lease{}, fmt.Errorf("epoch %d: %w: the worker is in step %d of %d of epoch %d", epoch, ErrEpoch, w.next.step,
			steps, w.next.epoch)
	case w.next.step == steps:
		return w.lease(Lease{Seq: seq, End: true}), nil
	}
	l := Lease{Seq: seq, Ranges: []Range{f.Batch(epoch, w.next.step, rank)}} // may be empty, but counts as a step
	w.next.step++
	return w.lease(l), nil
}

// Done implements Dealer.
func (f *Fixed) Done(rank int, upTo uint64) error {
	w := &f.workers[rank]
	settled, err := w.worker.done(upTo)
	for _, l := range settled {
		if epoch := l.Ranges[0].Epoch; epoch != w.applied.epoch {
			w.applied = point{epoch: epoch}
		}
		w.applied.step++
	}
	return err
}

// Lose implements Dealer: the worker that comes next goes on after the last batch that was applied.
func (f *Fixed) Lose(rank int) {
	w := &f.workers[rank]
	w.worker, w.next = worker{}, w.applied
}

// Epoch implements Dealer.
func (f *Fixed) Epoch(rank int) uint64 {
	next := f.workers[rank].next
	return next.epoch + next.step/f.Steps()
}

// State implements Dealer. It returns an error if workers have applied different numbers of steps.
func (f *Fixed) State() (State, error) {
	first := f.workers[0].applied
	for i, w := range f.workers {
		if w.applied != first {
			return State{}, fmt.Errorf("worker 0 has applied %d steps of epoch %d, worker %d %d of epoch %d: save between steps", first.step,
				first.epoch, i, w.applied.step, w.applied.epoch)
		}
	}
	return State{Epoch: first.epoch, Cursor: first.step}, nil
}
