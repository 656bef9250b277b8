package data

import (
	"fmt"
	"slices"
)

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
	epoch, step uint64 // of the next batch
	done        uint64 // batches that were applied in the epoch
	applied     uint64 // the epoch of the last batch that was applied
}

// NewFixed returns the dealer of a division with these batch sizes. With shards, each worker has an order of its own, which goes on
// without end, and a batch is positions in that: step s is from s times its batch size on.
func NewFixed(total uint64, batches []uint64, shards bool, s State) (*Fixed, error) {
	f := &Fixed{total: total, batches: batches, shards: shards, workers: make([]fixedWorker, len(batches))}
	for rank, b := range batches {
		if b == 0 || b > MaxRows {
			return nil, fmt.Errorf("a batch of %d rows for worker %d: use 1 or more", b, rank)
		}
		f.sum += b
		f.workers[rank] = fixedWorker{epoch: s.Epoch, step: s.Cursor, done: s.Cursor, applied: s.Epoch}
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
	if epoch == w.epoch+1 && w.step == f.Steps() {
		w.epoch, w.step = epoch, 0
	}
	switch {
	case epoch != w.epoch:
		return Lease{}, fmt.Errorf("epoch %d: %w: the worker is in step %d of %d of epoch %d", epoch, ErrEpoch, w.step,
			f.Steps(), w.epoch)
	case w.step == f.Steps():
		return w.lease(Lease{Seq: seq, End: true}), nil
	}
	l := Lease{Seq: seq, Ranges: []Range{f.Batch(epoch, w.step, rank)}} // may be empty, but counts as a step
	w.step++
	return w.lease(l), nil
}

// Done implements Dealer.
func (f *Fixed) Done(rank int, seq uint64) error {
	w := &f.workers[rank]
	l, held, err := w.worker.done(seq)
	if !held {
		return err
	}
	if epoch := l.Ranges[0].Epoch; epoch != w.applied {
		w.applied, w.done = epoch, 0
	}
	w.done++
	return nil
}

// Lose implements Dealer: the worker that comes next goes on after the last batch that was applied.
func (f *Fixed) Lose(rank int) {
	w := &f.workers[rank]
	w.worker = worker{}
	w.epoch, w.step = w.applied, w.done
}

// Epoch implements Dealer.
func (f *Fixed) Epoch(rank int) uint64 { return f.workers[rank].epoch }

// State implements Dealer. It returns an error if workers have applied different numbers of steps.
func (f *Fixed) State() (State, error) {
	at := func(w fixedWorker) [2]uint64 { return [2]uint64{w.applied, w.done} }
	first := at(f.workers[0])
	if i := slices.IndexFunc(f.workers, func(w fixedWorker) bool { return at(w) != first }); i > 0 {
		other := at(f.workers[i])
		return State{}, fmt.Errorf("worker 0 has applied %d steps of epoch %d, worker %d %d of epoch %d: save between steps", first[1], first[0], i,
			other[1], other[0])
	}
	return State{Epoch: first[0], Cursor: first[1]}, nil
}
