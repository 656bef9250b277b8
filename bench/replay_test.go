package bench

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/rackweave/rackweave/bench/models"
	"github.com/rackweave/rackweave/bench/report"
)

// A step takes at least its computation, and what it computed is the same as without.
func TestAReplayTakesAtLeastItsComputation(t *testing.T) {
	s := momentumSpec("shm")
	s.Replay, s.Model = true, s.Model.Computing(30*time.Millisecond)
	res := exchange(t, s)
	if res.Replay == nil || res.Replay.ComputeUS != 30e3 || res.Replay.WaitUS > res.Replay.ExposedUS {
		t.Fatalf("breakdown %+v", res.Replay)
	}
	if res.TimeUS.Min < 29e3 {
		t.Errorf("a step of %g us with 30 ms of computation", res.TimeUS.Min)
	}
	plain := momentumSpec("shm")
	if without := exchange(t, plain); without.Checksum != res.Checksum {
		t.Errorf("checksum %s with a replay, %s without", res.Checksum, without.Checksum)
	}
}

func TestABreakdownDividesWaitsAtTheSlowestWorkersGradient(t *testing.T) {
	s := &Spec{Iters: 1, Warmup: 1, Model: models.Model{Compute: models.Compute{Time: time.Millisecond, Source: "a test", Batch: 2}}}
	traces := []*trace{
		// Waits for tensor 1 from 2.0 to 2.6 ms, which the other worker has at 2.2 ms; and for tensor 0, which all had before.
		{
			Starts: []int64{0, 2e6, 4e6}, Filled: []int64{0, 5e5}, Submitted: [][]int64{{1e6, 1e6}, nil},
			Blocked: [][]block{nil, {{Tensor: 1, From: 2e6, To: 26e5}, {Tensor: 0, From: 27e5, To: 28e5}}},
		},
		{Starts: []int64{0, 2e6, 5e6}, Filled: []int64{0, 0}, Submitted: [][]int64{{1e6, 22e5}, nil}, Blocked: [][]block{nil, nil}},
	}
	want := &report.Replay{ComputeUS: 1000, ComputeSource: "a test", Batch: 2, ExposedUS: 350, WaitUS: 100}
	if diff := cmp.Diff(want, breakdown(s, traces)); diff != "" {
		t.Errorf("breakdown (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]float64{1500}, traces[0].times(1)); diff != "" {
		t.Errorf("times (-want +got):\n%s", diff)
	}
}
