package racks

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/rackweave/rackweave/bench/models"
	"github.com/rackweave/rackweave/bench/report"
	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/hierarchy"
)

// folder is where tests keep what they share.
var folder string

// build makes the rackweave command, once for all tests.
var build = sync.OnceValues(func() (string, error) {
	file := filepath.Join(folder, "rackweave")
	out, err := exec.Command("go", "build", "-o", file, "github.com/rackweave/rackweave/cmd/rackweave").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("go build: %w\n%s", err, out)
	}
	return file, nil
})

// program returns the rackweave command for a test.
func program(t *testing.T) string {
	t.Helper()
	if testing.Short() {
		t.Skip("builds the rackweave command: left out by -short")
	}
	file, err := build()
	if err != nil {
		t.Fatal(err)
	}
	return file
}

// Four workers of one rack get plain Go's bits, over links that are not faster than they should be, and a worker's link carries one
// model in each direction.
func TestWorkersOfARackExchangeOverShapedLinks(t *testing.T) {
	l := &Lab{Program: program(t), Log: os.Stderr, Iters: 2, Warmup: 1, Verify: true}
	l.Fabric = up(t, Config{Racks: 1, Workers: 4, Rate: 80e6, Core: 1})
	m, err := models.FromBytes("2MB", chunk.F32)
	if err != nil {
		t.Fatal(err)
	}
	before, err := l.Counters(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	got, err := l.One(t.Context(), m, false)
	if err != nil {
		t.Fatal(err)
	}
	if got.Seconds < 0.9*2e6/l.payloadRate() {
		t.Errorf("a step took %g s, less than the link allows", got.Seconds)
	}
	after, err := l.Counters(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	carried := 4 * 2e6 // a broadcast and three steps
	c := after[WorkerPort(0, 1)].Since(before[WorkerPort(0, 1)])
	if in := float64(c.Sent) / carried; in < 1 || in > 1.05 {
		t.Errorf("a worker got %.3f models a step", in)
	}
}

func TestARowWithBusyCoresIsVoid(t *testing.T) {
	rows := []Row{
		{Links: "1 rack", Model: "m", Measured: Measured{Name: "ours", Seconds: 1, Bound: 0.9, CPU: 0.2, Note: "quiet"}},
		{Links: "1 rack", Model: "m", Predicted: 1.9,
			Measured: Measured{Name: "theirs", Seconds: 2, Bound: 1.5, CPU: 0.9, Uplinks: 3e6}, Bytes: 1e6},
		{Links: "1 rack", Model: "m", Measured: Measured{Name: "lossy", Seconds: 2, Bound: 1.5, Losses: 5000}},
		{Links: "1 rack", Model: "m", Measured: Measured{Name: "missing"}, Error: "not\ninstalled"},
	}
	var out strings.Builder
	if err := WriteTable(&out, report.Machine{}, rows); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"1.11                 1.00           quiet",
		"1.33      1.90 s     2.00   3.000   cores 90% busy", "5000 segments lost", "not installed"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
	if c := Chart("none", report.Machine{}, nil); len(c.Series) != 0 {
		t.Errorf("series of no rows: %+v", c.Series)
	}
	if c := Chart("t", report.Machine{}, rows); len(c.Series) != 2 || c.Series[1].Values[1] != 1.5 || len(c.Categories) != 4 {
		t.Errorf("series %+v", c.Series)
	}
}

func TestProcessorTimes(t *testing.T) {
	busy, all, err := parseProcessorTime("cpu  10 1 5 80 4 1 1 2 7 0\ncpu0 …")
	if err != nil || busy != 20 || all != 104 {
		t.Errorf("%g of %g ticks, %v; expected 20 of 104", busy, all, err)
	}
	for _, bad := range []string{"", "cpu 1 2", "intr 1 2 3 4 5 6 7 8", "cpu 1 2 x 4 5 6 7 8"} {
		if _, _, err := parseProcessorTime(bad); err == nil {
			t.Errorf("%q is no error", bad)
		}
	}
}

// Two racks get plain Go's bits, and an uplink carries one model in each direction: 2(R-1)/R, within 3% with headers.
func TestTwoRacksSendOneModelThroughTheCore(t *testing.T) {
	l := &Lab{Program: program(t), Log: os.Stderr, Iters: 2, Warmup: 1, Verify: true}
	l.Fabric = up(t, Config{Racks: 2, Workers: 2, Rate: 80e6, Core: 4})
	m, err := models.FromBytes("2MB", chunk.F32)
	if err != nil {
		t.Fatal(err)
	}
	bytes := 4 * float64(m.Params())
	for _, shape := range []hierarchy.Shape{hierarchy.Sharded, hierarchy.Ring} {
		got, err := l.Across(t.Context(), m, shape)
		if err != nil {
			t.Fatalf("%v: %v", shape, err)
		}
		if models := got.Uplinks / bytes; models < 0.9 || models > 1.03 {
			t.Errorf("%v: an uplink carried %.3f models a step", shape, models)
		}
		if bound := l.Planned().Predict(shape, bytes, chunk.DefaultChunkBytes).Bound; got.Seconds < 0.9*bound {
			t.Errorf("%v: a step took %g s, the links allow %g", shape, got.Seconds, bound)
		}
	}
}
