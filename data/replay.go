package data

import (
	"errors"
	"fmt"
)

// Batch is a batch that was dealt in an epoch.
type Batch struct {
	Epoch uint64
	Lease Lease
}

// Recorder is a dealer that keeps the batches which workers got and did not lose again.
type Recorder struct {
	Dealer
	Batches [][]Batch // by worker
	workers []recorded
}

// recorded counts a worker's batches before its numbers began, those up to which it has applied them, and its calls.
type recorded struct{ before, applied, seq uint64 }

// NewRecorder returns a recorder of what a dealer deals to so many workers.
func NewRecorder(d Dealer, workers int) *Recorder {
	return &Recorder{Dealer: d, Batches: make([][]Batch, workers), workers: make([]recorded, workers)}
}

// Next implements Dealer.
func (r *Recorder) Next(worker int, seq, epoch, count uint64) (Lease, error) {
	l, err := r.Dealer.Next(worker, seq, epoch, count)
	if w := &r.workers[worker]; err == nil && seq > w.seq {
		w.seq = seq
		r.Batches[worker] = append(r.Batches[worker], Batch{epoch, l})
	}
	return l, err
}

// Done implements Dealer.
func (r *Recorder) Done(worker int, seq uint64) error {
	err := r.Dealer.Done(worker, seq)
	if w := &r.workers[worker]; err == nil {
		w.applied = max(w.applied, w.before+seq)
	}
	return err
}

// Lose implements Dealer.
func (r *Recorder) Lose(worker int) {
	r.Dealer.Lose(worker)
	r.forget(worker)
}

// GoOn records what another dealer deals, to which the workers have turned with what they had applied.
func (r *Recorder) GoOn(d Dealer) {
	r.Dealer = d
	for worker := range r.workers {
		r.forget(worker)
	}
}

func (r *Recorder) forget(worker int) {
	w := &r.workers[worker]
	r.Batches[worker] = r.Batches[worker][:w.applied]
	*w = recorded{before: w.applied, applied: w.applied}
}

// Replay deals each worker the batches that it got in an earlier run, so that training makes the same sums again.
type Replay struct {
	batches [][]Batch
	workers []replayed
}

type replayed struct {
	worker
	next, first uint64 // the next of its batches, and that of number 1
	applied     uint64
}

// NewReplay returns a dealer of batches that were recorded.
func NewReplay(batches [][]Batch) *Replay {
	return &Replay{batches: batches, workers: make([]replayed, len(batches))}
}

// Next implements Dealer. The batch has the size that it had, whatever count is.
func (r *Replay) Next(worker int, seq, epoch, _ uint64) (Lease, error) {
	w, batches := &r.workers[worker], r.batches[worker]
	if last, again, err := w.repeated(seq); again || err != nil {
		return last, err
	}
	if w.next == uint64(len(batches)) {
		return Lease{}, fmt.Errorf("batch %d of worker %d: %w: %d were recorded", seq, worker, ErrSequence, len(batches))
	}
	b := batches[w.next]
	if b.Epoch != epoch {
		return Lease{}, fmt.Errorf("batch %d of worker %d: %w: it was of epoch %d", seq, worker, ErrEpoch, b.Epoch)
	}
	w.next++
	l := b.Lease
	l.Seq = seq
	return w.lease(l), nil
}

// Done implements Dealer.
func (r *Replay) Done(worker int, seq uint64) error {
	w := &r.workers[worker]
	_, _, err := w.done(seq)
	if err == nil {
		w.applied = max(w.applied, w.first+seq)
	}
	return err
}

// Lose implements Dealer: the worker that comes next goes on after the last batch that was applied.
func (r *Replay) Lose(worker int) {
	n := r.workers[worker].applied
	r.workers[worker] = replayed{next: n, first: n, applied: n}
}

// Epoch implements Dealer.
func (r *Replay) Epoch(worker int) uint64 {
	w, batches := &r.workers[worker], r.batches[worker]
	if len(batches) == 0 {
		return 0
	}
	return batches[min(w.next, uint64(len(batches)-1))].Epoch
}

// State implements Dealer. A replay has none.
func (r *Replay) State() (State, error) {
	return State{}, errors.New("a run that is made again from a journal has no progress to save: make it again from its beginning")
}
