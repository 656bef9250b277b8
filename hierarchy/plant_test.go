package hierarchy

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/rackweave/rackweave/lab/plant"
)

const (
	reducerFile  = "hierarchy/reducer.go"
	stallFile    = "hierarchy/stall.go"
	topologyFile = "hierarchy/topology.go"
)

var plants = []plant.Plant{
	{
		Name: "a chain adds a rack before those in front of it", File: topologyFile,
		Old: "*group = append(*group, other)", New: "*group = append([]int{other}, *group...)",
	},
	{
		Name: "epochs are not checked", File: reducerFile,
		Old: "case epoch != expect:", New: "case epoch > epochMask:",
	},
	{
		Name: "a sum may come twice", File: reducerFile,
		Old: "case m.has(c, rack) || c.phase >= queued:", New: "case false:",
	},
	{
		Name: "a chunk is finished while one sum is missing", File: reducerFile,
		Old: "int(c.have) < len(r.Children)", New: "int(c.have)+1 < len(r.Children)",
	},
	{
		Name: "a broadcast counts as a step", File: reducerFile,
		Old: "c.epoch = c.next(c.broadcast)", New: "c.epoch = c.next(false)",
	},
	{
		Name: "a slot is free twice", File: reducerFile,
		Old: "if c.phase == sent {\n\t\tm.peers[parent].remoteSlots.put(c.slot)", New: "if true {\n\t\tm.peers[parent].remoteSlots.put(c.slot)",
	},
	{
		Name: "a sum that was taken keeps its slot", File: reducerFile,
		Old: "SendTaken, Index: index, Slot: int(m.row(c)[child]) - 1", New: "SendTaken, Index: index, Slot: none",
	},
	{
		Name: "a child gets no result", File: reducerFile,
		Old: "\t\tm.answer(child, a)\n", New: "\t\t_ = a\n",
	},
	{
		Name: "a sum that was not kept is not sent again", File: stallFile,
		Old: "c.phase = queued\n\t\tm.peers[rack].sums.put(index)", New: "c.phase = queued",
	},
	{
		Name: "nobody asks for what is missing", File: stallFile,
		Old: "if !counts || m.idle%followAfter != 0 ||", New: "if true ||",
	},
	{
		Name: "a full window stays full", File: stallFile,
		Old: "if len(m.peers[child].localSlots) > 0 {", New: "if true {",
	},
	{
		Name: "workers without room keep what they pushed", File: stallFile,
		Old: "case c.phase == missing || c.asked || c.recalled || m.led(c):", New: "case true:",
	},
	{
		Name: "what was asked for is recalled", File: stallFile,
		Old: "case c.phase == missing || c.asked || c.recalled || m.led(c):", New: "case c.phase == missing || c.recalled:",
	},
	{
		Name: "what is recalled is kept", File: stallFile,
		Old: "case c.phase == queued && !c.asked && !m.led(c):", New: "case false:",
	},
}

// withinTime bounds the running of one bug.
const withinTime = 10 * time.Minute

func TestPlantedBugsAreCaught(t *testing.T) {
	if testing.Short() {
		t.Skip("builds these tests with bugs in them; run without -short")
	}
	bed := plant.Build(t, plants)
	run := func(t *testing.T, bug int) (context.Context, string, error) {
		ctx, cancel := context.WithTimeout(t.Context(), withinTime)
		t.Cleanup(cancel)
		out, err := bed.Run(ctx, bug, "-test.failfast", "-rapid.nofailfile", "-rapid.shrinktime", "1ms", "-test.run",
			"Routes|AnyOrder|OrdersOfTheirOwn|BreaksTheProtocol")
		return ctx, out, err
	}
	if _, out, err := run(t, plant.None); err != nil {
		t.Fatalf("without a bug: %v\n%s", err, out)
	}
	for i, p := range plants {
		t.Run(p.Name, func(t *testing.T) {
			t.Parallel()
			ctx, out, err := run(t, i)
			if err == nil {
				t.Fatal("all tests pass with this bug")
			}
			if ctx.Err() != nil || !strings.Contains(out, "FAIL") && !strings.Contains(out, "panic: ") {
				t.Fatalf("no test failed: %v, %v\n%s", err, ctx.Err(), out)
			}
		})
	}
}
