package aggregate

import (
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/rackweave/rackweave/aggregate/reduce"
	"github.com/rackweave/rackweave/chunk"
)

// countStep is how many chunks a snapshot looks at in one visit to a lane, so that other jobs' chunks are not kept waiting.
const countStep = 1 << 16

// Snapshot reads and writes a job's parameters and optimizer state, between steps: from its making on no worker may push,
// broadcast or commit, or every call fails with [ErrNotQuiet]. One goroutine uses it.
//
// In a job over several racks each rack reads and writes what it has: all parameters, and the optimizer state of the chunks that it
// owns. Only an owner's parameters are the masters. Racks that train on their own each have all of their own. An aggregator that
// has part of a job reads and writes its own chunks.
type Snapshot struct {
	job   *Job
	plan  *chunk.Plan
	marks []Mark // by lane; none: others may be at work
}

// Mark tells whether a lane has worked since.
type Mark struct {
	Finished uint64
	Epoch    uint8 // of the last commit
}

// Piece is one array of one chunk: array 0 is the parameters, then comes each state of the optimizer. Where racks train on their
// own these come for one rack after the other, then the parameters of the last meeting, and the outer optimizer's parameters and
// states. A caller bounds how much it moves at once: all pieces of a call that are in one lane are copied in one visit.
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
	marks := make([]Mark, len(j.shares))
	for i, sh := range j.shares {
		err := j.lanes[i].borrow(ctx, sh, func() (err error) { marks[i], err = s.look(sh); return err })
		if err != nil {
			return nil, err
		}
	}
	s.marks = marks
	return s, nil
}

// Reopen goes on with a snapshot by its marks; without any it is as [Job.Peek]'s.
func (j *Job) Reopen(plan *chunk.Plan, marks []Mark) (*Snapshot, error) {
	s, err := j.Peek(plan)
	if err == nil && len(marks) != 0 && len(marks) != len(j.shares) {
		err = fmt.Errorf("job %q: a snapshot of %d lanes, the job has %d", j.name, len(marks), len(j.shares))
	}
	if err == nil {
		s.marks = marks
	}
	return s, err
}

// Peek starts a snapshot that is only read, for a worker that has nothing in flight: without it no step can end, so what it
// reads holds still although other workers have begun the next one.
func (j *Job) Peek(plan *chunk.Plan) (*Snapshot, error) {
	if st := &j.shares[0].store; st.arrays(true) == 0 {
		return nil, fmt.Errorf("job %q: %w: mode %v keeps no parameters", j.name, ErrNoSnapshot, st.mode)
	}
	if j.shares[0].quorum != nil {
		return nil, fmt.Errorf("job %q: %w: with a quorum racks are at different meetings: leave the quorum out, or pull and save parameters in a worker",
			j.name, ErrNoSnapshot)
	}
	return &Snapshot{job: j, plan: plan}, nil
}

// Marks are what [Job.Reopen] takes.
func (s *Snapshot) Marks() []Mark { return s.marks }

// Source is the rack that a piece is read from, or the aggregator, where a job has parts.
func (s *Snapshot) Source(p Piece) int {
	if s.job.part.Several() {
		return s.plan.Chunk(p.Chunk).Lane / len(s.job.lanes)
	}
	at, _ := s.home(p.Chunk)
	rack, _ := s.locate(&s.job.shares[at.lane].store.chunks[at.index], p.Array)
	return rack
}

// Keeps reports whether a rack of several keeps a piece: if not, writing it there does nothing.
func (s *Snapshot) Keeps(rack int, p Piece) bool {
	at, _ := s.home(p.Chunk)
	return s.keeps(rack, &s.job.shares[at.lane].store.chunks[at.index], p.Array)
}

func (s *Snapshot) keeps(rack int, c *storedChunk, array int) bool {
	from, at := s.locate(c, array)
	shared := 0 // the array that all racks have alike
	if s.job.shares[0].store.outer != nil {
		shared = s.inner()
	}
	above := s.job.above
	return rack == from || at == shared || above != nil && above.Buddies && rack == above.Buddy(from)
}

// locate returns the rack that one of a chunk's arrays is read from, and which of the chunk's arrays it is there.
func (s *Snapshot) locate(c *storedChunk, array int) (rack, at int) {
	if s.job.shares[0].store.outer == nil {
		return int(c.owner), array
	}
	n := s.inner()
	if own := s.job.above.Racks * n; array >= own {
		return int(c.owner), n + array - own
	}
	return array / n, array % n
}

// inner is how many arrays a rack's own training has of each chunk.
func (s *Snapshot) inner() int { return 1 + s.job.shares[0].store.states }

// home is a chunk's place in the plan; it reports whether that is here.
func (s *Snapshot) home(id int) (at place, here bool) {
	c := s.plan.Chunk(id)
	at = place{c.Lane - s.job.firstLane, uint32(c.LaneIndex)}
	return at, at.lane >= 0 && at.lane < len(s.job.lanes)
}

// Arrays is how many arrays each chunk has, in all racks together.
func (s *Snapshot) Arrays() int {
	if o := s.job.shares[0].store.outer; o != nil {
		return s.job.above.Racks*s.inner() + o.arrays(true)
	}
	return s.inner()
}

// look refuses a lane in which something is under way.
func (s *Snapshot) look(sh *share) (Mark, error) {
	if sh.machine.State() != reduce.Running {
		return Mark{}, ErrClosed
	}
	if !sh.machine.Quiet() {
		return Mark{}, s.busy(meetFirst)
	}
	return Mark{sh.machine.Finished(), sh.machine.CommitEpoch()}, nil
}

const meetFirst = "let every worker finish and meet at a barrier before and after"

func (s *Snapshot) busy(why string) error {
	return fmt.Errorf("job %q: %w: %s", s.job.name, ErrNotQuiet, why)
}

// visit runs f if nothing has happened in a lane, which leaves the job alone meanwhile.
func (s *Snapshot) visit(ctx context.Context, lane int, f func() error) error {
	sh := s.job.shares[lane]
	return s.job.lanes[lane].borrow(ctx, sh, func() error {
		sh.adopt()
		if len(s.marks) == 0 {
			if sh.machine.State() != reduce.Running {
				return ErrClosed
			}
			return f()
		}
		switch mark, err := s.look(sh); {
		case err != nil:
			return err
		case mark != s.marks[lane]:
			return s.busy(meetFirst)
		}
		return f()
	})
}

// Read copies pieces that this rack is the source of out of the job, and leaves others as they are.
func (s *Snapshot) Read(ctx context.Context, pieces []Piece) error { return s.move(ctx, pieces, false) }

// Write copies pieces that this rack keeps into the job.
func (s *Snapshot) Write(ctx context.Context, pieces []Piece) error {
	s.job.replaced.Store(true)
	return s.move(ctx, pieces, true)
}

func (s *Snapshot) move(ctx context.Context, pieces []Piece, write bool) error {
	own := 0
	if s.job.above != nil {
		own = s.job.above.Rack
	}
	of := make([][]int, len(s.job.shares)) // the pieces to move in each lane
	places := make([]place, len(pieces))
	for i := range pieces {
		home, here := s.home(pieces[i].Chunk)
		if !here {
			continue
		}
		c := &s.job.shares[home.lane].store.chunks[home.index]
		if from, _ := s.locate(c, pieces[i].Array); from == own || write && s.keeps(own, c, pieces[i].Array) {
			places[i] = s.job.moves.find(home)
			of[places[i].lane] = append(of[places[i].lane], i)
		}
	}
	for lane, mine := range of {
		if len(mine) == 0 {
			continue
		}
		sh := s.job.shares[lane]
		err := s.visit(ctx, lane, func() error {
			for _, i := range mine {
				p := &pieces[i]
				c := sh.chunk(places[i].index)
				switch {
				case c.dirty && len(s.marks) > 0:
					return s.busy("what was pushed is not committed")
				case c.stepped && len(s.marks) > 0:
					return s.busy("a gradient is to come to its meeting again")
				}
				_, at := s.locate(c, p.Array)
				values := sh.store.values(c, at)
				if write {
					copy(values, p.Data)
					if c.history != nil {
						c.history.undo = false
					}
				} else {
					copy(p.Data, values)
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

// NoUpdates stands for a tensor's updates where the rack runs the optimizer on no chunk of it.
const NoUpdates = math.MaxUint32

// Updates returns how many optimizer steps each tensor has had in this rack, by its number in the plan, or [NoUpdates].
func (s *Snapshot) Updates(ctx context.Context) ([]uint32, error) {
	out := slices.Repeat([]uint32{NoUpdates}, s.plan.NumTensors())
	err := s.eachChunk(ctx, func(sh *share, c *storedChunk) error {
		if !sh.owns(c) && sh.store.outer == nil {
			return nil
		}
		t := sh.store.tensors[c.tensor].number
		if out[t] != NoUpdates && out[t] != c.updates {
			return s.busy(fmt.Sprintf("tensor %q is half updated", sh.store.tensors[c.tensor].name))
		}
		out[t] = c.updates
		return nil
	})
	return out, err
}

// SetUpdates sets how many optimizer steps each tensor has had. It is the end of replacing the state.
func (s *Snapshot) SetUpdates(ctx context.Context, updates []uint32) error {
	err := s.eachChunk(ctx, func(sh *share, c *storedChunk) error {
		t := &sh.store.tensors[c.tensor]
		c.updates, t.scalarsFor = updates[t.number], 0
		if c.history != nil {
			*c.history = history{changes: 1}
		}
		return nil
	})
	if err == nil {
		s.job.replaced.Store(false)
	}
	return err
}

// WholeStep returns how many optimizer steps all chunks have had at least whose state this rack keeps.
func (j *Job) WholeStep(ctx context.Context) (least uint32, err error) {
	least = math.MaxUint32
	s := Snapshot{job: j}
	err = s.eachChunk(ctx, func(sh *share, c *storedChunk) error {
		if sh.owns(c) || sh.mirrored(c) {
			least = min(least, c.updates)
		}
		return nil
	})
	if least == math.MaxUint32 {
		least = 0 // it keeps none
	}
	return least, err
}

func (s *Snapshot) eachChunk(ctx context.Context, f func(*share, *storedChunk) error) error {
	for lane, sh := range s.job.shares {
		for from, n := 0, 1; from < n; from += countStep {
			err := s.visit(ctx, lane, func() error {
				n = len(sh.store.chunks) + len(sh.store.guests)
				for i := from; i < min(from+countStep, n); i++ {
					if c := sh.store.ordinal(uint32(i)); c != nil {
						if err := f(sh, c); err != nil {
							return err
						}
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
