package aggregate

import (
	"slices"
	"sync/atomic"

	"github.com/rackweave/rackweave/aggregate/reduce"
	"github.com/rackweave/rackweave/hierarchy"
)

// quorum is a lane's part in meetings that some racks may miss. Its chunks take the turns that the leader's words give this rack
// (hierarchy.Turns). A chunk that comes to a meeting is held until it has its turn. In a meeting without this rack the lane hands
// up zeros by itself, as soon as there is room: to the reducer that is a sum like others, which it may recall.
type quorum struct {
	turns    *hierarchy.Turns
	come     []atomic.Uint32 // by fragment, to how many meetings some chunk of this rack has come; all lanes'
	desk     *desk           // at the job's first lane; nil at others
	announce func(fragment int)
	chunks   []turning
	held     []reduce.Action // hand-ups of chunks that wait for their turn, oldest first
	waiting  []uint32        // chunks whose stand-ins wait for a buffer, those that other racks ask for first
	window   int             // slots of a worker
	sums     int             // of the rack's own that are above, stand-ins too
	changed  bool            // what is held may go on
	begun    bool            // a word has been heard
}

// turning is a chunk's part.
type turning struct {
	done     uint32 // turns that it has taken
	held     bool   // its workers' gradients are held
	standing bool   // its stand-in is on its way
	listed   bool   // its stand-in waits
	aside    bool   // it is given back to its workers without a meeting
}

// newQuorum makes a lane's part; d is the desk in the first lane, announce tells it that the rack has come.
func newQuorum(c *JobConfig, d *desk, come []atomic.Uint32, window int, announce func(fragment int)) *quorum {
	return &quorum{turns: hierarchy.NewTurns(c.Outer, c.Above.Rack, c.Above.Workers), come: come, window: window, desk: d,
		announce: announce}
}

// toDo reports whether something is to be done that is no message.
func (q *quorum) toDo() bool {
	return q.changed || len(q.waiting) > 0 || q.desk != nil && q.desk.toDo()
}

// quiet reports whether the rack can leave: no more meetings are held, and it has stood in wherever it had to.
func (q *quorum) quiet() bool {
	if !q.turns.Over() || len(q.waiting) > 0 || q.desk != nil && !q.desk.quiet() {
		return false
	}
	return !slices.ContainsFunc(q.chunks, func(c turning) bool { return c.standing })
}
