package aggregate

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"sync"
	"unsafe"

	"github.com/rackweave/rackweave/aggregate/shard"
	"github.com/rackweave/rackweave/aggregate/store"
	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/numa"
)

var (
	// ErrPassed is wrapped by the error of [Job.Capture] for a step that some chunk has left behind.
	ErrPassed = store.ErrPassed
	// ErrReplaced is the error of a capture during which the job's state was restored.
	ErrReplaced = store.ErrReplaced
	// ErrCapturing is wrapped by the error of a second capture of a job at a time.
	ErrCapturing = errors.New("another capture is under way")
)

// Capture is a copy of a job's parameters as they were after one step, which the lanes make while the workers go on.
//
// A step is an update of each chunk: a chunk is copied after its own update of that number, before the next one. So every worker
// must push each tensor in each step. A tensor that is registered late, or is not pushed in some steps, never gets there. The copy
// equals the parameters of a run that stops after the step. In mode stream it has the same number of updates of each chunk, which
// may be of different workers' steps, and a sparse tensor may have rows of updates that are under way. In a job over several racks
// it holds this rack's parameters: results as they came from their owners, or those after as many steps of its own if racks train
// apart. An aggregator that has part of a job copies its own chunks. Tensors that are registered after it began are not in it.
type Capture struct {
	Step uint32

	job    *Job
	plan   chunk.Plan
	lanes  []*store.Capture
	arenas []*numa.Arena
	ended  chan error // receives the end of each lane's part
	left   int        // parts that have not ended
	close  func() error
}

// CaptureBytes returns the memory that a capture takes: the parameters of this aggregator's chunks in f32, and notes on them.
func (j *Job) CaptureBytes(plan *chunk.Plan) (bytes int64) {
	for i := range j.shards {
		elems, _ := plan.LaneLoad(j.firstLane + i)
		bytes += 4*int64(elems) + captureOfChunk*int64(len(plan.LaneChunks(j.firstLane+i)))
	}
	return bytes
}

const captureOfChunk = 9 // bytes

// The steps between the furthest chunk and the step of a capture, whose lanes must learn of it before: the margin grows by
// marginGrows with each attempt that comes too late.
const (
	firstMargin  = 2
	marginGrows  = 4
	captureTries = 5
)

// Capture begins to capture a job's parameters, those of a plan's tensors, as they will be after a step. If the step is 0, it
// chooses one that no chunk has had, and soon will have. It wraps [ErrPassed] if some chunk has had the step and the next one. The
// memory, of [Job.CaptureBytes], is freed by [Capture.Close], which the caller must call, also after the job is closed.
func (j *Job) Capture(ctx context.Context, plan *chunk.Plan, step uint32) (*Capture, error) {
	fail := func(err error) (*Capture, error) { return nil, fmt.Errorf("capture of job %q: %w", j.shared.Name, err) }
	switch {
	case j.config.Mode == Aggregate:
		return fail(fmt.Errorf("%w: mode %v keeps no parameters", ErrNoSnapshot, Aggregate))
	case plan.NumTensors() == 0:
		return fail(fmt.Errorf("%w: it has no tensors", ErrNoSnapshot))
	case !j.capturing.CompareAndSwap(false, true):
		return fail(fmt.Errorf("%w: wait for its end", ErrCapturing))
	}
	c := &Capture{job: j, plan: *plan, ended: make(chan error, len(j.shards))}
	c.close = sync.OnceValue(c.free)
	for i, sh := range j.shards {
		lane, elems := store.NewCapture(&c.plan, sh.Store.Lane, sh.Scratch.ISA, func(err error) { c.ended <- err })
		c.lanes, c.arenas = append(c.lanes, lane), append(c.arenas, nil)
		if elems == 0 {
			continue
		}
		a, err := numa.NewArena(numa.ArenaConfig{Name: fmt.Sprintf("capture-lane%d", i), Bytes: 4 * int64(elems), Node: sh.Store.Node,
			Private: true})
		if err != nil {
			return fail(errors.Join(err, c.Close()))
		}
		c.arenas[i], lane.Values = a, unsafe.Slice((*float32)(a.Addr()), elems)
	}
	if err := c.begin(ctx, step); err != nil {
		return fail(errors.Join(err, c.Close()))
	}
	return c, nil
}

// begin arms the lanes for a step, or if that is 0, for the first one that it can.
func (c *Capture) begin(ctx context.Context, step uint32) error {
	if step != 0 {
		return c.arm(ctx, step)
	}
	for margin, tries := uint32(firstMargin), 1; ; margin, tries = margin*marginGrows, tries+1 {
		most := uint32(0)
		if err := c.eachChunk(ctx, func(_ *shard.Shard, x *store.Chunk) { most = max(most, x.Updates) }); err != nil {
			return err
		}
		if err := c.arm(ctx, most+margin); tries == captureTries || !errors.Is(err, ErrPassed) {
			return err
		}
		c.disarm()
	}
}

func (c *Capture) eachChunk(ctx context.Context, f func(*shard.Shard, *store.Chunk)) error {
	return (&Snapshot{job: c.job}).eachChunk(ctx, func(sh *shard.Shard, x *store.Chunk) error { f(sh, x); return nil })
}

// arm makes every lane copy its chunks from now on, and looks for chunks that have had the step already. It returns an error if a
// chunk has had the next one, too.
func (c *Capture) arm(ctx context.Context, step uint32) error {
	c.Step, c.left = step, len(c.lanes)
	for i, sh := range c.job.shards {
		lane := c.lanes[i]
		// Without a deadline, because nobody could tell whether a lane runs the command after it.
		if err := sh.Flow.Do(context.WithoutCancel(ctx), func() error { sh.Store.Arm(lane, step); return nil }); err != nil {
			return err
		}
	}
	if err := c.eachChunk(ctx, func(sh *shard.Shard, x *store.Chunk) { sh.Store.Look(x) }); err != nil {
		return err
	}
	for range len(c.ended) {
		if err := <-c.ended; err != nil {
			return err
		}
		c.left--
	}
	return nil
}

// disarm ends the lanes' parts of a capture. A lane that has ended, or whose part of the job has, copies nothing.
func (c *Capture) disarm() {
	for i, sh := range c.job.shards {
		_ = sh.Flow.Do(context.Background(), func() error { sh.Store.Disarm(c.lanes[i]); return nil })
	}
	for range len(c.ended) {
		<-c.ended
	}
}

// Wait waits until all chunks are copied. The error at the deadline names a tensor that lags.
func (c *Capture) Wait(ctx context.Context) error {
	for ; c.left > 0; c.left-- {
		select {
		case err := <-c.ended:
			if err != nil {
				return c.failed(err)
			}
		case <-c.job.Failed():
			return c.failed(c.job.Failure().Err)
		case <-ctx.Done():
			return c.failed(c.late(context.Cause(ctx)))
		}
	}
	return nil
}

func (c *Capture) failed(err error) error {
	return fmt.Errorf("capture of job %q after step %d: %w", c.job.shared.Name, c.Step, err)
}

// late describes the chunks that have not had the step.
func (c *Capture) late(why error) error {
	left, tensor, least := 0, "", uint32(math.MaxUint32)
	for i, sh := range c.job.shards {
		_ = sh.Flow.Do(context.Background(), func() error {
			n, x := c.lanes[i].Behind(sh.Store)
			if left += n; n > 0 && x.Updates < least {
				tensor, least = sh.Store.Tensors[x.Tensor].Name, x.Updates
			}
			return nil
		})
	}
	if left == 0 {
		return why
	}
	return fmt.Errorf("%w: %d of %d chunks have not had the step: tensor %q has had %d updates", why, left, c.plan.NumChunks(), tensor, least)
}

// Chunks returns the captured chunks of a tensor, by its number in the plan, in order: the offset of each in the tensor, in
// elements, and its values, which are valid until Close. Chunks of other aggregators are missing.
func (c *Capture) Chunks(tensor int) iter.Seq2[uint64, []float32] {
	return func(yield func(uint64, []float32) bool) {
		for id, end := c.plan.TensorChunks(tensor); id < end; id++ {
			x := c.plan.Chunk(id)
			lane := x.Lane - c.job.firstLane
			if lane >= 0 && lane < len(c.lanes) && !yield(x.Offset, c.lanes[lane].Of(x.LaneIndex)) {
				return
			}
		}
	}
}

// Close ends the capture and frees its memory.
func (c *Capture) Close() error { return c.close() }

func (c *Capture) free() error {
	c.disarm()
	var errs []error
	for _, a := range c.arenas {
		if a != nil {
			errs = append(errs, a.Close())
		}
	}
	c.job.capturing.Store(false)
	return errors.Join(errs...)
}
