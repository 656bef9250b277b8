package simrack

import "github.com/rackweave/rackweave/aggregate"

// These constants determine the number and frequency of moves.
const (
	mostMoved   = 6
	moveOneIn   = 24
	movesOneJob = 3 // jobs; one in so many has moves
)

// moving reports whether a job's chunks move between lanes, which its seed decides.
func (j *job) moving(seed uint64) bool {
	return j.Mode != aggregate.Stream && (seed+uint64(j.index))%movesOneJob != 0
}

// rebalance moves some chunks of some jobs to another lane.
func (r *run) rebalance() error {
	for _, j := range r.jobs {
		if r.Lanes < 2 || j.rack == nil || j.closed || j.failed != 0 || !j.moving(r.Seed) || r.moves.IntN(moveOneIn) != 0 {
			continue
		}
		from := r.moves.IntN(r.Lanes)
		to := (from + 1 + r.moves.IntN(r.Lanes-1)) % r.Lanes
		n, err := j.rack.Job.Move(from, to, 1+r.moves.IntN(mostMoved))
		if err != nil {
			return err
		}
		if n > 0 {
			r.trace("%v: %s: %d chunks move from lane %d to lane %d", r.now, j.Name, n, from, to)
		}
	}
	return nil
}
