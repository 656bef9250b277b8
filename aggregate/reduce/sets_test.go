package reduce

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/rackweave/rackweave/chunk"
)

// setOracle knows the sets in order, and every step's gradients. It recomputes the expected additions.
type setOracle struct {
	sets   [][]stepOf             // by number, in order
	pushed map[stepOf][]uint32    // chunks
	added  map[[2]uint64][]stepOf // by set and chunk, in order
	chunks int
}

type stepOf struct{ worker, step int }

// check compares all additions with the sets.
func (o *setOracle) check() error {
	for n, set := range o.sets {
		for c := range o.chunks {
			var want []stepOf
			for _, s := range set {
				if slices.Contains(o.pushed[s], uint32(c)) {
					want = append(want, s)
				}
			}
			if got := o.added[[2]uint64{uint64(n), uint64(c)}]; !slices.Equal(got, want) {
				return fmt.Errorf("set %d of %v, chunk %d: %v were added, want %v", n, set, c, got, want)
			}
		}
	}
	return nil
}

// stepper is a worker that takes steps: it pushes some chunks in an order of its own, ends the step, and waits.
type stepper struct {
	step    int
	todo    []uint32
	flying  int
	pushing bool // its step has begun
	decided bool
	ended   bool
	left    int // steps left to take
}

// In any order of pushes and decisions, every set has the whole gradients that were chosen, in the order of the choice, and every
// step ends.
func TestSetsHaveWholeStepsInOrderAndNothingLocksUp(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg := Config{Workers: rapid.IntRange(1, 4).Draw(t, "workers"), Window: rapid.IntRange(2, 5).Draw(t, "window"), Mode: Stream,
			Standing: Undecided, Results: 2}
		cfg.Sends = cfg.Window + SendMargin + 1
		chunks := rapid.IntRange(1, 6).Draw(t, "chunks")
		r := newRig(cfg, chunks, 1, cfg.Window, false)
		o := &setOracle{sets: [][]stepOf{nil}, pushed: map[stepOf][]uint32{}, added: map[[2]uint64][]stepOf{}, chunks: chunks}
		all := make([]stepper, cfg.Workers)
		for i := range all {
			all[i].left = rapid.IntRange(0, 4).Draw(t, "steps")
		}
		made, running := 0, false // sets whose updates are made
		settle := func() {
			for _, a := range slices.Clone(r.Actions) {
				switch a.Kind {
				case Add:
					w := &all[a.Worker]
					at := [2]uint64{uint64(made), uint64(a.Index)}
					o.added[at] = append(o.added[at], stepOf{int(a.Worker), w.step})
					w.flying--
				case Drop:
					all[a.Worker].flying--
				case EndStep:
					all[a.Worker].ended = true
				case Updated:
					made, running = made+1, false
				case Fail:
					t.Fatal(a.Err)
				}
			}
			r.settle()
			if err := r.Audit(); err != nil {
				t.Fatal(err)
			}
		}
		begin := func(rank int) bool {
			w := &all[rank]
			if w.pushing || w.left == 0 {
				return false
			}
			w.pushing, w.left = true, w.left-1
			for c := range uint32(chunks) {
				if rapid.IntRange(0, 4).Draw(t, "pushed") > 0 {
					w.todo = append(w.todo, c)
				}
			}
			w.todo = rapid.Permutation(w.todo).Draw(t, "order")
			o.pushed[stepOf{rank, w.step}] = slices.Clone(w.todo)
			return true
		}
		push := func(rank int) bool {
			w := &all[rank]
			if !w.pushing || len(w.todo) == 0 || w.flying == cfg.Window-1 {
				return false
			}
			msg := r.message(chunk.OpPush, rank, w.todo[0], nil)
			w.todo, w.flying = w.todo[1:], w.flying+1
			msg.Where.Payload = payloadOf(rank, msg.Index, r.at[rank].slots[0])
			r.at[rank].slots = r.at[rank].slots[1:]
			r.Receive(r.now, rank, &msg)
			settle()
			return true
		}
		end := func(rank int) bool {
			w := &all[rank]
			if !w.pushing || w.ended || len(w.todo) > 0 || w.flying > 0 || r.workers[rank].ending {
				return false
			}
			msg := r.message(chunk.OpCommit, rank, 0, nil)
			r.at[rank].slots = r.at[rank].slots[1:]
			r.Receive(r.now, rank, &msg)
			settle()
			return true
		}
		decide := func(rank int) bool {
			w := &all[rank]
			if !w.pushing || w.decided {
				return false
			}
			w.decided = true
			if rapid.IntRange(0, 3).Draw(t, "left out") == 0 {
				r.LeaveOut(r.now, rank)
			} else {
				n := len(o.sets) - 1
				o.sets[n] = append(o.sets[n], stepOf{rank, w.step})
				r.Admit(r.now, rank, uint64(n))
			}
			settle()
			return true
		}
		closeSet := func() bool {
			if len(o.sets[len(o.sets)-1]) == 0 {
				return false
			}
			o.sets = append(o.sets, nil)
			return true
		}
		update := func() bool {
			if running || made >= len(o.sets)-1 {
				return false
			}
			for _, s := range o.sets[made] {
				if w := &all[s.worker]; w.step == s.step && !w.ended {
					return false
				}
			}
			running = true
			r.UpdateSet(r.now)
			settle()
			return true
		}
		advance := func() (did bool) {
			for r.Advance(r.now) {
				settle()
				did = true
			}
			if r.AdvanceCommit(r.now, true) {
				settle()
				did = true
			}
			return did
		}
		release := func(rank int) bool {
			w := &all[rank]
			if !w.ended || !w.decided {
				return false
			}
			w.step++
			w.pushing, w.decided, w.ended = false, false, false
			r.Release(r.now, rank, Undecided)
			settle()
			return true
		}
		act := func(what, rank int) bool {
			return [...]func(int) bool{begin, push, push, push, end, decide, release, func(int) bool { return advance() },
				func(int) bool { return update() }, func(int) bool { return closeSet() }}[what](rank)
		}
		for range rapid.IntRange(0, 120).Draw(t, "events") {
			act(rapid.IntRange(0, 9).Draw(t, "event"), rapid.IntRange(0, cfg.Workers-1).Draw(t, "worker"))
		}
		for again := true; again; {
			again = false
			for what := range 10 {
				for rank := range all {
					again = act(what, rank) || again
				}
			}
		}
		for rank := range all {
			if w := &all[rank]; w.left > 0 || w.pushing || w.flying > 0 {
				t.Fatalf("worker %d is stuck: %+v", rank, *w)
			}
		}
		if made != len(o.sets)-1 || r.Open() > 0 {
			t.Fatalf("%d of %d updates were made, %d chunks wait", made, len(o.sets)-1, r.Open())
		}
		if err := o.check(); err != nil {
			t.Fatal(err)
		}
	})
}

// A step in a set allocates nothing, from its announcement to the answer to its end.
func TestSetsAllocateNothing(t *testing.T) {
	r := newRig(Config{Workers: 2, Window: 8, Sends: 80, Results: 4, Mode: Stream, Standing: Undecided}, 4, 1, 8, true)
	record, set, epoch := chunk.TensorRecord{}, uint64(0), uint8(0)
	arrived := func() {
		for i := range r.Actions {
			switch a := &r.Actions[i]; a.Kind {
			case Add, Acknowledge:
				r.Delivered(int(a.Worker), 1)
			case AnswerStep:
				r.Delivered(int(a.Worker), 1)
				r.Freed()
			}
		}
	}
	allocs := testing.AllocsPerRun(200, func() {
		epoch = epochAfter(epoch)
		for rank := range 2 {
			r.Receive(0, rank, &Message{Op: chunk.OpTensor, Index: chunk.IndexMask, Record: &record})
			arrived()
			for c := range uint32(4) {
				r.Receive(0, rank, &Message{Op: chunk.OpPush, Epoch: epoch, Index: c, Bytes: chunkBytes})
				arrived()
			}
		}
		for rank := 1; rank >= 0; rank-- {
			r.Admit(0, rank, set)
			arrived()
			r.Receive(0, rank, &Message{Op: chunk.OpCommit, Epoch: epoch, Record: &record})
			arrived()
		}
		r.UpdateSet(0)
		for r.AdvanceCommit(0, true) {
			arrived()
		}
		set++
		for rank := range 2 {
			r.Release(0, rank, Undecided)
			arrived()
		}
	})
	if allocs != 0 || r.State != Running || r.sets.current != set {
		t.Errorf("%v allocations, state %v, %d of %d sets", allocs, r.State, r.sets.current, set)
	}
}

// A broadcast fails the job instead of waiting for the part of a worker that is lost.
func TestNoBroadcastWaitsForALostWorker(t *testing.T) {
	for name, before := range map[string]bool{"begun before the loss": true, "begun after the loss": false} {
		t.Run(name, func(t *testing.T) {
			cfg := Config{Workers: 3, Window: 2, Mode: Stream, Standing: Alone, Results: 2, Sends: 3 + SendMargin}
			r := newRig(cfg, 1, 1, cfg.Window, false)
			if before {
				r.send(1, r.message(chunk.OpBroadcast, 1, 0, nil))
			}
			r.Lose(r.now, 2)
			r.settle()
			if !before {
				r.send(1, r.message(chunk.OpBroadcast, 1, 0, nil))
			}
			if !errors.Is(r.failed, ErrWorkerLost) {
				t.Errorf("the job has failed with %v, want %v", r.failed, ErrWorkerLost)
			}
		})
	}
}
