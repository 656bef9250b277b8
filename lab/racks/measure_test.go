package racks

import (
	"context"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/rackweave/rackweave/bench/models"
	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/hierarchy"
	"github.com/rackweave/rackweave/hierarchy/planner"
	"github.com/rackweave/rackweave/lab/binary"
)

// folder is where tests keep what they share.
var folder string

// build makes the commands, once for all tests.
var build = sync.OnceValues(func() (string, error) { return binary.Build(context.Background(), folder, "lab/cmd/racks") })

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
	for _, shape := range []hierarchy.Shape{hierarchy.Sharded, hierarchy.Ring, hierarchy.Flat} {
		got, err := l.Across(t.Context(), m, shape)
		if err != nil {
			t.Fatalf("%v: %v", shape, err)
		}
		want := l.Planned().Loads(shape)[planner.Uplink] // one model; of flat each worker's
		if models := got.Uplinks / bytes; models < 0.9*want || models > 1.03*want {
			t.Errorf("%v: an uplink carried %.3f models a step, not %.0f", shape, models, want)
		}
		if bound := l.Planned().Predict(shape, bytes, chunk.DefaultChunkBytes).Bound; got.Seconds < 0.9*bound {
			t.Errorf("%v: a step took %g s, the links allow %g", shape, got.Seconds, bound)
		}
	}
}

// Codecs give plain Go's bits over shaped links too, in as many fewer bytes as they say, and no faster than those allow.
func TestCodecsTakeTurnsOnShapedLinks(t *testing.T) {
	l := &Lab{Program: program(t), Log: os.Stderr, Iters: 2, Warmup: 1, Verify: true}
	l.Fabric = up(t, Config{Racks: 1, Workers: 2, Rate: 80e6, Core: 1})
	m, err := models.FromBytes("2MB", chunk.F32)
	if err != nil {
		t.Fatal(err)
	}
	turns := 0
	got, err := l.ByCodecs(t.Context(), m, []string{"none", "int8", "int4/none"}, 2, func(string) { turns++ })
	if err != nil {
		t.Fatal(err)
	}
	for i, most := range [][2]float64{{1, 1}, {0.255, 0.255}, {0.13, 1}} {
		r := &got.Rows[i]
		sent, received := 1.0, 1.0
		if r.Moved != nil {
			sent, received = r.Moved.Gradients.Ratio(), r.Moved.Answers.Ratio()
		}
		if (r.Moved == nil) != (i == 0) || sent > most[0] || received > most[1] || len(r.Rounds) != 2 ||
			r.Seconds < 0.9*max(sent, received)*2e6/l.payloadRate() {
			t.Errorf("%+v, sent %v, received %v", r, sent, received)
		}
	}
	var table strings.Builder
	if err := got.WriteTable(&table); err != nil || turns != 6 || !strings.Contains(table.String(), "int4/none") {
		t.Errorf("%d turns, %v:\n%s", turns, err, &table)
	}
}
