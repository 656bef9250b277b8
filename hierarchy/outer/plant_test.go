package outer

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/rackweave/rackweave/lab/plant"
)

// withinTime bounds the running of the bug.
const withinTime = 10 * time.Minute

func TestPlantedBugsAreCaught(t *testing.T) {
	if testing.Short() {
		t.Skip("builds these tests with a bug in them; run without -short")
	}
	bed := plant.Build(t, []plant.Plant{{
		Name: "all fragments are due in one step", File: "hierarchy/outer/outer.go",
		Old: "chunk % fragments * o.Every / fragments", New: "chunk % fragments * o.Every",
	}})
	ctx, cancel := context.WithTimeout(t.Context(), withinTime)
	defer cancel()
	run := func(bug int) (string, error) {
		return bed.Run(ctx, bug, "-test.failfast", "-rapid.nofailfile", "-rapid.shrinktime", "1ms", "-test.run", "ChunkMeets")
	}
	if out, err := run(plant.None); err != nil {
		t.Fatalf("without a bug: %v\n%s", err, out)
	}
	if out, err := run(0); err == nil || ctx.Err() != nil || !strings.Contains(out, "FAIL") {
		t.Fatalf("no test failed with the bug: %v, %v\n%s", err, ctx.Err(), out)
	}
}
