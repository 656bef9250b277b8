package simrack

import (
	"context"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rackweave/rackweave/lab/plant"
)

// planted is a bug that the simulation must find.
type planted struct {
	plant.Plant
	paced bool // schedules in which workers are out of step show it
}

var plants = []planted{
	{Plant: plant.Plant{
		Name: "sums begin with any worker", File: "aggregate/shard/actions.go",
		Old: "src.set(rank, ", New: "src.set((rank+int(s.Lane.Stamp))%len(src.Addr), ",
	}},
	{Plant: plant.Plant{
		Name: "epochs are not checked", File: "aggregate/reduce/gather.go",
		Old: "case msg.Epoch != expect:", New: "case expect > chunk.EpochMask:",
	}},
	{Plant: plant.Plant{
		Name: "a chunk may come twice", File: "aggregate/reduce/gather.go",
		Old: "if m.folds.has(i, rank) {", New: "if m.folds.has(i, rank) { m.folds.leave(i, rank) }; if false {",
	}},
	{Plant: plant.Plant{
		Name: "another worker never leads", File: "aggregate/reduce/stall.go",
		Old: "if s.idle < rotateAfter ||", New: "if true || s.idle < rotateAfter ||",
	}},
	{Plant: plant.Plant{
		Name: "a result's buffer is used again before it was read", File: "aggregate/shard/actions.go",
		Old: "if k.CopiesAtPost() {\n\t\thold = store.NoBuffer", New: "if true {\n\t\thold = store.NoBuffer",
	}},
	{Plant: plant.Plant{
		Name: "a failed job's workers are not told", File: "aggregate/reduce/machine.go",
		Old: "w.state == Attached && w.sends > 0 {", New: "w.state == Attached && w.sends < 0 {",
	}},
	{Plant: plant.Plant{
		Name: "a commit does not wait for the other lanes' norms", File: "aggregate/reduce/commit.go",
		Old: "case AwaitNorms:\n\t\tif !met {", New: "case AwaitNorms:\n\t\tif false {",
	}},
	{Plant: plant.Plant{
		Name: "a NACKed chunk keeps its slot", File: "aggregate/reduce/gather.go",
		Old: "w.release(&h)", New: "_ = h; w.sends--",
	}},
	{Plant: plant.Plant{
		Name: "a resumed connection sends a message again that had arrived", File: "aggregate/shard/workers.go",
		Old: "w.Delivered(k.Conn, n)", New: "w.Delivered(k.Conn, max(n-1, 0))",
	}},
	{Plant: plant.Plant{
		Name: "a worker says that it received a message less than it did", File: "client/lanes/resume.go",
		Old: "Received: r.received, Endpoint", New: "Received: max(r.received, 1) - 1, Endpoint",
	}},
	{Plant: plant.Plant{
		Name: "a lane that broke is not resumed", File: "client/failover/chooser.go",
		Old: "case l.state == broken:\n\t\treturn true", New: "case l.state == broken:\n\t\treturn false",
	}},
	{Plant: plant.Plant{
		Name: "a chunk that was NACKed is encoded again, and its residual committed twice", File: "cgo/worker/coding.c",
		Old: "if (c->kept) {", New: "if (c->kept && !PLANTED) {",
	}},
	{Plant: plant.Plant{
		Name: "a residual is lost on a NACK", File: "cgo/worker/coding.c",
		Old: "c->kept = 1;",
		New: "c->kept = !PLANTED; if (PLANTED) memset(w->tensors[c->tensor].coding->residual + c->offset, 0, c->elems * sizeof(float));",
	}},
	{Plant: plant.Plant{
		Name: "an answer changes the reference twice", File: "aggregate/store/codecs.go",
		Old: "n := e.Run(k.ISA)", New: "e.Run(k.ISA)\n\tn := e.Run(k.ISA)",
	}},
	{Plant: plant.Plant{
		Name: "a payload is read as another worker's", File: "aggregate/shard/actions.go",
		Old: "at.Payload, at.Form", New: "at.Payload, s.Form[0]",
	}},
	{Plant: plant.Plant{
		Name: "no block of rows is the last", File: "aggregate/reduce/rows.go",
		Old: "m.rows.fill(s, reached == t.Rows)", New: "m.rows.fill(s, false)",
	}},
	{Plant: plant.Plant{
		Name: "rows are believed to be as many as they say", File: "codec/rows.go",
		Old: "if length != uint64(bytes) {", New: "if length < uint64(bytes) {",
	}},
	{Plant: plant.Plant{
		Name: "a step counts the norm of rows that it does not apply", File: "aggregate/store/rows.go",
		Old: "c.Norms.Gradient[(d.epoch+1)&1] = 0\n\tif !c.Dirty {", New: "if !c.Dirty {",
	}},
	{Plant: plant.Plant{
		Name: "a block's rows are not in the union", File: "cgo/worker/rows.c",
		Old: "set_bits(t->rows->bits, row, n);", New: "set_bits(t->rows->bits, row, PLANTED ? 0 : n);",
	}},
	{Plant: plant.Plant{
		Name: "pulled rows lie where those of the first message do", File: "cgo/worker/rows.c",
		Old: "const struct place *places = t->rows->order + m->first;", New: "const struct place *places = t->rows->order + (PLANTED ? 0 : m->first);",
	}},
	{paced: true, Plant: plant.Plant{
		Name: "updates by one worker's rows are not counted", File: "aggregate/shard/rows.go",
		Old: "s.Scratch.RowsMerged(s.Store, t, 0)", New: "",
	}},
	{paced: true, Plant: plant.Plant{
		Name: "a worker that pulls rows counts as one that has not seen them", File: "aggregate/shard/rows.go",
		Old: "stream.seen[t.Rows.First] = c.Updates", New: "stream.seen[t.Rows.First] += 0 * c.Updates",
	}},
	{paced: true, Plant: plant.Plant{
		Name: "a gate lets workers lead by one step too many", File: "policy/stale.go",
		Old: "plus(p.min(), p.bound)", New: "plus(p.min()+1, p.bound)",
	}},
	{paced: true, Plant: plant.Plant{
		Name: "a worker's step ends in its first lane", File: "aggregate/pace/pace.go",
		Old: "w.ended < p.queue.lanes ||", New: "w.ended < 1 ||",
	}},
	{paced: true, Plant: plant.Plant{
		Name: "answers point at parameters that another push may change", File: "aggregate/config.go",
		Old: "c.Mode != Aggregate && c.Mode != Stream,", New: "c.Mode != Aggregate,",
	}},
	{paced: true, Plant: plant.Plant{
		Name: "parameters count as new enough that a step's gate had not vouched for", File: "aggregate/pace/pace.go",
		Old: "p.runner.Allowed(rank) > p.runner.Clock(rank)", New: "p.runner.Allowed(rank) >= p.runner.Clock(rank)",
	}},
	{paced: true, Plant: plant.Plant{
		Name: "a set is updated before its steps are in all lanes, so that steps are torn", File: "aggregate/pace/sets.go",
		Old: "if !q.open[0].addends[i].ended {", New: "if i < 0 {",
	}},
	{paced: true, Plant: plant.Plant{
		Name: "a set has a step in its first lane only", File: "aggregate/shard/stream.go",
		Old: "if k := m.Workers.links[rank]; k != nil {\n\t\tk.stream.weight",
		New: "if k := m.Workers.links[rank]; k != nil && m.Lane.Index == 0 {\n\t\tk.stream.weight",
	}},
	{paced: true, Plant: plant.Plant{
		Name: "held workers wait for one that has left", File: "aggregate/pace/pace.go",
		Old: "return p.pass(policy.Event{Kind: policy.Finish, W: rank, At: now})",
		New: "stream := p.runner.Stream()\n\tvar err error\n\tif p.acts, err = p.runner.On(" +
			"policy.Event{Kind: policy.Finish, W: rank, At: now}, p.acts[:0]); err == nil {\n\t\tp.carryOut(stream)\n\t}\n\treturn err",
	}},
	{paced: true, Plant: plant.Plant{
		Name: "held workers wait for one that is lost", File: "aggregate/pace/pace.go",
		Old: "if p.runner.Live(rank) {\n\t\twhat", New: "if false {\n\t\twhat",
	}},
	{paced: true, Plant: plant.Plant{
		Name: "a set with a part of a lost worker's step is updated", File: "aggregate/pace/sets.go",
		Old: "if q.open[0].void {", New: "if false {",
	}},
	{paced: true, Plant: plant.Plant{
		Name: "a broadcast waits for a lost worker", File: "aggregate/reduce/gather.go",
		Old: "case broadcast && m.lost != none:", New: "case false:",
	}},
	{paced: true, Plant: plant.Plant{
		Name: "more workers are spared than the policy can do without", File: "aggregate/pace/pace.go",
		Old: "return lost < most", New: "return lost <= most",
	}},
}

const (
	withinSeeds = 600             // schedules that may pass before a planted bug must have made one fail
	withinTime  = 5 * time.Minute // for running one
)

func TestPlantsNameOnePlaceEach(t *testing.T) {
	for _, p := range plants {
		t.Run(p.Name, func(t *testing.T) { p.Check(t) })
	}
}

func TestPlantedBugsAreCaught(t *testing.T) {
	if testing.Short() {
		t.Skip("builds these tests with bugs in them; run without -short")
	}
	bugs := make([]plant.Plant, len(plants))
	for i, p := range plants {
		bugs[i] = p.Plant
	}
	bed := plant.Build(t, bugs)
	if out, err := bed.Run(t.Context(), plant.None, "-test.run", "Schedules$", "-seeds", "50", "-paced-seeds", "50"); err != nil {
		t.Fatalf("without a bug: %v\n%s", err, out)
	}
	for i, p := range plants {
		t.Run(p.Name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), withinTime)
			defer cancel()
			schedules, number := "^TestSchedules$", "-seeds"
			if p.paced {
				schedules, number = "^TestPacedSchedules$", "-paced-seeds"
			}
			args := []string{"-test.run", schedules, number, strconv.Itoa(withinSeeds), "-enough", "1"}
			out, err := bed.Run(ctx, i, args...)
			if err == nil {
				t.Fatalf("%d schedules passed with this bug", withinSeeds)
			}
			_, caught, found := strings.Cut(out, ": seed ")
			if ctx.Err() != nil || !found {
				t.Fatalf("no seed was named: %v, %v\n%s", err, ctx.Err(), out)
			}
			caught, _, _ = strings.Cut(caught, "\n")
			t.Logf("caught by seed %s", caught)
		})
	}
}
