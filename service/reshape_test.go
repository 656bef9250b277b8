package service

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"time"

	"github.com/rackweave/rackweave/aggregate"
	"github.com/rackweave/rackweave/client"
	"github.com/rackweave/rackweave/hierarchy"
	"github.com/rackweave/rackweave/service/api"
)

func TestRunsAreTheEpochsThatWereWritten(t *testing.T) {
	for _, epochs := range [][]uint8{
		nil, {7}, {0, 0, 0}, {1, 2, 3}, bytes.Repeat([]uint8{5, 5, 6}, 400), bytes.Repeat([]uint8{9}, 20_000),
	} {
		runs := runsOf(epochs)
		if got, err := epochsOf(runs, len(epochs)); err != nil || !bytes.Equal(got, epochs) {
			t.Errorf("%d epochs: read %d, %v", len(epochs), len(got), err)
		}
		if len(epochs) > 0 {
			if _, err := epochsOf(runs, len(epochs)-1); !errors.Is(err, errProtocolOfRacks) {
				t.Errorf("%d epochs, one more than there may be: %v", len(epochs), err)
			}
		}
	}
	for _, bad := range [][]byte{{3}, {0, 1}, {0x80}, {0x80, 1}, {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1, 1}} {
		if got, err := epochsOf(bad, 1000); !errors.Is(err, errProtocolOfRacks) {
			t.Errorf("% x: read %v, %v", bad, got, err)
		}
	}
}

// A HOLD that comes when its change has ended, be it again or late, holds nothing: nobody would release it.
func TestAHoldThatComesAfterItsReleaseHoldsNothing(t *testing.T) {
	const hold, release = api.ReshapeQuestion_HOLD, api.ReshapeQuestion_RELEASE
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	workers, jobs := twoRacks(t, ctx)
	j := jobs[0]
	k, u := j.spec.racks, j.spec.racks.run(j)
	ask := func(kind api.ReshapeQuestion_Kind, change uint64) error {
		_, err := k.ask(ctx, u, 1, &api.AskRequest{Job: j.name, Run: u.ids[1], Stage: "reshape",
			Reshape: &api.ReshapeQuestion{Kind: kind, Change: change}})
		return err
	}
	keep := func(context.Context) (hierarchy.Shape, string, error) { return j.shape(), "it stays", nil }
	both := func(do func(i int) error) error {
		errs := make(chan error, len(workers))
		for i := range workers {
			go func() { errs <- do(i) }()
		}
		return errors.Join(<-errs, <-errs)
	}
	if err := both(func(i int) error {
		return workers[i].Register(ctx, []client.Tensor{{Name: "w", Shape: []uint64{1000}}})
	}); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		what   string
		before func() error
		stale  uint64
	}{
		{"again", func() error { return j.reshape(ctx, keep) }, 1},
		{"again after the next change", func() error { return j.reshape(ctx, keep) }, 1},
		{"late", func() error { return ask(release, 3) }, 3},
		{"late, after a later RELEASE", func() error { return ask(release, 5) }, 4},
	} {
		if err := tc.before(); err != nil {
			t.Fatalf("%s: %v", tc.what, err)
		}
		if err := ask(hold, tc.stale); err == nil {
			t.Errorf("%s: HOLD %d is taken", tc.what, tc.stale)
		}
		if err := both(func(i int) error {
			x := make([]float32, 1000)
			h, err := workers[i].PushPull(0, client.Bytes(x), client.Bytes(x), 0)
			if err == nil {
				err = h.Wait(ctx)
			}
			return err
		}); err != nil {
			t.Fatalf("%s: %v", tc.what, err)
		}
	}
	if err := errors.Join(ask(hold, 6), ask(hold, 6), ask(release, 6), ask(release, 6)); err != nil {
		t.Errorf("a change whose questions come twice: %v", err)
	}
	if err := ask(hold, 0); err == nil {
		t.Error("a change without a number is taken")
	}
}

// Whatever each step of a change takes, racks are released before the first fails the job.
func TestAHoldOutlastsEveryStepOfAChange(t *testing.T) {
	last := time.Duration(0)
	for _, step := range []struct {
		by, takes time.Duration
	}{
		{heldBy, askedTwice}, {decidedBy, measureHeld + askTurn}, {turnedBy, askedTwice}, {releasedBy, askedTwice},
		{aggregate.HoldPatience, 2 * time.Second},
	} {
		if step.by < last+step.takes {
			t.Errorf("the step that ends after %v begins after %v at the latest, and takes %v", step.by, last, step.takes)
		}
		last = step.by
	}
}
