package data

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// trial drives a dealer as workers do, and counts what was applied relative to the last state that was saved.
type trial struct {
	t       *rapid.T
	dealer  Dealer
	restore func(State) Dealer
	total   uint64
	workers []learner
	applied map[Range]int // single positions
	saved   map[Range]int
	state   State
}

type learner struct {
	seq, epoch uint64
	held       []Lease
	ended      bool
}

func newTrial(t *rapid.T, total uint64, workers int, restore func(State) Dealer) *trial {
	r := &trial{t: t, total: total, restore: restore, workers: make([]learner, workers)}
	r.applied, r.saved = map[Range]int{}, map[Range]int{}
	r.dealer = restore(State{})
	return r
}

func (r *trial) next(worker int, count uint64) Lease {
	w := &r.workers[worker]
	l, err := r.dealer.Next(worker, w.seq+1, w.epoch, count)
	if err != nil {
		r.t.Fatal(err)
	}
	again, err := r.dealer.Next(worker, w.seq+1, w.epoch, count+1)
	if err != nil || fmt.Sprint(again) != fmt.Sprint(l) {
		r.t.Fatalf("repeated: %v, not %v (%v)", again, l, err)
	}
	w.seq++
	if l.Rows() > 0 {
		w.held = append(w.held, l)
	}
	w.ended = l.End
	return l
}

// done applies a worker's batches up to one that it holds.
func (r *trial) done(worker, i int) {
	w := &r.workers[worker]
	settled := w.held[:i+1]
	for range 2 { // the second has no effect
		if err := r.dealer.Done(worker, settled[i].Seq); err != nil {
			r.t.Fatal(err)
		}
	}
	for _, l := range settled {
		for _, at := range l.Ranges {
			for p := at.From; p < at.To; p++ {
				r.applied[Range{at.Epoch, p, p + 1}]++
			}
		}
	}
	w.held = w.held[i+1:]
}

func (r *trial) lose(worker int) {
	r.dealer.Lose(worker)
	r.workers[worker] = learner{epoch: r.workers[worker].epoch}
}

func (r *trial) save() {
	s, err := r.dealer.State()
	if err != nil {
		r.t.Fatal(err)
	}
	r.state, r.saved = s, map[Range]int{}
	for p, n := range r.applied {
		r.saved[p] = n
	}
}

// crash goes on from the state that was saved last.
func (r *trial) crash() {
	r.dealer, r.applied = r.restore(r.state), map[Range]int{}
	for p, n := range r.saved {
		r.applied[p] = n
	}
	for i := range r.workers {
		r.workers[i] = learner{epoch: r.state.Epoch}
	}
}

// once fails unless each position of the epochs was applied once.
func (r *trial) once(epochs uint64) {
	for e := range epochs {
		for p := range r.total {
			if n := r.applied[Range{e, p, p + 1}]; n != 1 {
				r.t.Fatalf("position %d of epoch %d was applied %d times", p, e, n)
			}
		}
	}
}

func TestLedgersApplyEachRowOnceWhateverDies(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		total, workers := rapid.Uint64Range(1, 60).Draw(t, "rows"), rapid.IntRange(1, 4).Draw(t, "workers")
		const epochs = 3
		r := newTrial(t, total, workers, func(s State) Dealer {
			l, err := NewLedger(total, workers, false, s)
			if err != nil {
				t.Fatal(err)
			}
			return l
		})
		for range rapid.IntRange(0, 200).Draw(t, "events") {
			worker := rapid.IntRange(0, workers-1).Draw(t, "worker")
			switch w := &r.workers[worker]; rapid.IntRange(0, 19).Draw(t, "what") {
			case 0:
				r.lose(worker)
			case 1:
				r.save()
			case 2:
				r.crash()
			case 3, 4, 5, 6, 7, 8:
				if len(w.held) > 0 {
					r.done(worker, rapid.IntRange(0, len(w.held)-1).Draw(t, "lease"))
				}
			default:
				if w.ended && w.epoch+1 < epochs {
					w.epoch, w.ended = w.epoch+1, false
				}
				r.next(worker, rapid.Uint64Range(1, 9).Draw(t, "count"))
			}
		}
		for over := 0; over < workers; { // all come to the end
			over = 0
			for i := range r.workers {
				w := &r.workers[i]
				for len(w.held) > 0 {
					r.done(i, 0)
				}
				switch {
				case !w.ended:
					r.next(i, 5)
				case w.epoch+1 < epochs:
					w.epoch, w.ended = w.epoch+1, false
				default:
					over++
				}
			}
		}
		r.once(epochs)
	})
}

// synchronous drives workers that make each step together, some of them with batches fetched ahead.
func synchronous(t *rapid.T, total uint64, workers int, count func(worker int) uint64, restore func(State) Dealer) {
	const epochs = 3
	r := newTrial(t, total, workers, restore)
	ahead := make([][]Lease, workers)
	for r.workers[0].epoch < epochs {
		for i := range ahead { // in any order, and further than the step
			i = (i + rapid.IntRange(0, workers-1).Draw(t, "first")) % workers
			for n := rapid.IntRange(0, 2).Draw(t, "ahead"); n > 0 && !r.workers[i].ended; n-- {
				ahead[i] = append(ahead[i], r.next(i, count(i)))
			}
		}
		var step []Lease
		for i := range ahead {
			if len(ahead[i]) == 0 {
				ahead[i] = append(ahead[i], r.next(i, count(i)))
			}
			step = append(step, ahead[i][0])
			ahead[i] = ahead[i][1:]
		}
		rows := uint64(0)
		for i, l := range step {
			if l.End != step[0].End {
				t.Fatalf("worker %d ends an epoch that worker 0 does not: %v", i, step)
			}
			rows += l.Rows()
		}
		if step[0].End {
			for i := range r.workers {
				r.workers[i].epoch, r.workers[i].ended = r.workers[i].epoch+1, false
			}
			continue
		}
		if rows == 0 {
			t.Fatalf("a step without a row: %v", step)
		}
		switch rapid.IntRange(0, 9).Draw(t, "then") {
		case 0:
			r.crash()
			clear(ahead)
			continue
		}
		for i := range r.workers {
			if len(r.workers[i].held) > 0 && r.workers[i].held[0].Seq == step[i].Seq {
				r.done(i, 0)
			} else if err := r.dealer.Done(i, step[i].Seq); err != nil {
				t.Fatal(err)
			}
		}
		if rapid.IntRange(0, 4).Draw(t, "save") == 0 {
			r.save()
		}
	}
	r.once(epochs)
}

func TestSynchronousWorkersEndEpochsInTheSameStep(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		total, workers := rapid.Uint64Range(1, 40).Draw(t, "rows"), rapid.IntRange(1, 4).Draw(t, "workers")
		sizes := rapid.SliceOfN(rapid.Uint64Range(1, 5), workers, workers).Draw(t, "sizes")
		synchronous(t, total, workers, func(i int) uint64 { return sizes[i] }, func(s State) Dealer {
			l, err := NewLedger(total, workers, true, s)
			if err != nil {
				t.Fatal(err)
			}
			return l
		})
	})
}

// Workers that have all begun again number their steps from 1: none may make steps without rows up to an earlier number.
func TestSynchronousWorkersThatAllBeginAgainMakeNoEmptySteps(t *testing.T) {
	l, err := NewLedger(12, 2, true, State{})
	if err != nil {
		t.Fatal(err)
	}
	for seq := uint64(1); seq <= 3; seq++ {
		for w := range 2 {
			if _, err := l.Next(w, seq, 0, 2); err != nil {
				t.Fatal(err)
			}
		}
	}
	for w := range 2 {
		for seq := uint64(1); seq <= 2; seq++ {
			if err := l.Done(w, seq); err != nil {
				t.Fatal(err)
			}
		}
	}
	l.Lose(0)
	l.Lose(1)
	for seq := uint64(1); seq <= 2; seq++ {
		for w := range 2 {
			lease, err := l.Next(w, seq, 0, 2)
			if err != nil || (lease.Rows() == 2) != (seq == 1) || lease.End != (seq == 2) {
				t.Errorf("batch %d of worker %d: %+v (%v), want 2 rows and then the end", seq, w, lease, err)
			}
		}
	}
}

func TestFixedDivisionsApplyEachRowOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		total, workers := rapid.Uint64Range(1, 40).Draw(t, "rows"), rapid.IntRange(1, 4).Draw(t, "workers")
		sizes := rapid.SliceOfN(rapid.Uint64Range(1, 5), workers, workers).Draw(t, "sizes")
		synchronous(t, total, workers, func(int) uint64 { return 1 }, func(s State) Dealer {
			f, err := NewFixed(total, sizes, false, s)
			if err != nil {
				t.Fatal(err)
			}
			return f
		})
	})
}

func TestShardsGoOnWithoutEnd(t *testing.T) {
	f, err := NewFixed(10, []uint64{2, 3}, true, State{})
	if err != nil {
		t.Fatal(err)
	}
	if a, b := f.Batch(0, 1, 0), f.Batch(3, 1, 1); a != (Range{0, 2, 4}) || b != (Range{3, 21, 24}) {
		t.Error(a, b)
	}
}

func TestDealersRefuseWhatIsOutOfOrder(t *testing.T) {
	l, _ := NewLedger(100, 2, false, State{})
	f, _ := NewFixed(100, []uint64{4, 4}, false, State{})
	for _, d := range []Dealer{l, f} {
		for range 3 {
			if _, err := d.Next(0, 1, 0, 4); err != nil {
				t.Fatal(err)
			}
		}
		for _, c := range []struct {
			call func() error
			want error
		}{
			{func() error { _, err := d.Next(0, 3, 0, 4); return err }, ErrSequence},
			{func() error { _, err := d.Next(0, 0, 0, 4); return err }, ErrSequence},
			{func() error { _, err := d.Next(1, 1, 1, 4); return err }, ErrEpoch},
			{func() error { return d.Done(0, 2) }, ErrNotHeld},
			{func() error { return d.Done(1, 1) }, ErrNotHeld},
			{func() error { return d.Done(1, 0) }, ErrNotHeld},
			{func() error { d.Lose(0); return d.Done(0, 1) }, ErrNotHeld},
		} {
			if err := c.call(); !errors.Is(err, c.want) {
				t.Errorf("%T: %v, not %v", d, err, c.want)
			}
		}
	}
	if _, err := l.Next(1, 1, 0, 0); err == nil {
		t.Error("a batch of 0 rows")
	}
	l, _ = NewLedger(1e6, 1, false, State{})
	for seq := uint64(1); seq <= MaxLeases; seq++ {
		if _, err := l.Next(0, seq, 0, 1); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := l.Next(0, MaxLeases+1, 0, 1); !errors.Is(err, ErrSequence) {
		t.Errorf("leases without bound: %v", err)
	}
}

// A state may have far more ranges than a lease.
func TestManyRangesAreDealtInSmallLeases(t *testing.T) {
	const ranges = 100 * maxRanges
	s := State{Cursor: 2 * ranges}
	for i := range uint64(ranges) {
		s.Returned = append(s.Returned, Range{0, 2 * i, 2*i + 1})
	}
	l, err := NewLedger(1e6, 1, true, s)
	if err != nil {
		t.Fatal(err)
	}
	var got []Range
	for seq := uint64(1); len(got) < ranges; seq++ {
		x, err := l.Next(0, seq, 0, 1e5)
		if err != nil || len(x.Ranges) != maxRanges {
			t.Fatalf("%d ranges (%v), not %d", len(x.Ranges), err, maxRanges)
		}
		got = append(got, x.Ranges...)
	}
	if !slices.Equal(got, s.Returned) {
		t.Errorf("%v, not %v", got, s.Returned)
	}
	for range 2 {
		if now, err := l.State(); err != nil || !slices.Equal(now.Returned, s.Returned) {
			t.Errorf("the state has %d ranges (%v), not %d", len(now.Returned), err, ranges)
		}
		l.Lose(0)
	}
}

func TestAWorkerThatComesAfterTheEndOfAnEpochBeginsTheNext(t *testing.T) {
	ledger, err := NewLedger(10, 2, false, State{Epoch: 3, Cursor: 8})
	fixed, fixedErr := NewFixed(10, []uint64{2, 3}, false, State{Epoch: 3, Cursor: 1})
	if err != nil || fixedErr != nil {
		t.Fatal(err, fixedErr)
	}
	for name, d := range map[string]Dealer{"ledger": ledger, "fixed": fixed} {
		for worker := range 2 {
			if _, err := d.Next(worker, 1, 3, 1); err != nil {
				t.Error(name, err)
			}
		}
		for worker := range 2 {
			if err := d.Done(worker, 1); err != nil {
				t.Error(name, err)
			}
			if worker == 1 {
				d.Lose(worker)
			}
		}
		if e := d.Epoch(1); e != 4 {
			t.Errorf("%s: it begins epoch %d", name, e)
		}
		if l, err := d.Next(1, 1, 4, 1); err != nil || l.Rows() == 0 {
			t.Errorf("%s: its first batch is %+v: %v", name, l, err)
		}
	}
}

func TestStatesThatCannotBeAreRefused(t *testing.T) {
	for _, s := range []State{
		{Cursor: 11}, {Returned: []Range{{1, 0, 2}}},
		{Cursor: 5, Returned: []Range{{0, 4, 6}}}, {Cursor: 5, Returned: []Range{{0, 3, 3}}},
		{Cursor: 9, Returned: []Range{{0, 2, 4}, {0, 3, 5}}}, {Epoch: 2, Cursor: 9, Returned: []Range{{1, 2, 4}, {0, 5, 6}}},
		{Epoch: 2, Returned: []Range{{1, 2, 11}}}, {Epoch: 1 << 60},
	} {
		if _, err := NewLedger(10, 1, false, s); err == nil {
			t.Errorf("a ledger goes on from %+v", s)
		}
	}
	if _, err := NewFixed(10, []uint64{2, 3}, false, State{Cursor: 3}); err == nil {
		t.Error("step 3 of 2")
	}
	if _, err := NewFixed(10, []uint64{2, 3}, true, State{Epoch: 1 << 60}); err == nil {
		t.Error("positions beyond 2^64")
	}
	f, _ := NewFixed(10, []uint64{2, 3}, false, State{})
	f.Next(0, 1, 0, 0)
	f.Done(0, 1)
	if _, err := f.State(); err == nil {
		t.Error("a state between steps")
	}
}
