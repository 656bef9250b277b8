package aggregate

import (
	"fmt"

	"github.com/rackweave/rackweave/aggregate/reduce"
	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/policy"
)

// setUpdate is the update of a set.
type setUpdate struct {
	size int     // gradients
	rate float64 // factor of the learning rate
}

// paced is a lane's share of a job, as the job's pace knows it.
type paced interface {
	admit(rank int, set uint64, weight float64) // the worker's step is in a set
	leaveOut(rank int)                          // it is in none
	updateSet(u setUpdate)                      // the oldest set is there
	letGo(rank int, answer chunk.TensorRecord, next reduce.Standing)
}

// addend is a worker's step in a set.
type addend struct {
	rank  int
	step  uint64
	ended bool // in every lane
}

// set is the gradients of one update.
type set struct {
	addends []addend
	decided bool // no other comes
	update  setUpdate
	running bool
	lanes   int // that have made the update
}

// sets are a job's updates that are not made yet, oldest first; the last may be undecided. Lanes hear of every addend in one order,
// and make the updates one after another.
type sets struct {
	lanes   int
	later   func(f func(s paced)) // on every lane, in one order
	open    []*set
	decided uint64 // since the job began
	made    uint64
}

// admit takes a worker's step, which may have ended, into the set that is not decided yet.
func (q *sets) admit(rank int, step uint64, weight float64, ended bool) {
	if n := len(q.open); n == 0 || q.open[n-1].decided {
		q.open = append(q.open, &set{})
	}
	s := q.open[len(q.open)-1]
	s.addends = append(s.addends, addend{rank, step, ended})
	number := q.decided
	q.later(func(s paced) { s.admit(rank, number, weight) })
}

// admitted is how many steps the set has that is not decided yet.
func (q *sets) admitted() int {
	if n := len(q.open); n > 0 && !q.open[n-1].decided {
		return len(q.open[n-1].addends)
	}
	return 0
}

// decide closes the set that is not decided yet, all of whose steps were admitted.
func (q *sets) decide(a *policy.Act) {
	s := q.open[len(q.open)-1]
	if s.decided || len(s.addends) != len(a.Parts) {
		panic(fmt.Sprintf("aggregate: a set of %d gradients was decided as one of %d", len(s.addends), len(a.Parts)))
	}
	s.decided, s.update = true, setUpdate{size: len(a.Parts), rate: a.Rate}
	q.decided++
	q.run()
}

func (q *sets) leaveOut(rank int) {
	q.later(func(s paced) { s.leaveOut(rank) })
}

// ended takes note that all of a worker's step has arrived in every lane.
func (q *sets) ended(rank int, step uint64) {
	for _, s := range q.open {
		for i := range s.addends {
			if a := &s.addends[i]; a.rank == rank && a.step == step {
				a.ended = true
			}
		}
	}
	q.run()
}

// run has the lanes make the oldest set's update if all of it is there.
func (q *sets) run() {
	if len(q.open) == 0 || !q.open[0].decided || q.open[0].running {
		return
	}
	for i := range q.open[0].addends {
		if !q.open[0].addends[i].ended {
			return
		}
	}
	q.open[0].running = true
	u := q.open[0].update
	q.later(func(s paced) { s.updateSet(u) })
}

// updated takes note that a lane has made the update under way, and reports whether all have.
func (q *sets) updated() bool {
	if q.open[0].lanes++; q.open[0].lanes < q.lanes {
		return false
	}
	q.open = q.open[1:]
	q.made++
	q.run()
	return true
}
