package aggregate

import (
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/rackweave/rackweave/aggregate/outer"
	"github.com/rackweave/rackweave/aggregate/reduce"
	"github.com/rackweave/rackweave/aggregate/shard"
	"github.com/rackweave/rackweave/aggregate/store"
	"github.com/rackweave/rackweave/chunk"
	diloco "github.com/rackweave/rackweave/hierarchy/outer"
)

// countStep is the number of chunks that a snapshot inspects in one visit to a lane, so that other jobs' chunks do not wait.
const countStep = 1 << 16

// Snapshot reads and writes a job's parameters and optimizer state between steps. While it is in use workers must not push,
// broadcast or commit, or every call fails with [ErrNotQuiet]. One goroutine uses it.
//
// In a job over several racks each rack reads and writes its own state: all parameters, and the optimizer state of the chunks that
// it owns. Only an owner's parameters are the masters. Racks that train apart each have all state. An aggregator that has part of a
// job reads and writes its own chunks.
type Snapshot struct {
	job   *Job
	plan  *chunk.Plan
	Marks []Mark // by lane, for [Job.Reopen]; if empty, other workers may push meanwhile
}

// Mark identifies a moment of a lane, to detect later work.
type Mark struct {
	Finished uint64
	Epoch    uint8 // of the last commit
}

// Piece is one array of one chunk. Array 0 is the parameters, followed by each state of the optimizer. Where racks train apart
// these arrays are repeated for each rack, followed by the parameters of the last round and the outer optimizer's parameters and
// states. A call copies all its pieces of one lane in one visit, so the caller bounds their size.
type Piece struct {
	Chunk int // number in the plan
	Array int
	Data  []float32 // of all the chunk's elements
}

// Snapshot starts a snapshot. plan is the plan that AddTensors received last.
func (j *Job) Snapshot(ctx context.Context, plan *chunk.Plan) (*Snapshot, error) {
	s, err := j.Reopen(plan, make([]Mark, len(j.shards)))
	if err != nil {
		return nil, err
	}
	for i, sh := range j.shards {
		err := sh.Flow.Borrow(ctx, func() (err error) { s.Marks[i], err = s.checkQuiet(sh); return err })
		if err != nil {
			return nil, err
		}
	}
	return s, nil
}

// Reopen continues a snapshot from its marks. Without marks the snapshot is for reading only, for a worker with nothing in flight:
// no step can end without that worker, so the state does not change although other workers have begun the next step.
func (j *Job) Reopen(plan *chunk.Plan, marks []Mark) (*Snapshot, error) {
	switch {
	case j.config.Mode == Aggregate:
		return nil, fmt.Errorf("job %q: %w: mode %v keeps no parameters", j.shared.Name, ErrNoSnapshot, Aggregate)
	case len(marks) != 0 && len(marks) != len(j.shards):
		return nil, fmt.Errorf("job %q: a snapshot of %d lanes, the job has %d", j.shared.Name, len(marks), len(j.shards))
	}
	return &Snapshot{job: j, plan: plan, Marks: marks}, nil
}

// Source returns the rack from which a piece is read.
func (s *Snapshot) Source(p Piece) int {
	_, c := s.find(p.Chunk)
	rack, _ := s.locate(c, p.Array)
	return rack
}

// Keeps reports whether a rack keeps a piece. Writing a piece to a rack that does not keep it has no effect.
func (s *Snapshot) Keeps(rack int, p Piece) bool {
	_, c := s.find(p.Chunk)
	return s.keeps(rack, c, p.Array)
}

func (s *Snapshot) keeps(rack int, c *store.Chunk, array int) bool {
	from, at := s.locate(c, array)
	shared := 0 // the array that is equal in all racks
	if s.apart() {
		shared = s.inner()
	}
	p := s.job.place
	return rack == from || at == shared || p != nil && p.Buddies && rack == p.Buddy(from)
}

// locate returns the rack from which one of a chunk's arrays is read, and the array's number there.
func (s *Snapshot) locate(c *store.Chunk, array int) (rack, at int) {
	if !s.apart() {
		return int(c.Owner), array
	}
	n := s.inner()
	if own := s.job.place.Racks * n; array >= own {
		return int(c.Owner), n + array - own
	}
	return array / n, array % n
}

func (s *Snapshot) apart() bool { return s.job.config.Outer != (diloco.Optimizer{}) }

// inner returns the number of arrays of each chunk in a rack's own training.
func (s *Snapshot) inner() int { return 1 + s.job.shards[0].Store.States }

// find returns a chunk and its lane. The chunk is nil if it is in another aggregator.
func (s *Snapshot) find(id int) (lane int, c *store.Chunk) {
	planned := s.plan.Chunk(id)
	lane = planned.Lane - s.job.firstLane
	if lane >= 0 && lane < len(s.job.shards) {
		c = &s.job.shards[lane].Store.Chunks[planned.LaneIndex]
	}
	return lane, c
}

// Arrays returns the number of arrays of each chunk, in all racks together.
func (s *Snapshot) Arrays() int {
	if s.apart() {
		return s.job.place.Racks*s.inner() + outer.Arrays(s.job.config.Outer)[1]
	}
	return s.inner()
}

// checkQuiet returns the present mark of a lane, or an error if the job has ended there or if gradients must not be under way.
func (s *Snapshot) checkQuiet(sh *shard.Shard) (Mark, error) {
	if sh.Machine.State != reduce.Running {
		return Mark{}, ErrClosed
	}
	if len(s.Marks) > 0 && !sh.Machine.Quiet() {
		return Mark{}, s.busy(meetFirst)
	}
	return Mark{sh.Machine.Finished, sh.Machine.CommitEpoch()}, nil
}

const meetFirst = "let every worker finish and meet at a barrier before and after"

func (s *Snapshot) busy(why string) error {
	return fmt.Errorf("job %q: %w: %s", s.job.shared.Name, ErrNotQuiet, why)
}

// visit runs f if a lane has not worked since its mark. The lane leaves the job alone meanwhile.
func (s *Snapshot) visit(ctx context.Context, lane int, f func() error) error {
	sh := s.job.shards[lane]
	return sh.Flow.Borrow(ctx, func() error {
		switch mark, err := s.checkQuiet(sh); {
		case err != nil:
			return err
		case len(s.Marks) > 0 && mark != s.Marks[lane]:
			return s.busy(meetFirst)
		}
		return f()
	})
}

// Read copies the pieces whose source is this rack out of the job. It leaves other pieces unchanged.
func (s *Snapshot) Read(ctx context.Context, pieces []Piece) error { return s.move(ctx, pieces, false) }

// Write copies pieces that this rack keeps into the job.
func (s *Snapshot) Write(ctx context.Context, pieces []Piece) error {
	s.job.replacing.Store(true)
	return s.move(ctx, pieces, true)
}

func (s *Snapshot) move(ctx context.Context, pieces []Piece, write bool) error {
	own := 0
	if s.job.place != nil {
		own = s.job.place.Rack
	}
	of := make([][]int, len(s.job.shards)) // indexes of the pieces in each lane
	for i := range pieces {
		lane, c := s.find(pieces[i].Chunk)
		if c == nil {
			continue
		}
		if from, _ := s.locate(c, pieces[i].Array); from == own || write && s.keeps(own, c, pieces[i].Array) {
			of[lane] = append(of[lane], i)
		}
	}
	for lane, mine := range of {
		if len(mine) == 0 {
			continue
		}
		sh := s.job.shards[lane]
		err := s.visit(ctx, lane, func() error {
			for _, i := range mine {
				p := &pieces[i]
				_, c := s.find(p.Chunk)
				switch {
				case c.Dirty && len(s.Marks) > 0:
					return s.busy("what was pushed is not committed")
				case c.Stepped && len(s.Marks) > 0:
					return s.busy("a gradient must reach its round again")
				}
				_, at := s.locate(c, p.Array)
				values := sh.Store.Values(c, at)
				if write {
					sh.Store.Overwritten()
					copy(values, p.Data)
					if c.History != nil {
						c.History.Undo = false
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

// NoUpdates stands for the updates of a tensor whose optimizer runs in other racks only.
const NoUpdates = math.MaxUint32

// Updates returns the number of optimizer steps of each tensor in this rack, by its number in the plan, or [NoUpdates].
func (s *Snapshot) Updates(ctx context.Context) ([]uint32, error) {
	out := slices.Repeat([]uint32{NoUpdates}, s.plan.NumTensors())
	err := s.eachChunk(ctx, func(sh *shard.Shard, c *store.Chunk) error {
		if !sh.Owns(c) && !s.apart() {
			return nil
		}
		t := sh.Store.Tensors[c.Tensor].Number
		if out[t] != NoUpdates && out[t] != c.Updates {
			return s.busy(fmt.Sprintf("tensor %q is half updated", sh.Store.Tensors[c.Tensor].Name))
		}
		out[t] = c.Updates
		return nil
	})
	return out, err
}

// SetUpdates sets the number of optimizer steps of each tensor. It completes the replacement of the state.
func (s *Snapshot) SetUpdates(ctx context.Context, updates []uint32) error {
	err := s.eachChunk(ctx, func(sh *shard.Shard, c *store.Chunk) error {
		n := updates[sh.Store.Tensors[c.Tensor].Number]
		if n == NoUpdates {
			n = c.Updates
		}
		sh.Store.Restart(c, n)
		return nil
	})
	if err == nil {
		s.job.replacing.Store(false)
	}
	return err
}

// WholeStep returns the number of optimizer steps that all chunks whose state this rack keeps have had.
func (j *Job) WholeStep(ctx context.Context) (least uint32, err error) {
	least = math.MaxUint32
	s := Snapshot{job: j}
	err = s.eachChunk(ctx, func(sh *shard.Shard, c *store.Chunk) error {
		if sh.Owns(c) || c.History != nil {
			least = min(least, c.Updates)
		}
		return nil
	})
	if least == math.MaxUint32 {
		least = 0 // this rack keeps no state
	}
	return least, err
}

func (s *Snapshot) eachChunk(ctx context.Context, f func(*shard.Shard, *store.Chunk) error) error {
	for lane, sh := range s.job.shards {
		for from, n := 0, 1; from < n; from += countStep {
			err := s.visit(ctx, lane, func() error {
				n = len(sh.Store.Chunks)
				for i := from; i < min(from+countStep, n); i++ {
					if err := f(sh, &sh.Store.Chunks[i]); err != nil {
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
