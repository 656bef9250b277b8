package data

import (
	"cmp"
	"fmt"
	"slices"
)

// Ledger deals positions of the order as workers ask for them, so that a worker takes as many batches as it can compute. A position
// is applied once in an epoch: leases of a lost worker return, and are dealt first.
type Ledger struct {
	total       uint64
	synchronous bool
	epoch       uint64
	cursor      uint64
	returned    []Range // ascending
	pending     uint64  // positions of the epoch that were dealt, but not applied
	lastStep    uint64  // synchronous: the highest number of a batch with rows in the epoch
	workers     []worker
}

// NewLedger returns a ledger of epochs of so many positions, which goes on from a state. Workers of synchronous training make the
// same steps, one batch in each: an epoch ends for all with the same step. Others end it when all of it is applied.
func NewLedger(total uint64, workers int, synchronous bool, s State) (*Ledger, error) {
	switch {
	case total == 0 || total > MaxRows:
		return nil, fmt.Errorf("%d rows: use 1 to 2^40", total)
	case s.Cursor > total:
		return nil, fmt.Errorf("the state is at position %d of an epoch of %d rows: it is not of this set", s.Cursor, total)
	}
	if !s.reachable(total) {
		return nil, fmt.Errorf("the state is in epoch %d of %d rows, beyond what can be counted: begin anew", s.Epoch, total)
	}
	l := &Ledger{total: total, synchronous: synchronous, epoch: s.Epoch, cursor: s.Cursor, workers: make([]worker, workers)}
	for i, r := range s.Returned {
		last := Range{}
		if i > 0 {
			last = s.Returned[i-1]
		}
		if r.From >= r.To || r.To > total || r.Epoch > s.Epoch || r.Epoch == s.Epoch && r.To > s.Cursor ||
			i > 0 && (r.Epoch < last.Epoch || r.Epoch == last.Epoch && r.From < last.To) {
			return nil, fmt.Errorf("the state returns positions %d to %d of epoch %d, which it cannot have dealt once", r.From, r.To, r.Epoch)
		}
	}
	l.giveBack(s.Returned)
	return l, nil
}

// Next implements Dealer. It takes a time that grows with the number of ranges that were returned.
func (l *Ledger) Next(worker int, seq, epoch, count uint64) (Lease, error) {
	w := &l.workers[worker]
	if last, again, err := w.repeated(seq); again || err != nil {
		return last, err
	}
	if epoch == l.epoch+1 && l.over(seq) {
		l.epoch, l.cursor, l.pending, l.lastStep = epoch, 0, 0, 0
	}
	switch {
	case epoch < l.epoch:
		return w.lease(Lease{Seq: seq, End: true}), nil
	case epoch > l.epoch:
		return Lease{}, fmt.Errorf("epoch %d: %w: %d is not over", epoch, ErrEpoch, l.epoch)
	case count == 0:
		return Lease{}, fmt.Errorf("batch %d of 0 rows: use 1 or more", seq)
	}
	out := Lease{Seq: seq, Ranges: l.take(count)}
	switch {
	case len(out.Ranges) > 0:
		l.lastStep = max(l.lastStep, seq)
	default:
		out.End = l.over(seq)
	}
	return w.lease(out), nil
}

// over reports whether the epoch has no batch for a call, nor for any later one.
func (l *Ledger) over(seq uint64) bool {
	if l.cursor < l.total || len(l.returned) > 0 {
		return false
	}
	if l.synchronous {
		return seq > l.lastStep
	}
	return l.pending == 0
}

// maxRanges bounds the ranges of a lease, because a dealer seeks once for each. A batch that would need more is smaller.
const maxRanges = 32

// take deals at most so many positions, returned ones first.
func (l *Ledger) take(count uint64) (out []Range) {
	for count > 0 && len(l.returned) > 0 && len(out) < maxRanges {
		r := &l.returned[0]
		part := Range{r.Epoch, r.From, min(r.To, r.From+count)}
		if r.From = part.To; r.Len() == 0 {
			l.returned = l.returned[1:]
		}
		out, count = append(out, part), count-part.Len()
	}
	if n := min(count, l.total-l.cursor); n > 0 && len(out) < maxRanges {
		out = append(out, Range{l.epoch, l.cursor, l.cursor + n})
		l.cursor += n
	}
	for _, r := range out {
		if r.Epoch == l.epoch {
			l.pending += r.Len()
		}
	}
	return out
}

// giveBack makes positions the next ones to deal, in their order.
func (l *Ledger) giveBack(back []Range) {
	all := append(l.returned, back...)
	slices.SortFunc(all, func(a, b Range) int { return cmp.Or(cmp.Compare(a.Epoch, b.Epoch), cmp.Compare(a.From, b.From)) })
	l.returned = all[:0]
	for _, r := range all {
		if n := len(l.returned); n > 0 && l.returned[n-1].Epoch == r.Epoch && l.returned[n-1].To == r.From {
			l.returned[n-1].To = r.To
		} else {
			l.returned = append(l.returned, r)
		}
	}
}

// held returns the positions that a worker holds.
func (l *Ledger) held(worker int) (all []Range) {
	for _, lease := range l.workers[worker].leases {
		all = append(all, lease.Ranges...)
	}
	return all
}

// Done implements Dealer.
func (l *Ledger) Done(worker int, upTo uint64) error {
	settled, err := l.workers[worker].done(upTo)
	l.settle(settled)
	return err
}

// settle counts the positions of leases as no longer pending.
func (l *Ledger) settle(leases []Lease) {
	for _, lease := range leases {
		for _, r := range lease.Ranges {
			if r.Epoch == l.epoch {
				l.pending -= r.Len()
			}
		}
	}
}

// Lose implements Dealer.
func (l *Ledger) Lose(lost int) {
	l.settle(l.workers[lost].leases)
	l.giveBack(l.held(lost))
	l.workers[lost] = worker{}
	if !slices.ContainsFunc(l.workers, func(w worker) bool { return w.seq > 0 }) {
		l.lastStep = 0 // the numbers of all begin again
	}
}

// Epoch implements Dealer.
func (l *Ledger) Epoch(int) uint64 {
	if l.cursor == l.total && len(l.returned) == 0 && l.pending == 0 {
		return l.epoch + 1
	}
	return l.epoch
}

// State implements Dealer. Leases count as returned: their gradients are not in the model that is saved with the state.
func (l *Ledger) State() (State, error) {
	all := Ledger{epoch: l.epoch, returned: slices.Clone(l.returned)}
	var held []Range
	for i := range l.workers {
		held = append(held, l.held(i)...)
	}
	all.giveBack(held)
	s := State{Epoch: l.epoch, Cursor: l.cursor, Returned: all.returned}
	// Positions just before the cursor that were not applied are as good as never dealt.
	if n := len(s.Returned); n > 0 && s.Returned[n-1].Epoch == s.Epoch && s.Returned[n-1].To == s.Cursor {
		s.Cursor = s.Returned[n-1].From
		s.Returned = s.Returned[:n-1]
	}
	if n := len(s.Returned); n > 0 && s.Cursor == 0 { // nothing of this epoch was applied, and an earlier one is not over
		s.Epoch, s.Cursor = s.Returned[n-1].Epoch, l.total
	}
	return s, nil
}
