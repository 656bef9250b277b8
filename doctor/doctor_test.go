package doctor

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"github.com/rackweave/rackweave/numa"
	"github.com/rackweave/rackweave/numa/numatest"
)

// Each file of testdata is what is found on a machine that package numatest holds. Commands:
//
//	findings                           all, for unlimited memlock
//	findings memlock=BYTES [can-lock]  the one about memlock
//	findings descriptors=N             the one about descriptors
func TestFindingsOfCapturedMachines(t *testing.T) {
	files, err := os.ReadDir("testdata")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		t.Run(file.Name(), func(t *testing.T) {
			top, err := numa.Discover(numatest.Root(t, file.Name()))
			if err != nil {
				t.Fatal(err)
			}
			datadriven.RunTest(t, filepath.Join("testdata", file.Name()), func(t *testing.T, d *datadriven.TestData) string {
				if d.Cmd != "findings" {
					d.Fatalf(t, "unknown command %q", d.Cmd)
				}
				return findingsCommand(t, top, d)
			})
		})
	}
}

func findingsCommand(t *testing.T, top *numa.Topology, d *datadriven.TestData) string {
	lim := numa.Limits{Memlock: math.MaxUint64}
	for _, arg := range d.CmdArgs {
		switch arg.Key {
		case "memlock":
			arg.Scan(t, 0, &lim.Memlock)
		case "descriptors":
			arg.Scan(t, 0, &lim.Descriptors)
		case "can-lock":
			lim.CanLock = true
		default:
			d.Fatalf(t, "unknown argument %q", arg.Key)
		}
	}
	var b strings.Builder
	for _, f := range Findings(top, lim) {
		if d.HasArg("memlock") && f.Check != "memlock" || d.HasArg("descriptors") && f.Check != "descriptors" {
			continue
		}
		fmt.Fprintf(&b, "%-4s  %s: %s\n", f.Level, f.Check, f.Detail)
		if f.Remedy != "" {
			fmt.Fprintf(&b, "      %s\n", f.Remedy)
		}
		if (f.Level == LevelWarn || f.Level == LevelFail) && f.Remedy == "" {
			t.Errorf("%s: %s: no remedy", f.Check, f.Detail)
		}
	}
	return b.String()
}

func TestThisMachineIsExamined(t *testing.T) {
	findings, err := Examine()
	if err != nil {
		t.Fatal(err)
	}
	told := map[string]bool{}
	for _, f := range findings {
		told[f.Check] = true
		if f.Detail == "" {
			t.Errorf("finding %+v lacks a detail", f)
		}
	}
	for _, check := range []string{"memlock", "descriptors", "last-level cache", "provider ibv", "provider shm", "provider tcp"} {
		if !told[check] {
			t.Errorf("no finding on %s", check)
		}
	}
	var b strings.Builder
	if Write(&b, findings); !strings.Contains(b.String(), "provider shm") {
		t.Error(&b)
	}
}
