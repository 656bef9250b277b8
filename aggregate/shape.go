package aggregate

import (
	"context"
	"errors"
	"fmt"

	"github.com/rackweave/rackweave/hierarchy"
)

// SetShape has a job over several racks reduce in another shape than it was made for. Every rack says the same, before the job's
// first tensors: who owns a chunk depends on it.
func (j *Job) SetShape(ctx context.Context, shape hierarchy.Shape) error {
	if err := j.open(); err != nil {
		return err
	}
	if j.above == nil {
		return fmt.Errorf("job %q: shape %v: it has no other racks", j.name, shape)
	}
	to := *j.above
	to.Shape = shape
	if err := to.check(); err != nil {
		return fmt.Errorf("job %q: %w", j.name, err)
	}
	for i, l := range j.lanes {
		err := l.borrow(ctx, j.shares[i], func() error {
			if len(j.shares[i].store.chunks) > 0 {
				return errors.New("it has tensors, and their owners stay")
			}
			j.shares[i].above.reducer.SetShape(shape)
			return nil
		})
		if err != nil {
			return fmt.Errorf("job %q: shape %v: %w", j.name, shape, err)
		}
		j.owners[i] = newOwners(&to, l.index)
	}
	j.above.Shape = shape
	return nil
}

// Hold keeps this rack from beginning further epochs of any chunk, and returns those that it has begun last, by lane and chunk. It
// is the first of three steps by which all racks change the shape of a job that runs: then [Job.Turn], then [Job.Release]. A hold
// that is not released for [HoldPatience] fails the job.
func (j *Job) Hold(ctx context.Context) (began [][]uint8, err error) {
	switch mode := j.shares[0].store.mode; {
	case j.above == nil:
		return nil, fmt.Errorf("job %q has no other racks", j.name)
	case mode != Eager && mode != Aggregate || j.shares[0].store.outer != nil || j.shares[0].quorum != nil:
		return nil, fmt.Errorf("job %q: only jobs of modes eager and aggregate whose racks add their gradients in every step change their shape",
			j.name)
	}
	for i := range j.lanes {
		err := j.onShare(ctx, i, func(s *share) error {
			if s.above.began != nil {
				return errors.New("its shape is being changed already")
			}
			lane, err := s.above.reducer.Began()
			if err == nil {
				s.above.began, s.above.held = lane, j.lanes[i].now()
				began = append(began, lane)
			}
			return err
		})
		if err != nil {
			held := i
			if ctx.Err() != nil {
				held++ // the lane may hold all the same
			}
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), HoldPatience)
			defer cancel()
			return nil, errors.Join(err, j.release(ctx, held))
		}
	}
	return began, nil
}

// Turn has every chunk take another shape from an epoch on, by lane and chunk, as [hierarchy.TurnAt] gives them. The job is held.
func (j *Job) Turn(ctx context.Context, shape hierarchy.Shape, turns [][]uint8) error {
	if len(turns) != len(j.lanes) {
		return fmt.Errorf("job %q: shape %v: turns of %d lanes for %d", j.name, shape, len(turns), len(j.lanes))
	}
	for i := range j.lanes {
		err := j.onShare(ctx, i, func(s *share) error {
			if s.above.began == nil {
				return errors.New("it is not held")
			}
			return s.above.reducer.Turn(shape, turns[i])
		})
		if err != nil {
			return fmt.Errorf("shape %v: %w", shape, err)
		}
	}
	j.above.Shape = shape
	return nil
}

// Release lets a job go on that is held.
func (j *Job) Release(ctx context.Context) error { return j.release(ctx, len(j.lanes)) }

// release lets the first lanes go on.
func (j *Job) release(ctx context.Context, lanes int) error {
	var errs []error
	for i := range lanes {
		errs = append(errs, j.onShare(ctx, i, func(s *share) error { s.above.began = nil; return nil }))
	}
	return errors.Join(errs...)
}

// onShare runs f on a lane's goroutine.
func (j *Job) onShare(ctx context.Context, lane int, f func(s *share) error) error {
	if err := j.open(); err != nil {
		return err
	}
	s := j.shares[lane]
	if err := j.lanes[lane].try(ctx, s, func() error { return f(s) }); err != nil {
		return fmt.Errorf("job %q: %w", j.name, err)
	}
	return nil
}
