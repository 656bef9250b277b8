package aggregate_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/rackweave/rackweave/aggregate"
	"github.com/rackweave/rackweave/aggregate/optim"
	"github.com/rackweave/rackweave/aggregate/racktest"
	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/verbs"
)

// captureRack is an idle rack of one worker, with two tensors and one update of each.
func captureRack(t *testing.T, mode aggregate.Mode, rule optim.Rule) (*racktest.Rack, func(tensors ...int)) {
	t.Helper()
	r := threadedRack(t, verbs.ProviderSHM, 1, racktest.Config{
		Lanes: 2, Window: 4, Job: aggregate.JobConfig{Name: "job", Mode: mode, Rule: rule, Hyper: rule.Defaults(), ChunkBytes: 4096},
		Tensors: tensorsOf(chunk.F32, 5000, 3000),
	})
	step := func(tensors ...int) {
		t.Helper()
		for _, k := range tensors {
			if err := r.Workers[0].Run(10*time.Second, r.Workers[0].Op(chunk.OpPushPull, k, 0)); err != nil {
				t.Fatal(err)
			}
		}
	}
	step(0, 1)
	return r, step
}

func TestACaptureThatCannotEndSaysWhy(t *testing.T) {
	soon := func(t *testing.T) context.Context {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		t.Cleanup(cancel)
		return ctx
	}
	for _, tc := range []struct {
		name, want string
		is         error
		mode       aggregate.Mode
		rule       optim.Rule
		step       uint32
		try        func(t *testing.T, r *racktest.Rack, step func(...int), c *aggregate.Capture, err error) error
	}{
		{"no parameters", "mode aggregate keeps no parameters", aggregate.ErrNoSnapshot, aggregate.Aggregate, optim.Sum, 0, nil},
		{"passed", `tensor "t0" has had 3 updates, and the capture is of step 2`, aggregate.ErrPassed, aggregate.Eager, optim.SGDTorch, 2, nil},
		{"present", `tensor "t0" has had 3 updates, and the capture is of step 3`, aggregate.ErrPassed, aggregate.Eager, optim.SGDTorch, 3, nil},
		{"a tensor is left out", `after step 5: context deadline exceeded: 3 of 8 chunks have not had the step: tensor "t1" has had 3 updates`,
			context.DeadlineExceeded, aggregate.Eager, optim.SGDTorch, 5,
			func(t *testing.T, _ *racktest.Rack, step func(...int), c *aggregate.Capture, _ error) error {
				step(0, 0)
				return c.Late(c.Wait(soon(t)))
			}},
		{"the job fails", "its disk is full", nil, aggregate.Eager, optim.SGDTorch, 9,
			func(t *testing.T, r *racktest.Rack, _ func(...int), c *aggregate.Capture, _ error) error {
				r.Job.Fail(-1, errors.New("its disk is full"))
				return c.Wait(t.Context())
			}},
		{"the job ends", "closed", aggregate.ErrClosed, aggregate.Eager, optim.SGDTorch, 9,
			func(t *testing.T, r *racktest.Rack, _ func(...int), c *aggregate.Capture, _ error) error {
				if err := r.Job.Close(); err != nil {
					t.Error(err)
				}
				return c.Wait(t.Context())
			}},
		{"a restore", "the parameters were replaced", aggregate.ErrReplaced, aggregate.Eager, optim.SGDTorch, 9,
			func(t *testing.T, r *racktest.Rack, _ func(...int), c *aggregate.Capture, _ error) error {
				s, err := r.Job.Snapshot(t.Context(), r.Plan)
				if err == nil {
					err = s.SetUpdates(t.Context(), []uint32{1, 1})
				}
				if err != nil {
					t.Fatal(err)
				}
				return c.Wait(t.Context())
			}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r, step := captureRack(t, tc.mode, tc.rule)
			step(0, 1)
			step(0, 1)
			c, err := r.Job.Capture(t.Context(), r.Plan, tc.step)
			if c != nil {
				defer func() {
					if err := c.Close(); err != nil {
						t.Error(err)
					}
				}()
			}
			if tc.try != nil {
				if err != nil {
					t.Fatal(err)
				}
				err = tc.try(t, r, step, c, err)
			}
			if err == nil || !strings.Contains(err.Error(), tc.want) || tc.is != nil && !errors.Is(err, tc.is) {
				t.Errorf("error %v, want %q", err, tc.want)
			}
		})
	}
}

// Tensors that are registered while a capture waits are not in it, and what an abandoned capture held is free.
func TestACaptureIsOfTheTensorsAtItsBeginning(t *testing.T) {
	r, step := captureRack(t, aggregate.Eager, optim.SGDTorch)
	abandoned, err := r.Job.Capture(t.Context(), r.Plan, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := abandoned.Close(); err != nil {
		t.Fatal(err)
	}
	plan := *r.Plan
	c, err := r.Job.Capture(t.Context(), r.Plan, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Add([]chunk.Tensor{{Name: "late", Elems: 900, DType: chunk.F32}}); err != nil {
		t.Fatal(err)
	}
	for !c.Ended() {
		step(0, 1, 2)
	}
	if err := c.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := captured(t, c, &plan); len(got) != 2 || len(got[0]) != 5000 || len(got[1]) != 3000 {
		t.Errorf("captured %d tensors", len(got))
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}
