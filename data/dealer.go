package data

import (
	"errors"
	"fmt"
	"math/bits"
)

// Range is the positions [From, To) of an epoch's order.
type Range struct {
	Epoch    uint64
	From, To uint64
}

// Len returns the number of positions.
func (r Range) Len() uint64 { return r.To - r.From }

// Lease is a batch: positions that a worker holds until it reports that their gradient was applied.
type Lease struct {
	Seq    uint64
	Ranges []Range
	// End reports that the epoch has no further batch for any worker. The lease is empty then. An empty lease without End is a step
	// without rows: the worker takes part in it with a gradient of 0, or asks again later if nobody waits for its steps.
	End bool
}

// Rows returns the number of positions.
func (l Lease) Rows() (n uint64) {
	for _, r := range l.Ranges {
		n += r.Len()
	}
	return n
}

// Dealer deals batches to workers, which are numbered from 0.
type Dealer interface {
	// Next leases a batch of at most count positions of an epoch. A worker numbers its calls from 1. A repeated number has the same
	// answer.
	Next(worker int, seq, epoch, count uint64) (Lease, error)
	// Done reports that the gradients of a worker's batches up to a number were applied. A repetition has no effect.
	Done(worker int, upTo uint64) error
	// Lose takes back what a worker holds. Its numbers begin again with 1.
	Lose(worker int)
	// Epoch returns the epoch of a worker's next batch.
	Epoch(worker int) uint64
	// State returns what a new Dealer goes on from: what nobody has applied is dealt again.
	State() (State, error)
}

// State is a dealer's progress.
type State struct {
	Epoch    uint64
	Cursor   uint64  // the first position that was never dealt; of a fixed division, the step
	Returned []Range // positions before it that are dealt again, ascending
}

// reachable reports whether so many rows of each epoch can be counted up to a state, and as many again after it.
func (s State) reachable(rows uint64) bool {
	high, low := bits.Mul64(s.Epoch, rows)
	return high == 0 && low < 1<<62
}

// Errors of a Dealer, wrapped.
var (
	ErrSequence = errors.New("out of sequence")
	ErrNotHeld  = errors.New("the lease is not held")
	ErrEpoch    = errors.New("not the present epoch")
)

// MaxLeases bounds the leases that a worker holds at a time.
const MaxLeases = 1024

// worker keeps what a dealer has leased to one.
type worker struct {
	seq    uint64 // of the last call
	last   Lease
	leases []Lease // with ranges, by number
}

// repeated returns the answer to a repeated call. It reports false for the next call.
func (w *worker) repeated(seq uint64) (l Lease, again bool, err error) {
	switch {
	case seq == w.seq && seq > 0:
		return w.last, true, nil
	case seq != w.seq+1:
		return l, false, fmt.Errorf("call %d: %w: %d is next", seq, ErrSequence, w.seq+1)
	case len(w.leases) == MaxLeases:
		return l, false, fmt.Errorf("call %d: %w: the worker holds %d batches: report some as done first", seq, ErrSequence, MaxLeases)
	}
	return l, false, nil
}

func (w *worker) lease(l Lease) Lease {
	w.seq, w.last = l.Seq, l
	if len(l.Ranges) > 0 {
		w.leases = append(w.leases, l)
	}
	return l
}

// done takes the leases up to a number from the worker.
func (w *worker) done(upTo uint64) (settled []Lease, err error) {
	if upTo == 0 || upTo > w.seq {
		return nil, fmt.Errorf("done with batch %d: %w: the last is %d", upTo, ErrNotHeld, w.seq)
	}
	n := 0
	for n < len(w.leases) && w.leases[n].Seq <= upTo {
		n++
	}
	settled, w.leases = w.leases[:n], w.leases[n:]
	return settled, nil
}
