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

// Record is a dealer that keeps the batches which another deals, and workers do not lose again. Without another it deals its
// batches once more, so that training makes the same sums. [Record.GoOn] changes the other.
type Record struct {
	Dealer
	batches        [][]Batch // by worker
	begun, applied []int     // how many of a worker's batches came before its numbers began, and how many it has applied
}

// NewRecord returns a record of what a dealer deals to so many workers.
func NewRecord(d Dealer, workers int) *Record {
	return &Record{Dealer: d, batches: make([][]Batch, workers), begun: make([]int, workers), applied: make([]int, workers)}
}

// Next implements Dealer. A batch of the record has the size that it had, whatever count is.
func (r *Record) Next(worker int, seq, epoch, count uint64) (Lease, error) {
	if r.Dealer != nil {
		l, err := r.Dealer.Next(worker, seq, epoch, count)
		if err == nil && r.begun[worker]+int(seq) > len(r.batches[worker]) {
			r.batches[worker] = append(r.batches[worker], Batch{epoch, l})
		}
		return l, err
	}
	batches, at := r.batches[worker], uint64(r.begun[worker])+seq-1
	switch {
	case at >= uint64(len(batches)):
		return Lease{}, fmt.Errorf("batch %d of worker %d: %w: %d were recorded", seq, worker, ErrSequence, len(batches))
	case batches[at].Epoch != epoch:
		return Lease{}, fmt.Errorf("batch %d of worker %d: %w: it was of epoch %d", seq, worker, ErrEpoch, batches[at].Epoch)
	}
	l := batches[at].Lease
	l.Seq = seq
	return l, nil
}

// Done implements Dealer.
func (r *Record) Done(worker int, upTo uint64) (err error) {
	if r.Dealer != nil {
		err = r.Dealer.Done(worker, upTo)
	}
	if at := r.begun[worker] + int(upTo); err == nil && at <= len(r.batches[worker]) {
		r.applied[worker] = max(r.applied[worker], at)
	}
	return err
}

// Lose implements Dealer: the worker that comes next goes on after the last batch that was applied.
func (r *Record) Lose(worker int) {
	r.begun[worker] = r.applied[worker]
	if r.Dealer != nil {
		r.Dealer.Lose(worker)
		r.batches[worker] = r.batches[worker][:r.applied[worker]]
	}
}

// GoOn records what another dealer deals, to which the workers have turned with what they had applied. If it is nil, the record is
// dealt from its beginning.
func (r *Record) GoOn(d Dealer) {
	for worker := range r.batches {
		if r.begun[worker] = 0; d != nil {
			r.begun[worker] = r.applied[worker]
			r.batches[worker] = r.batches[worker][:r.applied[worker]]
		}
		r.applied[worker] = r.begun[worker]
	}
	r.Dealer = d
}

// Epoch implements Dealer.
func (r *Record) Epoch(worker int) uint64 {
	batches := r.batches[worker]
	switch {
	case r.Dealer != nil:
		return r.Dealer.Epoch(worker)
	case len(batches) == 0:
		return 0
	}
	return batches[min(r.begun[worker], len(batches)-1)].Epoch
}

// State implements Dealer. A record that is dealt again has none.
func (r *Record) State() (State, error) {
	if r.Dealer == nil {
		return State{}, errors.New("a run that is made again from a journal has no progress to save: make it again from its beginning")
	}
	return r.Dealer.State()
}
