package main

import (
	"strings"
	"testing"

	"github.com/rackweave/rackweave/service/api"
)

func TestStatusSaysForWhomAChangeOfPolicyWaits(t *testing.T) {
	j := &api.JobStatus{Policy: "asp"}
	if got := change(j); got != "" {
		t.Errorf("no change: %q", got)
	}
	j.NextPolicy, j.NextPolicyStep = "ssp:s=3", 8
	j.Members = []*api.WorkerStatus{{Rank: 0, Step: 8}, {Rank: 1, Step: 6}, {Rank: 2, Step: 5, Left: true}, {Rank: 3, Step: 7}}
	if got, want := change(j), "; ssp:s=3 from step 8 on, when these workers have reached it: 1 (step 6), 3 (step 7)"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestStatusPrintsHowFarRacksDriftAndHowOftenTheyMeet(t *testing.T) {
	j := &api.JobStatus{
		Racks: []*api.RackStatus{{Name: "a"}}, Outer: "every=24,drift=0.02",
		Drift: &api.Drift{Drift: 0.01234, Threshold: 0.02, LeastInterval: 1, MostInterval: 8, MeanInterval: 4.25},
	}
	var out strings.Builder
	printRacks(&out, j)
	const want = "  drift 0.0123 of the parameters' length, of 0.02 allowed: chunks meet every 1 to 8 steps, every 4.2 on average\n"
	if !strings.Contains(out.String(), want) {
		t.Errorf("it prints:\n%swant %s", out.String(), want)
	}
	out.Reset()
	printJob(&out, &api.JobStatus{Mode: "stream", Policy: "asp", Drift: &api.Drift{Drift: 0.01234}})
	if got := out.String(); !strings.Contains(got, "  drift 0.0123 of the parameters' length from a worker's reading of them to its gradient\n") {
		t.Errorf("of mode stream it prints:\n%s", got)
	}
}

func TestStatusPrintsWhyAnotherShapeMayBeFaster(t *testing.T) {
	for _, warning := range []string{"", "a step takes 4ms and took 1ms at first"} {
		var out strings.Builder
		printRacks(&out, &api.JobStatus{Racks: []*api.RackStatus{{Name: "a"}}, Shape: "sharded", ShapeWarning: warning})
		want := 0
		if warning != "" {
			want = 1
		}
		if strings.Count(out.String(), "warning") != want || !strings.Contains(out.String(), warning) {
			t.Errorf("of the warning %q it prints:\n%s", warning, out.String())
		}
	}
}

func TestStatusTellsWhatAStepTouchesOfASparseTensor(t *testing.T) {
	var out strings.Builder
	printSparse(&out, &api.JobStatus{Workers: 4, Sparse: []*api.SparseStatus{
		{Name: "idle", Rows: 10},
		{
			Name: "table", Rows: 1_000_000, Width: 64, Steps: 10, ListedRows: 400_000, ListedBytes: 104_000_000, DenseBytes: 10_240_000_000,
			MergedRows: 394_000, Hottest: []*api.HotChunk{{FirstRow: 128, Rows: 128, MergedRows: 1280}},
		},
	}})
	want := "  sparse table: 10 steps; of 1000000 rows a worker touches 10000, all together 39400 (3.94%); 99.2 MiB sent, 0.0102 of dense\n" +
		"    rows 128 to 255: 128.0 touched a step\n"
	if out.String() != want {
		t.Errorf("got %q, want %q", out.String(), want)
	}
}
