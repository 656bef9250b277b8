package numa

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
)

// Each folder of testdata is a machine: "tree" holds its sysfs and procfs as testdata/capture.sh printed them, "golden" what
// this package makes of it. Commands of golden scripts:
//
//	topology                              the text form
//	lanes [nics=(A,B,…)] [cores=N]        the NIC↔node↔core map
//	findings                              the findings, for unlimited memlock
//	findings memlock=BYTES [want=BYTES] [can-lock]  the finding about memlock
func TestCapturedMachines(t *testing.T) {
	for _, name := range machines(t) {
		t.Run(name, func(t *testing.T) {
			top := discover(t, filepath.Join("testdata", name, "tree"))
			datadriven.RunTest(t, filepath.Join("testdata", name, "golden"), func(t *testing.T, d *datadriven.TestData) string {
				switch d.Cmd {
				case "topology":
					return top.String()
				case "lanes":
					return lanesCommand(t, top, d)
				case "findings":
					return findingsCommand(t, top, d)
				}
				d.Fatalf(t, "unknown command %q", d.Cmd)
				return ""
			})
		})
	}
}

func lanesCommand(t *testing.T, top *Topology, d *datadriven.TestData) string {
	var c LaneConfig
	for _, arg := range d.CmdArgs {
		switch arg.Key {
		case "nics":
			c.NICs = arg.Vals
		case "cores":
			arg.Scan(t, 0, &c.Cores)
		default:
			d.Fatalf(t, "unknown argument %q", arg.Key)
		}
	}
	lanes, notes, err := top.Lanes(c)
	if err != nil {
		return "error: " + err.Error() + "\n"
	}
	checkLanes(t, top, c, lanes)
	return LanesText(lanes, notes)
}

func findingsCommand(t *testing.T, top *Topology, d *datadriven.TestData) string {
	lim := Limits{Memlock: math.MaxUint64}
	for _, arg := range d.CmdArgs {
		switch arg.Key {
		case "memlock":
			arg.Scan(t, 0, &lim.Memlock)
		case "want":
			arg.Scan(t, 0, &lim.Want)
		case "can-lock":
			lim.CanLock = true
		default:
			d.Fatalf(t, "unknown argument %q", arg.Key)
		}
	}
	var b strings.Builder
	for _, f := range Findings(top, lim) {
		if d.HasArg("memlock") && f.Check != "memlock" {
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

// checkLanes holds what is true of every lane map, whatever the golden file says.
func checkLanes(t testing.TB, top *Topology, c LaneConfig, lanes []Lane) {
	t.Helper()
	perNIC := map[int]int{}
	coreOf := map[string]int{} // physical core → CPU used
	for _, l := range lanes {
		perNIC[l.NICIndex]++
		if !top.node(l.Node).Allowed.Has(l.CPU) {
			t.Errorf("lane %+v: cpu is not an allowed one of its node", l)
		}
		for _, cpu := range top.CPUs {
			if cpu.ID != l.CPU {
				continue
			}
			key := cpu.Siblings.String()
			if used, ok := coreOf[key]; ok && used != l.CPU {
				t.Errorf("core %s serves on two siblings, %d and %d", key, used, l.CPU)
			}
			coreOf[key] = l.CPU
		}
	}
	for i, name := range c.NICs {
		if perNIC[i] == 0 {
			t.Errorf("NIC %s has no lane", name)
		}
	}
	for _, l := range lanes {
		own := l.Node
		if n := top.nic(l.NIC); n != nil {
			own = n.Node
		} else if d := top.rdma(l.NIC); d != nil {
			own = d.Node
		}
		if n := top.node(own); n != nil && len(n.Allowed) > 0 && l.Node != own {
			t.Errorf("lane %+v: the NIC's own node %d has cpus", l, own)
		}
	}
	if c.Cores > 0 && len(coreOf) != c.Cores {
		t.Errorf("%d cores in use, %d asked for", len(coreOf), c.Cores)
	}
}

func TestTopologySurvivesJSON(t *testing.T) {
	for _, name := range machines(t) {
		top := discover(t, filepath.Join("testdata", name, "tree"))
		text, err := json.Marshal(top)
		if err != nil {
			t.Fatal(err)
		}
		var back Topology
		if err := json.Unmarshal(text, &back); err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(top, &back) {
			t.Errorf("%s: decoded topology differs:\n%s\n%s", name, top, &back)
		}
	}
}

func machines(t testing.TB) []string {
	t.Helper()
	trees, err := filepath.Glob("testdata/*/tree")
	if err != nil || len(trees) == 0 {
		t.Fatalf("no captured machines: %v", err)
	}
	for i, p := range trees {
		trees[i] = filepath.Base(filepath.Dir(p))
	}
	return trees
}

// captured keeps what was discovered: expanding a tree is the slow part. Tests only read it.
var captured = map[string]*Topology{}

// discover expands a captured tree and discovers the machine in it.
func discover(t testing.TB, file string) *Topology {
	t.Helper()
	if top := captured[file]; top != nil {
		return top
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	top, err := Discover(expand(t, string(text)))
	if err != nil {
		t.Fatal(err)
	}
	captured[file] = top
	return top
}

// expand writes a tree in the form of testdata/capture.sh into a folder: "path = content" with \n for a newline,
// "path -> target" for symbolic links, cpu{0-3,8} in a path for several. Lines that start with # are comments.
func expand(t testing.TB, text string) string {
	t.Helper()
	root := t.TempDir()
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		if line == "" || line[0] == '#' {
			continue
		}
		if name, content, ok := strings.Cut(line, " ="); ok {
			content = strings.ReplaceAll(strings.TrimPrefix(content, " "), `\n`, "\n") + "\n"
			for _, p := range braces(t, name) {
				plant(t, filepath.Join(root, p), func(full string) error { return os.WriteFile(full, []byte(content), 0o644) })
			}
		} else if name, target, ok := strings.Cut(line, " -> "); ok {
			plant(t, filepath.Join(root, name), func(full string) error { return os.Symlink(target, full) })
		} else {
			t.Fatalf("neither a file nor a link: %q", line)
		}
	}
	return root
}

func plant(t testing.TB, full string, make func(string) error) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := make(full); err != nil {
		t.Fatal(err)
	}
}

func braces(t testing.TB, name string) []string {
	before, rest, ok := strings.Cut(name, "{")
	if !ok {
		return []string{name}
	}
	list, after, _ := strings.Cut(rest, "}")
	cpus, err := ParseCPUs(list)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, cpu := range cpus {
		names = append(names, before+strconv.Itoa(cpu)+after)
	}
	return names
}

func ExampleCPUSet() {
	allowed, _ := ParseCPUs("0-7,16")
	isolated, _ := ParseCPUs("4-7")
	fmt.Println(allowed.Minus(isolated))
	// Output: 0-3,16
}
