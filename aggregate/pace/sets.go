package pace

import (
	"fmt"

	"github.com/rackweave/rackweave/aggregate/reduce"
	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/policy"
)

// Update is the update of a set of whole gradients. The zero value drops the sum of the set.
type Update struct {
	Size int     // number of gradients
	Rate float64 // factor of the learning rate
}

// Shard is the part of a job in one lane, as the job's gate knows it.
type Shard interface {
	// Admit puts a worker's step into a set, and LeaveOut into none.
	Admit(rank int, set uint64, weight float64)
	LeaveOut(rank int)
	// UpdateSet makes the update of the oldest set, all of whose gradients have arrived.
	UpdateSet(u Update)
	// Lose takes out a lost worker.
	Lose(rank int)
	// Release answers the commit with which a worker ended its step. next is the standing of its next step.
	Release(rank int, answer chunk.TensorRecord, next reduce.Standing)
}

// addend is a worker's step in a set.
type addend struct {
	rank  int
	step  uint64
	ended bool // in every lane
}

type set struct {
	addends []addend
	decided bool // the set is complete
	void    bool // a worker was lost in the set, so it has no update
	update  Update
	running bool
	lanes   int // number of lanes that have made the update
}

// sets holds a job's updates that are not made yet, oldest first. The last may be undecided. Lanes receive every addend in one
// order, and make the updates one after another.
type sets struct {
	lanes   int
	later   func(f func(s Shard)) // runs f on every lane, in one order
	open    []*set
	decided uint64 // since the job began
	made    uint64
}

// admit adds a worker's step, which may have ended, to the undecided set.
func (q *sets) admit(rank int, step uint64, weight float64, ended bool) {
	if n := len(q.open); n == 0 || q.open[n-1].decided {
		q.open = append(q.open, &set{})
	}
	s := q.open[len(q.open)-1]
	s.addends = append(s.addends, addend{rank, step, ended})
	number := q.decided
	q.later(func(s Shard) { s.Admit(rank, number, weight) })
}

// undecided returns the steps of the set that is not decided yet, if any.
func (q *sets) undecided() []addend {
	if n := len(q.open); n > 0 && !q.open[n-1].decided {
		return q.open[n-1].addends
	}
	return nil
}

// decide closes the undecided set, all of whose steps were admitted.
func (q *sets) decide(a *policy.Act) {
	s := q.open[len(q.open)-1]
	if s.decided || len(s.addends) != len(a.Parts) {
		panic(fmt.Sprintf("pace: a set of %d gradients was decided as one of %d", len(s.addends), len(a.Parts)))
	}
	s.decided, s.update = true, Update{Size: len(a.Parts), Rate: a.Rate}
	q.decided++
	q.run()
}

func (q *sets) leaveOut(rank int) {
	q.later(func(s Shard) { s.LeaveOut(rank) })
}

// ended records that all of a worker's step has arrived in every lane.
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

// lose drops the sets with a step that a lost worker has not ended, because lanes have added some of it. It returns their numbers.
func (q *sets) lose(rank int) (void []uint64) {
	for n, s := range q.open {
		for i := range s.addends {
			if a := &s.addends[i]; a.rank == rank && !a.ended {
				a.ended, s.void = true, true
				void = append(void, q.made+uint64(n))
			}
		}
	}
	q.run()
	return void
}

// run makes the lanes update the oldest set if all of its gradients have arrived.
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
	if q.open[0].void {
		u = Update{}
	}
	q.later(func(s Shard) { s.UpdateSet(u) })
}

// updated records that a lane has made the update under way, and reports whether all lanes have made it.
func (q *sets) updated() bool {
	if q.open[0].lanes++; q.open[0].lanes < q.lanes {
		return false
	}
	q.open = q.open[1:]
	q.made++
	q.run()
	return true
}
