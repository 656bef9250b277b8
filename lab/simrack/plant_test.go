package simrack

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// plant is a bug that the simulation must find: in a build of its own, new stands where the file has old.
type plant struct {
	name     string
	file     string // from the module's root
	old, new string
	paced    bool // schedules in which workers are out of step show it
}

var plants = []plant{
	{
		name: "sums begin with any worker", file: "aggregate/carry.go",
		old: "src[rank] = s.machine.Sources(a, rank).Payload", new: "src[(rank+int(s.stamp))%len(src)] = s.machine.Sources(a, rank).Payload",
	},
	{
		name: "epochs are not checked", file: "aggregate/reduce/gate.go",
		old: "if got == (finished+1)&chunk.EpochMask {", new: "if got|finished|chunk.EpochMask != 0 {",
	},
	{
		name: "a chunk may come twice", file: "aggregate/reduce/gather.go",
		old: "if m.folds.has(i, rank) {", new: "if m.folds.has(i, rank) { m.folds.leave(i, rank) }; if false {",
	},
	{
		name: "another worker never leads", file: "aggregate/reduce/stall.go",
		old: "if s.idle < rotateAfter ||", new: "if true || s.idle < rotateAfter ||",
	},
	{
		name: "a result's buffer is used again before it was read", file: "aggregate/answer.go",
		old: "if k.Inline() {\n\t\thold = noResult", new: "if true {\n\t\thold = noResult",
	},
	{
		name: "a failed job's workers are not told", file: "aggregate/reduce/machine.go",
		old: "w.state == Attached && w.sends > 0 {", new: "w.state == Attached && w.sends < 0 {",
	},
	{
		name: "a commit does not wait for the other lanes' norms", file: "aggregate/reduce/commit.go",
		old: "case AwaitNorms:\n\t\tif !met {", new: "case AwaitNorms:\n\t\tif false {",
	},
	{
		name: "a NACKed chunk keeps its slot", file: "aggregate/reduce/stall.go",
		old: "w.release(&h)", new: "_ = h; w.sends--",
	},
	{
		name: "a resumed connection sends a message again that had arrived", file: "aggregate/attach.go",
		old: "s.sent(k, n)", new: "s.sent(k, max(n-1, 0))",
	},
	{
		name: "a worker says that it received a message less than it did", file: "client/lanes/failover.go",
		old: "Received: r.received, Endpoint", new: "Received: max(r.received, 1) - 1, Endpoint",
	},
	{
		name: "a lane that broke is not resumed", file: "client/failover/failover.go",
		old: "case l.state == broken:\n\t\treturn true", new: "case l.state == broken:\n\t\treturn false",
	},
	{
		name: "a gate lets workers lead by one step too many", file: "policy/stream.go", paced: true,
		old: "plus(p.min(), p.bound)", new: "plus(p.min()+1, p.bound)",
	},
	{
		name: "a worker's step ends in its first lane", file: "aggregate/pace.go", paced: true,
		old: "w.ended < p.queue.lanes {", new: "w.ended < 1 {",
	},
	{
		name: "answers point at parameters that another push may change", file: "aggregate/store.go", paced: true,
		old: "s.mode != Aggregate && s.mode != Stream &&", new: "s.mode != Aggregate &&",
	},
	{
		name: "parameters count as new enough that a step's gate had not vouched for", file: "aggregate/pace.go", paced: true,
		old: "p.runner.Allowed(rank) > p.runner.Clock(rank)", new: "p.runner.Allowed(rank) >= p.runner.Clock(rank)",
	},
	{
		name: "a set is updated before its steps are in all lanes, so that steps are torn", file: "aggregate/sets.go", paced: true,
		old: "if !q.open[0].addends[i].ended {", new: "if i < 0 {",
	},
	{
		name: "a set has a step in its first lane only", file: "aggregate/events.go", paced: true,
		old: "if k := s.links[rank]; k != nil {\n\t\tk.stream.weight", new: "if k := s.links[rank]; k != nil && s.lane == 0 {\n\t\tk.stream.weight",
	},
	{
		name: "held workers wait for one that has left", file: "aggregate/pace.go", paced: true,
		old: "Kind: policy.Finish, W: rank, At: now}); err != nil {\n\t\treturn err\n\t}\n\tp.answer()",
		new: "Kind: policy.Finish, W: rank, At: now}); err != nil {\n\t\treturn err\n\t}",
	},
}

const (
	withinSeeds = 600             // schedules that may pass before a planted bug must have made one fail
	withinTime  = 5 * time.Minute // for building and running one
)

// mutate returns the plant's file, and its text with the bug in it.
func (p *plant) mutate(t *testing.T) (file, text string) {
	t.Helper()
	file, err := filepath.Abs(filepath.Join("..", "..", p.file))
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(b), p.old); n != 1 {
		t.Fatalf("%s has %q %d times: change the plant so that it names one place", p.file, p.old, n)
	}
	return file, strings.Replace(string(b), p.old, p.new, 1)
}

// build builds this package's tests with the bug, without touching the source.
func (p *plant) build(ctx context.Context, t *testing.T) (binary string) {
	t.Helper()
	file, text := p.mutate(t)
	dir := t.TempDir()
	mutant := filepath.Join(dir, "mutant.go")
	overlay, err := json.Marshal(map[string]map[string]string{"Replace": {file: mutant}})
	if err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string][]byte{mutant: []byte(text), filepath.Join(dir, "overlay.json"): overlay} {
		if err := os.WriteFile(name, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	binary = filepath.Join(dir, "simrack.test")
	out, err := exec.CommandContext(ctx, "go", "test", "-c", "-overlay", filepath.Join(dir, "overlay.json"), "-o", binary,
		".").CombinedOutput()
	if err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	return binary
}

func TestPlantsNameOnePlaceEach(t *testing.T) {
	for _, p := range plants {
		t.Run(p.name, func(t *testing.T) { p.mutate(t) })
	}
}

func TestPlantedBugsAreCaught(t *testing.T) {
	if testing.Short() {
		t.Skip("builds these tests once per bug; run without -short")
	}
	for _, p := range plants {
		t.Run(p.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), withinTime)
			defer cancel()
			binary := p.build(ctx, t)
			schedules, number := "^TestSchedules$", "-seeds"
			if p.paced {
				schedules, number = "^TestPacedSchedules$", "-paced-seeds"
			}
			args := []string{"-test.run", schedules, number, strconv.Itoa(withinSeeds), "-enough", "1"}
			out, err := exec.CommandContext(ctx, binary, args...).CombinedOutput()
			if err == nil {
				t.Fatalf("%d schedules passed with this bug", withinSeeds)
			}
			_, caught, found := strings.Cut(string(out), ": seed ")
			if ctx.Err() != nil || !found {
				t.Fatalf("no seed was named: %v, %v\n%s", err, ctx.Err(), out)
			}
			caught, _, _ = strings.Cut(caught, "\n")
			t.Logf("caught by seed %s", caught)
		})
	}
}
