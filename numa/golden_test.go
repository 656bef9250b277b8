package numa

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/cockroachdb/datadriven"

	"github.com/rackweave/rackweave/numa/numatest"
)

// Each file of testdata is what this package makes of a machine that package numatest holds. Commands of these scripts:
//
//	topology                              the text form
//	lanes [nics=(A,B,…)] [cores=N]        the NIC↔node↔core map
func TestCapturedMachines(t *testing.T) {
	for _, name := range numatest.Machines(t) {
		t.Run(name, func(t *testing.T) {
			top := discover(t, name)
			datadriven.RunTest(t, filepath.Join("testdata", name), func(t *testing.T, d *datadriven.TestData) string {
				switch d.Cmd {
				case "topology":
					return top.String()
				case "lanes":
					return lanesCommand(t, top, d)
				}
				d.Fatalf(t, "unknown command %q", d.Cmd)
				return ""
			})
		})
	}
}

func lanesCommand(t *testing.T, top *Topology, d *datadriven.TestData) string {
	var nics []string
	cores := 0
	for _, arg := range d.CmdArgs {
		switch arg.Key {
		case "nics":
			nics = arg.Vals
		case "cores":
			arg.Scan(t, 0, &cores)
		default:
			d.Fatalf(t, "unknown argument %q", arg.Key)
		}
	}
	lanes, notes, err := top.Lanes(nics, cores)
	if err != nil {
		return "error: " + err.Error() + "\n"
	}
	checkLanes(t, top, nics, cores, lanes)
	return LanesText(lanes, notes)
}

// checkLanes holds what is true of every lane map, whatever the golden file says.
func checkLanes(t testing.TB, top *Topology, nics []string, cores int, lanes []Lane) {
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
	for i, name := range nics {
		if perNIC[i] == 0 {
			t.Errorf("NIC %s has no lane", name)
		}
	}
	for _, l := range lanes {
		own := l.Node
		if n := top.NIC(l.NIC); n != nil {
			own = n.Node
		} else if d := top.rdma(l.NIC); d != nil {
			own = d.Node
		}
		if n := top.node(own); n != nil && len(n.Allowed) > 0 && l.Node != own {
			t.Errorf("lane %+v: the NIC's own node %d has cpus", l, own)
		}
	}
	if cores > 0 && len(coreOf) != cores {
		t.Errorf("%d cores in use, %d asked for", len(coreOf), cores)
	}
}

func TestTopologySurvivesJSON(t *testing.T) {
	for _, name := range numatest.Machines(t) {
		top := discover(t, name)
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

// captured keeps what was discovered: expanding a tree is the slow part. Tests only read it.
var captured = map[string]*Topology{}

// discover discovers a captured machine.
func discover(t testing.TB, machine string) *Topology {
	t.Helper()
	if top := captured[machine]; top != nil {
		return top
	}
	top, err := Discover(numatest.Root(t, machine))
	if err != nil {
		t.Fatal(err)
	}
	captured[machine] = top
	return top
}

func ExampleCPUSet() {
	allowed, _ := ParseCPUs("0-7,16")
	isolated, _ := ParseCPUs("4-7")
	fmt.Println(allowed.Minus(isolated))
	// Output: 0-3,16
}
