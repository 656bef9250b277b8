package numa

import (
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/rackweave/rackweave/numa/numatest"
)

func TestCPUListsRead(t *testing.T) {
	for _, c := range []struct{ in, out string }{
		{"", ""},
		{"          (null)", ""},
		{"0\n", "0"},
		{"0-3,8", "0-3,8"},
		{"8,0-3", "0-3,8"},
		{"0,1,2,2-5", "0-5"},
		{"7,5,6", "5-7"},
	} {
		set, err := ParseCPUs(c.in)
		if err != nil || set.String() != c.out {
			t.Errorf("%q reads as %q, %v; want %q", c.in, set, err, c.out)
		}
	}
	for _, bad := range []string{"-", "3-1", "a", "0,", "1-2-3", "65536", "0-4294967295", "+1", strings.Repeat("0-65535,", 9) + "0"} {
		if set, err := ParseCPUs(bad); err == nil {
			t.Errorf("%.40q reads as %d cpus", bad, len(set))
		}
	}
}

func FuzzParseCPUs(f *testing.F) {
	f.Add("0-3,8")
	f.Add("(null)")
	f.Add("0-65535,0-65535")
	f.Fuzz(func(t *testing.T, s string) {
		set, err := ParseCPUs(s)
		if err != nil {
			return
		}
		if !slices.IsSorted(set) || len(set) > maxCPUs {
			t.Fatalf("%q: %d cpus, not sorted or too many", s, len(set))
		}
		back, err := ParseCPUs(set.String())
		if err != nil || !slices.Equal(back, set) {
			t.Fatalf("%q: %s reads back as %s, %v", s, set, back, err)
		}
	})
}

func TestCPUSetsAreSets(t *testing.T) {
	cpus := rapid.Custom(func(t *rapid.T) CPUSet {
		set := CPUSet(rapid.SliceOfDistinct(rapid.IntRange(0, 20), rapid.ID[int]).Draw(t, "cpus"))
		slices.Sort(set)
		return set
	})
	rapid.Check(t, func(t *rapid.T) {
		a, b := cpus.Draw(t, "a"), cpus.Draw(t, "b")
		and, minus := a.And(b), a.Minus(b)
		for cpu := range 21 {
			inA, inB := slices.Contains(a, cpu), slices.Contains(b, cpu)
			if and.Has(cpu) != (inA && inB) || minus.Has(cpu) != (inA && !inB) {
				t.Fatalf("cpu %d of %s and %s: and %s, minus %s", cpu, a, b, and, minus)
			}
		}
	})
}

func TestNamesSortByTheirNumbers(t *testing.T) {
	names := []string{"node10", "node2", "mlx5_10", "mlx5_2", "eth0", "eth", "6.18", "6.1.0", "6.1", "5.10", "a007", "a7b"}
	slices.SortFunc(names, compareNatural)
	want := []string{"5.10", "6.1", "6.1.0", "6.18", "a007", "a7b", "eth", "eth0", "mlx5_2", "mlx5_10", "node2", "node10"}
	if !slices.Equal(names, want) {
		t.Errorf("sorted %q, want %q", names, want)
	}
}

// Whatever NICs and however many cores are asked for on whatever machine: an error, or a map that holds the rules, and the
// same one each time.
func TestLaneMapsHoldTheirRules(t *testing.T) {
	var tops []*Topology
	for _, name := range numatest.Machines(t) {
		tops = append(tops, discover(t, name))
	}
	rapid.Check(t, func(r *rapid.T) {
		top := rapid.SampledFrom(tops).Draw(r, "machine")
		var nics []string
		cores := rapid.IntRange(0, 30).Draw(r, "cores")
		if names := top.deviceNames(); len(names) > 0 {
			nics = rapid.SliceOfDistinct(rapid.SampledFrom(names), rapid.ID[string]).Draw(r, "nics")
		}
		lanes, notes, err := top.Lanes(nics, cores)
		if err != nil {
			if cores == 0 {
				r.Fatalf("the default fails: %v", err)
			}
			return
		}
		checkLanes(t, top, nics, cores, lanes)
		again, notesAgain, _ := top.Lanes(nics, cores)
		if !reflect.DeepEqual(lanes, again) || !slices.Equal(notes, notesAgain) {
			r.Fatalf("two maps for one question:\n%s\n%s", LanesText(lanes, notes), LanesText(again, notesAgain))
		}
		if t.Failed() {
			r.Fatalf("%v, %d cores:\n%s", nics, cores, LanesText(lanes, notes))
		}
	})
}

func TestThisMachineIsDiscovered(t *testing.T) {
	top, err := Discover("")
	if err != nil {
		t.Fatal(err)
	}
	if len(top.Nodes) == 0 || len(top.CPUs) == 0 || len(top.Allowed) == 0 || top.MemoryBytes == 0 || top.Kernel == "" {
		t.Errorf("incomplete topology:\n%s", top)
	}
	lanes, _, err := top.Lanes(nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	checkLanes(t, top, nil, 0, lanes)
	if lim := ReadLimits(); lim.Memlock == 0 && !lim.CanLock || lim.Descriptors == 0 {
		t.Errorf("limits %+v", lim)
	}
}

func TestMachineWithoutSysfsIsAnError(t *testing.T) {
	for _, root := range []string{t.TempDir(), "/no/such/folder"} {
		if top, err := Discover(root); err == nil || !strings.HasPrefix(err.Error(), "discover topology: ") {
			t.Errorf("Discover(%q) = %v, %v", root, top, err)
		}
	}
}

func TestKernelWithoutNUMAIsOneNode(t *testing.T) {
	top, err := Discover(numatest.Expand(t, `
proc/meminfo = MemTotal: 1024 kB\nMemFree: 512 kB
proc/sys/kernel/osrelease = 6.1
sys/devices/system/cpu/online = 0-3
sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages = 3
sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages = 2
`))
	if err != nil {
		t.Fatal(err)
	}
	want := []Node{{
		CPUs: CPUSet{0, 1, 2, 3}, Allowed: CPUSet{0, 1, 2, 3}, MemAllowed: true, MemoryBytes: 1 << 20, FreeBytes: 512 << 10,
		HugePages: []HugePool{{PageBytes: 2 << 20, Pages: 3, Free: 2}},
	}}
	if !reflect.DeepEqual(top.Nodes, want) || len(top.Notes) != 1 {
		t.Errorf("nodes %+v, notes %q", top.Nodes, top.Notes)
	}
	if cores := top.cores(top.Allowed); len(cores) != 4 {
		t.Errorf("cores %v without topology files", cores)
	}
}

// Who narrowed the affinity on purpose is obeyed; isolated CPUs count only where nobody did.
func TestIsolatedCPUsCountUnlessAffinityWasNarrowed(t *testing.T) {
	for _, c := range []struct{ what, affinity, isolated, cpuset, want string }{
		{"nothing set", "0-7", "", "", "0-7"},
		{"isolcpus", "0-3", "4-7", "", "0-7"},
		{"isolcpus and taskset to others", "0-1", "4-7", "", "0-1"},
		{"isolcpus and taskset to an isolated one", "5", "4-7", "", "5"},
		{"isolcpus and a cpuset over both", "2-3", "4-7", "2-5", "2-5"},
		{"a cpuset of isolated ones only", "4-5", "4-7", "4-5", "4-5"},
		{"an affinity that names offline ones", "0-63", "", "", "0-7"},
	} {
		root := numatest.Expand(t, "sys/devices/system/cpu/online = 0-7\nsys/devices/system/cpu/isolated = "+c.isolated+
			"\nproc/self/status = Cpus_allowed_list:\t"+c.affinity+"\nproc/self/cgroup = 0::/job\nsys/fs/cgroup/job/cpuset.cpus.effective = "+c.cpuset)
		top, err := Discover(root)
		if err != nil {
			t.Fatal(err)
		}
		if got := top.Allowed.String(); got != c.want {
			t.Errorf("%s: allowed %s, want %s", c.what, got, c.want)
		}
	}
}

func TestMemoryBoundsAreFound(t *testing.T) {
	const gib = 1 << 30
	for _, c := range []struct {
		what, tree string
		node       int
		want       int64
		bound      string
	}{
		{"free memory", "", AnyNode, 4 * gib, "MemAvailable in /proc/meminfo"},
		{"cgroup v2, the innermost", `
proc/self/cgroup = 0::/a/b
sys/fs/cgroup/a/memory.max = 3221225472
sys/fs/cgroup/a/memory.current = 0
sys/fs/cgroup/a/b/memory.max = 2147483648
sys/fs/cgroup/a/b/memory.current = 1073741824
sys/fs/cgroup/a/b/memory.stat = anon 5\ninactive_file 4096`, AnyNode, gib + 4096, "/sys/fs/cgroup/a/b/memory.max"},
		{"cgroup v2, one further out", `
proc/self/cgroup = 0::/a/b
sys/fs/cgroup/a/memory.max = 1073741824
sys/fs/cgroup/a/memory.current = 1073741000
sys/fs/cgroup/a/b/memory.max = max`, AnyNode, 824, "/sys/fs/cgroup/a/memory.max"},
		{"cgroup v1", `
proc/self/cgroup = 4:memory:/job\n3:cpu,cpuacct:/\n0::/
sys/fs/cgroup/memory/job/memory.limit_in_bytes = 1073741824
sys/fs/cgroup/memory/job/memory.usage_in_bytes = 2073741824
sys/fs/cgroup/memory/memory.limit_in_bytes = 9223372036854771712`, AnyNode, 0, "/sys/fs/cgroup/memory/job/memory.limit_in_bytes"},
		{"a container that sees its own cgroup as the root", `
proc/self/cgroup = 0::/../../kubepods/pod1
sys/fs/cgroup/memory.max = 4096`, AnyNode, 4096, "/sys/fs/cgroup/memory.max"},
		{"a node", `
sys/devices/system/node/online = 0-1
sys/devices/system/node/node1/meminfo = Node 1 MemFree: 1024 kB\nNode 1 Inactive(file): 512 kB`, 1, 1536 << 10, "/sys/devices/system/node/node1/meminfo"},
	} {
		tr, err := openTree(numatest.Expand(t, "proc/meminfo = MemAvailable: 4194304 kB\n"+c.tree))
		if err != nil {
			t.Fatal(err)
		}
		if got, bound := tr.available(c.node); got != c.want || bound != c.bound {
			t.Errorf("%s: %d bytes by %s, want %d by %s", c.what, got, bound, c.want, c.bound)
		}
	}
	if got, bound := (tree{t.TempDir()}).available(AnyNode); got != math.MaxInt64 {
		t.Errorf("nothing known: %d by %s", got, bound)
	}
}

func TestLockingNeedsTheInitialUserNamespace(t *testing.T) {
	for _, c := range []struct {
		caps, uids string
		want       bool
	}{
		{"000001ffffffffff", "         0          0 4294967295", true},
		{"0000000000004000", "0 0 4294967295", true},
		{"0000000000003fff", "0 0 4294967295", false},
		{"000001ffffffffff", "0 1000 1", false},
	} {
		tr, err := openTree(numatest.Expand(t, "proc/self/status = CapEff:\t"+c.caps+"\nproc/self/uid_map = "+c.uids))
		if err != nil {
			t.Fatal(err)
		}
		if got := tr.canLock(); got != c.want {
			t.Errorf("capabilities %s, users %s: %v", c.caps, c.uids, got)
		}
	}
}

func TestBelievableLastLevelCaches(t *testing.T) {
	const mib = 1 << 20
	for _, c := range []struct {
		what, size, users, allowed, hypervisor string
		want                                   int64
	}{
		{"a machine of its own", "262144K", "0-7", "0-7", "", 256 * mib},
		{"a machine of its own with a cache for some CPUs", "32768K", "0-3", "0-7", "", 32 * mib},
		{"a virtual machine that claims the host's", "491520K", "0-7", "0-7", "KVM", 32 * mib},
		{"a virtual machine that claims little", "8192K", "0-7", "0-7", "KVM", 8 * mib},
		{"a process with two CPUs of eight", "65536K", "0-7", "2-3", "", 8 * mib},
		{"a machine that does not say who shares it", "65536K", "", "0-7", "", 64 * mib},
		{"a machine that says nothing", "", "", "0-7", "", 32 * mib},
	} {
		top := &Topology{Hypervisor: c.hypervisor}
		var users CPUSet
		for _, set := range []struct {
			to   *CPUSet
			text string
		}{{&top.Allowed, c.allowed}, {&users, c.users}} {
			var err error
			if *set.to, err = ParseCPUs(set.text); err != nil {
				t.Fatal(err)
			}
		}
		kib, _ := strconv.ParseInt(strings.TrimSuffix(c.size, "K"), 10, 64)
		for id := range 8 {
			cpu := CPU{ID: id, Siblings: CPUSet{id}}
			if len(users) == 0 || users.Has(id) {
				cpu.L3 = Cache{Bytes: kib << 10, CPUs: users}
			}
			top.CPUs = append(top.CPUs, cpu)
		}
		if got := top.LastLevelCache(); got != c.want {
			t.Errorf("%s: %s, want %s", c.what, FormatBytes(got), FormatBytes(c.want))
		}
	}
	if got := LastLevelCache(); got < mib || got > 2<<30 {
		t.Errorf("this machine: %s", FormatBytes(got))
	}
}

func TestCPUWithoutANameIsNamedByItsPart(t *testing.T) {
	top, err := Discover(numatest.Expand(t, `
proc/cpuinfo = processor	: 0\nCPU implementer	: 0x41\nCPU part	: 0xd40
sys/devices/system/cpu/online = 0
`))
	if err != nil || top.CPUModel != "CPU implementer 0x41 part 0xd40" {
		t.Errorf("%+v, %v", top, err)
	}
}

func TestAPCIeLinkIsReadOrUnknown(t *testing.T) {
	for _, tc := range []struct {
		speed, lanes string
		text         string
	}{
		{"2.5 GT/s PCIe", "1", "x1 2.5 GT/s"},
		{"8.0 GT/s PCIe", "16", "x16 8 GT/s"},
		{"16.0 GT/s PCIe", "8", "x8 16 GT/s"},
		{"64.0 GT/s PCIe", "16", "x16 64 GT/s"},
		{"8 GT/s", "4", "x4 8 GT/s"}, // as kernels before 5.10 write it
		{"Unknown", "63", "-"},
		{"16.0 GT/s PCIe", "255", "-"},
		{"16.0 GT/s PCIe", "0", "-"},
		{"-1 GT/s", "4", "-"},
	} {
		const dev = "sys/devices/pci0000:00/0000:00:02.0"
		root := numatest.Expand(t, dev+"/current_link_speed = "+tc.speed+"\n"+dev+"/current_link_width = "+tc.lanes+"\n")
		if p := (tree{root}).device("eth0", dev+"/virtio3").PCIe; p.String() != tc.text {
			t.Errorf("%s, %s lanes: %v; want %s", tc.speed, tc.lanes, p, tc.text)
		}
	}
}
