package client

import (
	"cmp"
	"context"
	"fmt"

	cworker "github.com/rackweave/rackweave/cgo/worker"
)

// Step describes the update of a two-phase step. All workers commit with the same.
type Step struct {
	LR, WD float64 // learning rate and weight decay
	Scale  float64 // multiplies the sum of the gradients; if 0, 1
	Clip   float64 // the largest global norm of the scaled sum, to which larger ones are scaled down; if 0, any
	Skip   bool    // drop the gradients and leave the parameters as they are
	// SkipNonFinite does so if the gradients hold infinity or NaN: if the norm is not finite.
	SkipNonFinite bool
}

// Committed is the outcome of a step.
type Committed struct {
	Norm  float64 // global L2 norm of the scaled sum, before clipping
	Scale float64 // what the sum was multiplied by, clipping included
}

// Commit ends a two-phase step: it updates the parameters with the gradients that were pushed since the last commit, and waits
// until all workers have committed. No operation may be under way.
func (x *exchange) Commit(ctx context.Context, s Step) (Committed, error) {
	r, err := x.commit(ctx, s)
	return Committed{Norm: float64(r.Norm), Scale: float64(r.Scale)}, err
}

// StepEnd is the answer by which a worker may begin its next step.
type StepEnd struct {
	Step uint64 // that it begins, of the job's whole run; modulo 2^32
	// Pull asks for a pull of the parameters first, because the policy wants newer ones than the step's pushpulls got.
	Pull bool
}

// EndStep ends this worker's step in mode stream, and waits until the policy lets it begin the next. All gradients of the step must
// have been answered.
func (x *exchange) EndStep(ctx context.Context) (StepEnd, error) {
	if !x.Stream() {
		return StepEnd{}, fmt.Errorf("end step: mode %s has no steps of single workers: use mode stream", x.info.Mode)
	}
	r, err := x.commit(ctx, Step{})
	return StepEnd{Step: uint64(r.Step), Pull: r.Pull}, err
}

// commit sends a commit and waits for its answer.
func (x *exchange) commit(ctx context.Context, s Step) (r cworker.Answer, err error) {
	x.committing.Lock()
	defer x.committing.Unlock()
	x.using.RLock()
	defer x.using.RUnlock()
	if err := x.Err(); err != nil {
		return r, fmt.Errorf("commit: %w", err)
	}
	if x.NumTensors() == 0 {
		return r, fmt.Errorf("commit: no tensors are registered")
	}
	hyper := Hyper{LR: float32(s.LR), WD: float32(s.WD), Scale: float32(cmp.Or(s.Scale, 1)), Clip: float32(s.Clip)}.record()
	var id uint64
	err = x.session.Call("commit", func() int { return cworker.Commit(x.session.C, &hyper, s.Skip, s.SkipNonFinite, &id) })
	if err == nil {
		err = x.wait(ctx, id)
	}
	if err == nil {
		err = x.session.Call("commit", func() (rc int) {
			r, rc = cworker.AnswerOf(x.session.C)
			return rc
		})
	}
	return r, x.dataError("", err)
}
