package racks

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/rackweave/rackweave/launch"
)

// The page's three commands bring up two racks, exchange between them and show how they reduce.
func TestTheCommandsForEmulatedRacksShowTheHierarchyAtWork(t *testing.T) {
	file := program(t)
	f := up(t, Config{Racks: 2, Workers: 4, Rate: 200e6, Core: 8}) // for its name, and to take away what they bring up
	text, err := os.ReadFile("../../docs/rdma.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(text), "## Emulated racks\n")
	lines := regexp.MustCompile(`(?m)^    (racks (?:up|exchange|status))([^#\n]*)`).FindAllStringSubmatch(section, 3)
	if len(lines) != 3 {
		t.Fatalf("docs/rdma.md has %d of three commands for emulated racks: %q", len(lines), lines)
	}
	var script strings.Builder
	for _, line := range lines {
		script.WriteString(line[1] + " --name " + f.Name + " " + line[2] + "\n")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "sh", "-ec", script.String())
	cmd.Env = append(os.Environ(), "PATH="+filepath.Dir(file)+":"+os.Getenv("PATH"))
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.WaitDelay = time.Second // the commands in the background are killed with their group
	p, err := launch.Start(cmd)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Wait(); err != nil && !strings.Contains(out.String(), "reduced above the rack") {
		t.Errorf("%v", err)
	}
	for _, want := range []string{"2 racks of 4 workers, links of 200 Mb/s, uplinks of 100 Mb/s", "reduced above the rack: sharded",
		`rack0 +http://10.77.0.1:7077 +4 .*\(this one\)`, `rack1 +http://10.77.1.1:7077 +4 `} {
		if !regexp.MustCompile(want).MatchString(out.String()) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
}
