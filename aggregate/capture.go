package aggregate

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"time"

	"github.com/rackweave/rackweave/aggregate/store"
	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/numa"
)

var (
	// ErrPassed is wrapped by the error of [Job.Capture] for a step that some chunk has had.
	ErrPassed = errors.New("the step has passed")
	// ErrReplaced is wrapped by the error of a capture during which the job's state was restored.
	ErrReplaced = store.ErrReplaced
)

// Capture is a copy of a job's parameters as they were after one step, which the lanes make while the workers go on.
//
// A step is an update of each chunk: a chunk is copied after its own update of that number, before the next one. So every worker
// must push each tensor in each step. A tensor that is registered late, or is not pushed in some steps, gets there late: the
// capture waits for it, and then holds it as of another step of the workers. Otherwise the copy equals the parameters of a run that
// stops after the step. In mode stream it has the same number of updates of each chunk, which may be of different workers' steps,
// and a sparse tensor may have rows of updates that are under way. In a job over several racks it holds this rack's parameters:
// results as they came from their owners, or those after as many steps of its own if racks train apart. An aggregator that has part
// of a job copies its own chunks. Tensors that are registered after it began are not in it.
type Capture struct {
	Step uint32

	snapshot Snapshot
	arenas   []*numa.Arena    // by lane: the copies of its chunks, in their order
	parts    []*store.Capture // by lane
	ended    chan error       // receives the end of each lane's part
	left     int              // parts that have not ended
}

// CaptureBytes returns the memory that a capture takes: the parameters of this aggregator's chunks, in f32.
func (j *Job) CaptureBytes(plan *chunk.Plan) (bytes int64) {
	for _, sh := range j.shards {
		elems, _ := plan.LaneLoad(sh.Store.Lane)
		bytes += 4 * int64(elems)
	}
	return bytes
}

// mostMargin bounds the steps from the furthest chunk's to a chosen one. Each attempt doubles them, because the workers were too
// fast for the one before.
const mostMargin = 256

// Capture begins to capture a job's parameters, those of a plan's tensors, as they will be after a step. If the step is 0, it
// chooses one that no chunk has had, and soon will have. It wraps [ErrPassed] if some chunk has had the step. The memory, of
// [Job.CaptureBytes], is freed by [Capture.Close], which the caller must call, also if the job is closed. One capture of a job at a
// time waits for its step: another would take its place in the lanes.
func (j *Job) Capture(ctx context.Context, plan *chunk.Plan, step uint32) (*Capture, error) {
	of := *plan
	c := &Capture{Step: step, snapshot: Snapshot{job: j, plan: &of}}
	if err := c.begin(ctx); err != nil {
		return nil, fmt.Errorf("capture of job %q: %w", j.shared.Name, errors.Join(err, c.Close()))
	}
	return c, nil
}

func (c *Capture) begin(ctx context.Context) error {
	j := c.snapshot.job
	if j.config.Mode == Aggregate {
		return fmt.Errorf("%w: mode %v keeps no parameters", ErrNoSnapshot, Aggregate)
	}
	for i, sh := range j.shards {
		elems, _ := c.snapshot.plan.LaneLoad(sh.Store.Lane)
		a, err := numa.NewArena(numa.ArenaConfig{
			Name: fmt.Sprintf("capture-lane%d", i), Bytes: max(4*int64(elems), 1), Node: sh.Store.Node, Private: true,
		})
		if err != nil {
			return err
		}
		c.arenas, c.parts = append(c.arenas, a), append(c.parts, &store.Capture{ISA: sh.Scratch.ISA})
	}
	chooses, most, err := c.Step == 0, uint32(0), error(nil)
	for margin := uint32(1); ; margin *= 2 { // the first attempt learns how far the chunks are
		if chooses {
			c.Step = most + margin
		}
		if most, err = c.arm(ctx); !chooses || margin == mostMargin || !errors.Is(err, ErrPassed) {
			return err
		}
	}
}

// arm makes each lane copy its chunks from now on, in place of what an earlier call armed. It returns the number of updates of the
// furthest chunk, and an error if that has had the step.
func (c *Capture) arm(ctx context.Context) (most uint32, err error) {
	tensor := ""
	c.left = len(c.arenas)
	c.ended = make(chan error, c.left)
	for i, a := range c.arenas {
		sh, part := c.snapshot.job.shards[i], c.parts[i]
		err = c.snapshot.visit(ctx, i, func() error {
			for k := range c.chunks(i) {
				if x := &sh.Store.Chunks[k]; x.Updates > most {
					most, tensor = x.Updates, sh.Store.Tensors[x.Tensor].Name
				}
			}
			if most >= c.Step {
				return fmt.Errorf("%w: tensor %q has had %d updates, and the capture is of step %d", ErrPassed, tensor, most, c.Step)
			}
			part.Step, part.Ended = c.Step, c.ended
			sh.Store.Arm(part, c.chunks(i), uint64(uintptr(a.Addr())))
			return nil
		})
		if err != nil && !errors.Is(err, ErrPassed) {
			return 0, err
		}
	}
	return most, err
}

// chunks returns the number of a lane's chunks in the capture, which are its first.
func (c *Capture) chunks(lane int) int {
	return len(c.snapshot.plan.LaneChunks(c.snapshot.job.firstLane + lane))
}

// Wait waits until all chunks are copied. It may be called again after its deadline.
func (c *Capture) Wait(ctx context.Context) error {
	job := c.snapshot.job
	for c.left > 0 {
		var err error
		select {
		case err = <-c.ended:
			c.left--
		case <-job.Failed():
			err = job.Failure().Err
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
		if err != nil {
			return fmt.Errorf("capture of job %q after step %d: %w", job.shared.Name, c.Step, err)
		}
	}
	return nil
}

// Late adds to an error of Wait how many chunks have not had the step, and names a tensor that lags.
func (c *Capture) Late(why error) error {
	if why == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	left, tensor, least := 0, "", uint32(math.MaxUint32)
	for i, sh := range c.snapshot.job.shards {
		err := c.snapshot.visit(ctx, i, func() error {
			for k := range c.chunks(i) {
				if x := &sh.Store.Chunks[k]; x.Copy != 0 {
					if left++; x.Updates < least {
						tensor, least = sh.Store.Tensors[x.Tensor].Name, x.Updates
					}
				}
			}
			return nil
		})
		if err != nil {
			return errors.Join(why, err)
		}
	}
	if left == 0 {
		return why
	}
	return fmt.Errorf("%w: %d of %d chunks have not had the step: tensor %q has had %d updates", why, left,
		c.snapshot.plan.NumChunks(), tensor, least)
}

// Chunks returns the captured chunks in the plan's order, each with its values in f32, which are valid until Close. Chunks of other
// aggregators are missing.
func (c *Capture) Chunks() iter.Seq2[chunk.Chunk, []byte] {
	return func(yield func(chunk.Chunk, []byte) bool) {
		next := make([]int, len(c.arenas))
		for id := range c.snapshot.plan.NumChunks() {
			x := c.snapshot.plan.Chunk(id)
			lane := x.Lane - c.snapshot.job.firstLane
			if lane < 0 || lane >= len(next) {
				continue
			}
			from := next[lane]
			next[lane] += 4 * x.Elems
			if !yield(x, c.arenas[lane].Bytes()[from:next[lane]]) {
				return
			}
		}
	}
}

// Close ends the capture and frees its memory.
func (c *Capture) Close() error {
	var errs []error
	for i, a := range c.arenas {
		// Without a deadline, because the memory must not go before. A lane that has ended, or whose part of the job has, copies nothing.
		s := c.snapshot.job.shards[i]
		_ = s.Flow.Do(context.Background(), func() error { s.Store.Disarm(c.parts[i]); return nil })
		errs = append(errs, a.Close())
	}
	return errors.Join(errs...)
}
