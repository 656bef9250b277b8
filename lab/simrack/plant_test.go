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
}

var plants = []plant{
	{
		"sums begin with any worker", "aggregate/carry.go",
		"src[rank] = s.machine.Sources(a, rank).Payload", "src[(rank+int(s.stamp))%len(src)] = s.machine.Sources(a, rank).Payload",
	},
	{
		"epochs are not checked", "aggregate/reduce/gate.go",
		"if got == (finished+1)&chunk.EpochMask {", "if got|finished|chunk.EpochMask != 0 {",
	},
	{
		"a chunk may come twice", "aggregate/reduce/gather.go",
		"if m.folds.has(i, rank) {", "if m.folds.has(i, rank) { m.folds.leave(i, rank) }; if false {",
	},
	{
		"another worker never leads", "aggregate/reduce/stall.go",
		"if s.idle < rotateAfter ||", "if true || s.idle < rotateAfter ||",
	},
	{
		"a result's buffer is used again before it was read", "aggregate/carry.go",
		"if k.Inline() {\n\t\thold = noResult", "if true {\n\t\thold = noResult",
	},
	{
		"a failed job's workers are not told", "aggregate/reduce/machine.go",
		"w.state == Attached && w.sends > 0 {", "w.state == Attached && w.sends < 0 {",
	},
	{
		"a commit does not wait for the other lanes' norms", "aggregate/reduce/commit.go",
		"case AwaitNorms:\n\t\tif !met {", "case AwaitNorms:\n\t\tif false {",
	},
	{
		"a NACKed chunk keeps its slot", "aggregate/reduce/stall.go",
		"w.release(&h)", "_ = h; w.sends--",
	},
	{
		"a resumed connection sends a message again that had arrived", "aggregate/attach.go",
		"s.sent(k, n)", "s.sent(k, max(n-1, 0))",
	},
	{
		"a worker says that it received a message less than it did", "client/lanes/failover.go",
		"Received: r.received, Endpoint", "Received: max(r.received, 1) - 1, Endpoint",
	},
	{
		"a lane that broke is not resumed", "client/failover/failover.go",
		"case l.state == broken:\n\t\treturn true", "case l.state == broken:\n\t\treturn false",
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
			args := []string{"-test.run", "^TestSchedules$", "-seeds", strconv.Itoa(withinSeeds), "-enough", "1"}
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
