package aggregate

import (
	"fmt"
	"slices"

	"github.com/rackweave/rackweave/chunk"
)

// fixed reports why no chunk of the job can move; nil: they can.
func (j *Job) fixed() error {
	switch {
	case j.pace != nil:
		return fmt.Errorf("job %q: mode %v keeps chunks where they are: only the others wait for every worker", j.name, Stream)
	case j.part.Several():
		return fmt.Errorf("job %q: it is spread over several aggregators, each with lanes of its own: only a job of one moves chunks",
			j.name)
	case j.above != nil:
		return fmt.Errorf("job %q: its racks agree on lanes: only a job of one rack moves chunks", j.name)
	}
	return nil
}

// movable reports why a lane's chunks cannot move to another; nil: they can.
func (j *Job) movable(from, to int) error {
	n := len(j.lanes)
	switch {
	case from < 0 || to < 0 || from >= n || to >= min(n, chunk.MoveLanes) || from == to:
		return fmt.Errorf("job %q: move chunks from lane %d to lane %d: use two of the %d lanes, the second below %d", j.name, from, to,
			n, chunk.MoveLanes)
	case j.lanes[from].cfg.Node != j.lanes[to].cfg.Node:
		return fmt.Errorf("job %q: move chunks from lane %d to lane %d: their memory is on nodes %d and %d: use lanes of one node", j.name,
			from, to, j.lanes[from].cfg.Node, j.lanes[to].cfg.Node)
	}
	return j.fixed()
}

// traffic returns the bytes that the job has received and sent, by lane, as lanes last published it.
func (j *Job) traffic() []uint64 {
	out := make([]uint64, len(j.lanes))
	for i, l := range j.lanes {
		l.mu.Lock()
		for _, c := range l.publishedByRank[j.shares[i]] {
			out[i] += c.RecvBytes + c.SentBytes
		}
		l.mu.Unlock()
	}
	return out
}

// Move has up to n chunks of a lane move to another, each when it is answered next. It returns how many are to: of many, ask again
// for the rest.
func (j *Job) Move(from, to, n int) (int, error) {
	if err := j.movable(from, to); err != nil {
		return 0, err
	}
	indexes := j.moves.choose(from, to, n)
	for batch := range slices.Chunk(indexes, moveBatch) {
		s := j.shares[from]
		j.lanes[from].later(s, func() {
			for _, index := range batch {
				s.machine.Move(index, to)
			}
		})
	}
	return len(indexes), nil
}

// moveBatch bounds the chunks that one visit to a lane marks.
const moveBatch = 256
