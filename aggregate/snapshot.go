package aggregate

import (
	"context"
	"fmt"

	"github.com/rackweave/rackweave/aggregate/reduce"
	"github.com/rackweave/rackweave/chunk"
)

// countStep is how many chunks a snapshot looks at in one visit to a lane, so that other jobs' chunks are not kept waiting.
const countStep = 1 << 16

// Snapshot reads and writes a job's parameters and optimizer state, between steps: from its making on no worker may push,
// broadcast or commit, or every call fails with [ErrNotQuiet]. One goroutine uses it.
type Snapshot struct {
	job   *Job
	plan  *chunk.Plan
	marks []quietMark // by lane; nil: others may be at work
}

// quietMark tells whether a lane has worked since.
type quietMark struct {
	set      bool
	finished uint64
	epoch    uint8 // of the last commit
}

// Piece is one array of one chunk: array 0 is the parameters, then comes each state of the optimizer. A caller bounds how much
// it moves at once: all pieces of a call that are in one lane are copied in one visit.
type Piece struct {
	Chunk int // number in the plan
	Array int
	Data  []float32 // of all the chunk's elements
}

// Snapshot starts one; plan is what AddTensors was last called with.
func (j *Job) Snapshot(ctx context.Context, plan *chunk.Plan) (*Snapshot, error) {
	s, err := j.Peek(plan)
	if err != nil {
		return nil, err
	}
	s.marks = make([]quietMark, len(j.shares))
	for i, sh := range j.shares {
		err := s.visit(ctx, i, func() error {
			s.marks[i] = quietMark{true, sh.machine.Finished(), sh.machine.CommitEpoch()}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return s, nil
}

// Peek starts a snapshot that is only read, for a worker that has nothing in flight: without it no step can end, so what it
// reads holds still although other workers have begun the next one.
func (j *Job) Peek(plan *chunk.Plan) (*Snapshot, error) {
	if st := &j.shares[0].store; st.arrays(true) == 0 {
		return nil, fmt.Errorf("job %q: mode %v keeps no parameters", j.name, st.mode)
	}
	if a := j.shares[0].above; a != nil {
		return nil, fmt.Errorf("job %q: its state is spread over %d racks, and an aggregator saves only what it has all of: pull and save parameters in a worker",
			j.name, a.cfg.Racks)
	}
	return &Snapshot{job: j, plan: plan}, nil
}

// Arrays is how many arrays each chunk has: the parameters and the optimizer's states.
func (s *Snapshot) Arrays() int { return 1 + s.job.shares[0].store.states }

// visit runs f if nothing is under way in a lane, which leaves the job alone meanwhile.
func (s *Snapshot) visit(ctx context.Context, lane int, f func() error) error {
	sh := s.job.shares[lane]
	return s.job.lanes[lane].borrow(ctx, sh, func() error {
		if sh.machine.State() != reduce.Running {
			return ErrClosed
		}
		if s.marks == nil {
			return f()
		}
		switch mark := s.marks[lane]; {
		case !sh.machine.Quiet(), mark.set && mark != quietMark{true, sh.machine.Finished(), sh.machine.CommitEpoch()}:
			return fmt.Errorf("job %q: %w: let every worker finish and meet at a barrier before and after", s.job.name, ErrNotQuiet)
		}
		return f()
	})
}

// Read copies pieces out of the job.
func (s *Snapshot) Read(ctx context.Context, pieces []Piece) error { return s.move(ctx, pieces, false) }

// Write copies pieces into the job.
func (s *Snapshot) Write(ctx context.Context, pieces []Piece) error { return s.move(ctx, pieces, true) }

func (s *Snapshot) move(ctx context.Context, pieces []Piece, write bool) error {
	for lane, sh := range s.job.shares {
		mine := false
		for i := range pieces {
			mine = mine || s.plan.Chunk(pieces[i].Chunk).Lane == lane
		}
		if !mine {
			continue
		}
		err := s.visit(ctx, lane, func() error {
			for i := range pieces {
				p := &pieces[i]
				at := s.plan.Chunk(p.Chunk)
				if at.Lane != lane {
					continue
				}
				c := &sh.store.chunks[at.LaneIndex]
				if c.dirty && s.marks != nil {
					return fmt.Errorf("job %q: %w: what was pushed is not committed", s.job.name, ErrNotQuiet)
				}
				inner := sh.store.values(c, p.Array)
				if write {
					copy(inner, p.Data)
				} else {
					copy(p.Data, inner)
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// Updates returns how many optimizer steps each tensor has had, by its number in the plan.
func (s *Snapshot) Updates(ctx context.Context) ([]uint32, error) {
	out := make([]uint32, s.plan.NumTensors())
	seen := make([]bool, len(out))
	err := s.eachChunk(ctx, func(sh *share, c *storedChunk) error {
		t := sh.store.tensors[c.tensor].number
		if seen[t] && out[t] != c.updates {
			return fmt.Errorf("job %q: %w: tensor %q is half updated", s.job.name, ErrNotQuiet, sh.store.tensors[c.tensor].name)
		}
		seen[t], out[t] = true, c.updates
		return nil
	})
	return out, err
}

// SetUpdates sets how many optimizer steps each tensor has had.
func (s *Snapshot) SetUpdates(ctx context.Context, updates []uint32) error {
	return s.eachChunk(ctx, func(sh *share, c *storedChunk) error {
		t := &sh.store.tensors[c.tensor]
		c.updates, t.scalarsFor = updates[t.number], 0
		return nil
	})
}

func (s *Snapshot) eachChunk(ctx context.Context, f func(*share, *storedChunk) error) error {
	for lane, sh := range s.job.shares {
		n := len(s.plan.LaneChunks(lane))
		for from := 0; from < n; from += countStep {
			err := s.visit(ctx, lane, func() error {
				for i := from; i < min(from+countStep, n); i++ {
					if err := f(sh, &sh.store.chunks[i]); err != nil {
						return err
					}
				}
				return nil
			})
			if err != nil {
				return err
			}
		}
	}
	return nil
}
