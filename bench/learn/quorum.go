package learn

import (
	"context"
	"math/rand/v2"
	"slices"

	"github.com/rackweave/rackweave/hierarchy"
	"github.com/rackweave/rackweave/pqueue"
)

// quorumRack is a rack that may miss meetings.
type quorumRack struct {
	rack
	turns *hierarchy.Turns
	done  []uint32 // by fragment, turns taken
	step  uint32
	waits int // the fragment whose meeting it waits for; -1: none
}

// quorumRun is a training of racks that may miss meetings. Its leader and its racks' turns are those of a real one.
type quorumRun struct {
	*training
	outer  hierarchy.Outer
	leader *hierarchy.Leader
	racks  []quorumRack
	back   []int64 // by fragment, when its last result is there
	looks  int     // updates when the loss was measured
	steps  *pqueue.Queue[arrival]
}

// runQuorum trains racks of which some may miss meetings, with as many samples as others take. What crosses the core holds up
// those that meet.
func runQuorum(ctx context.Context, t *training) (Outcome, error) {
	n := len(t.Cluster.Steps)
	q := &quorumRun{training: t, outer: t.Outer, leader: hierarchy.NewLeader(t.Outer, n), racks: make([]quorumRack, n),
		back: make([]int64, max(t.Outer.Fragments, 1)), steps: pqueue.New(arrival.before)}
	workers := make([]int, n)
	for r := range workers {
		workers[r] = 1
	}
	for r := range q.racks {
		own := &q.racks[r]
		own.rack = rack{chance: rand.New(rand.NewPCG(t.Seed, uint64(r)+3)), params: new(network)}
		*own.params = *t.params
		own.turns, own.done, own.waits = hierarchy.NewTurns(t.Outer, r, workers), make([]uint32, len(q.back)), -1
		q.begin(r)
	}
	var g network
	for done := false; !done && t.samples < t.Epochs*len(t.train); {
		if ctx.Err() != nil {
			return Outcome{}, context.Cause(ctx)
		}
		a := q.steps.Pop()
		if at, ok := q.leader.Deadline(); ok && at < a.at {
			q.steps.Push(a)
			t.now = max(t.now, at)
			q.leader.Tick(at)
			q.hear()
			continue
		}
		t.now = max(t.now, a.at)
		q.take(a.w, &g)
		if int(t.out.Updates) > q.looks {
			q.looks = int(t.out.Updates)
			now := t.now
			t.now = slices.Max(q.back) // the result is there
			if done = t.Target > 0 && t.look() && t.Stop; !done {
				t.now = now
			}
		}
	}
	for r := range q.racks {
		t.out.Shares = append(t.out.Shares, float64(q.racks[r].step)/float64(t.out.Pushes))
	}
	t.out.Time = t.time()
	t.out.Loss, t.out.Accuracy = t.params.test(t.test)
	return t.out, nil
}

// begin has a rack begin its next step.
func (q *quorumRun) begin(r int) {
	own := &q.racks[r]
	q.steps.Push(arrival{own.at + q.Cluster.stepTime(r, own.chance), r, 0})
}

// take ends a rack's step.
func (q *quorumRun) take(r int, g *network) {
	own := &q.racks[r]
	own.batch = q.draw(own.batch[:0])
	own.params.gradient(g, own.batch)
	for i := range g {
		own.params[i] -= float32(q.LR) * g[i]
	}
	own.step, own.at = own.step+1, q.now
	q.samples += len(own.batch)
	q.out.Pushes++
	for f := range q.back {
		if q.outer.Due(f, own.step) {
			own.waits = f
			q.leader.Come(q.now, r, f)
			q.hear()
			return
		}
	}
	q.begin(r)
}

// hear does what the leader has said.
func (q *quorumRun) hear() {
	for _, w := range q.leader.Words() {
		var met []int
		for r := range q.racks {
			own := &q.racks[r]
			if err := own.turns.Hear(w); err != nil {
				panic(err) // the leader says what can be
			}
			turn, ok := own.turns.Turn(w.Fragment, own.done[w.Fragment])
			if !ok {
				continue
			}
			own.done[w.Fragment]++
			own.turns.Taken(w.Fragment, own.done[w.Fragment], false)
			switch turn.Kind {
			case hierarchy.TakePart:
				met = append(met, r)
			case hierarchy.StandIn:
				q.out.Dropped++
			case hierarchy.CatchUp:
				q.goOn(r, w.Fragment)
			}
		}
		if w.Kind == hierarchy.Held {
			q.hold(w.Fragment, met)
		}
	}
}

// goOn gives a rack the last result of a fragment, when it is there.
func (q *quorumRun) goOn(r, fragment int) {
	own := &q.racks[r]
	q.each(fragment, func(i int) { own.params[i] = q.params[i] })
	own.at, own.waits = max(q.now, q.back[fragment]), -1
	q.begin(r)
}

// each calls f for every parameter of a fragment.
func (q *quorumRun) each(fragment int, f func(i int)) (n int) {
	for i := range q.params {
		if q.outer.Fragment(i/outerChunk) == fragment {
			f(i)
			n++
		}
	}
	return n
}

// hold holds a fragment's meeting. All racks weigh the same: they have a worker each, and none goes on alone.
func (q *quorumRun) hold(fragment int, racks []int) {
	n := q.each(fragment, func(i int) {
		var come float32
		for _, r := range racks {
			come += q.params[i] - q.racks[r].params[i]
		}
		q.stepOuter(q.outer, i, come/float32(len(racks)))
	})
	share := float64(n) / parameters
	q.out.Crossed += share
	q.out.Updates++
	q.back[fragment] = q.now + int64(share*q.Core*unit)
	for _, r := range racks {
		q.goOn(r, fragment)
	}
}
