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
	outerFile    = "hierarchy/outer.go"
	topologyFile = "hierarchy/topology.go"
	quorumFile   = "hierarchy/quorum.go"
	turnsFile    = "hierarchy/turns.go"
)

var plants = []plant.Plant{
	{
		Name: "a chain adds a rack before those in front of it", File: topologyFile,
		Old: "[][]int{{rack - 1, rack}}", New: "[][]int{{rack, rack - 1}}",
	},
	{
		Name: "epochs are not checked", File: reducerFile,
		Old: "case epoch != expect:", New: "case epoch > epochMask:",
	},
	{
		Name: "a sum may come twice", File: reducerFile,
		Old: "if m.has(c, rack) {", New: "if false {",
	},
	{
		Name: "a chunk is finished while one sum is missing", File: reducerFile,
		Old: "int(c.have) < len(r.Children)", New: "int(c.have)+1 < len(r.Children)",
	},
	{
		Name: "a broadcast counts as a step", File: reducerFile,
		Old: "if !c.broadcast {\n\t\tc.epoch = after(c.epoch)\n\t}", New: "c.epoch = after(c.epoch)",
	},
	{
		Name: "a slot is free twice", File: reducerFile,
		Old: "if !c.taken {\n\t\tm.peers[parent].there.put(c.slot)", New: "if true {\n\t\tm.peers[parent].there.put(c.slot)",
	},
	{
		Name: "a sum that was taken keeps its slot", File: reducerFile,
		Old: "slot: int32(m.row(c)[child]) - 1, kind: SendTaken", New: "slot: none, kind: SendTaken",
	},
	{
		Name: "a child gets no result", File: reducerFile,
		Old: "\t\tm.answer(child, a)\n", New: "\t\t_ = a\n",
	},
	{
		Name: "a sum that was not kept is not sent again", File: stallFile,
		Old: "c.sent = false\n\t\tm.peers[rack].sums.put(index)", New: "c.sent = false",
	},
	{
		Name: "nobody asks for what is missing", File: stallFile,
		Old: "if !counts || s.idle%followAfter != 0 ||", New: "if true ||",
	},
	{
		Name: "a full window stays full", File: stallFile,
		Old: "if m.peers[child].here.len() > 0 {", New: "if true {",
	},
	{
		Name: "workers without room keep what they pushed", File: stallFile,
		Old: "case !c.own || c.asked || c.recalled || m.led(c):", New: "case true:",
	},
	{
		Name: "what was asked for is recalled", File: stallFile,
		Old: "case !c.own || c.asked || c.recalled || m.led(c):", New: "case !c.own || c.recalled:",
	},
	{
		Name: "what is recalled is kept", File: stallFile,
		Old: "case m.queued(c) && !c.asked && !m.led(c):", New: "case false:",
	},
	{
		Name: "all fragments meet in one step", File: outerFile,
		Old: "o.Fragment(chunk) * o.Every / max(o.Fragments, 1)", New: "o.Fragment(chunk) * o.Every",
	},
	{
		Name: "a meeting is held without a quorum", File: quorumFile,
		Old: "case n >= l.quorum &&", New: "case n+1 >= l.quorum &&",
	},
	{
		Name: "a rack that missed a meeting takes part in the next", File: quorumFile,
		Old: "g.missed |= all &^ g.here", New: "g.missed |= 0",
	},
	{
		Name: "a late rack is late for ever", File: quorumFile,
		Old: "g.missed &^= bit", New: "g.missed |= bit",
	},
	{
		Name: "racks wait for those who will not come", File: quorumFile,
		Old: "case bits.OnesCount64(mayCome) < l.quorum:", New: "case false:",
	},
	{
		Name: "a rack alone weighs as one of one period", File: turnsFile,
		Old: "f.periods[w.Rack]++", New: "f.periods[w.Rack] = 1",
	},
	{
		Name: "a rack that waits when all is over waits on", File: turnsFile,
		Old: "return Turn{Kind: GoOn}, t.over", New: "return Turn{Kind: GoOn}, false",
	},
	{
		Name: "who missed the last meeting does not catch up", File: turnsFile,
		Old: "if f := &t.fragments[i]; f.missed {", New: "if f := &t.fragments[i]; f.missed && f.held == 0 {",
	},
}

// withinTime bounds the running of one bug.
const withinTime = time.Minute

func TestPlantedBugsAreCaught(t *testing.T) {
	if testing.Short() {
		t.Skip("builds these tests with bugs in them; run without -short")
	}
	bed := plant.Build(t, plants)
	run := func(t *testing.T, bug int) (context.Context, string, error) {
		ctx, cancel := context.WithTimeout(t.Context(), withinTime)
		t.Cleanup(cancel)
		out, err := bed.Run(ctx, bug, "-test.failfast", "-rapid.nofailfile", "-rapid.shrinktime", "1ms", "-test.run",
			"Routes|AnyOrder|OrdersOfTheirOwn|BreaksTheProtocol|ChunkMeets|Leader|Periods|Words")
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
