package report

import (
	"runtime"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rackweave/rackweave/numa"
	"github.com/rackweave/rackweave/numa/numatest"
)

func TestMachinesAreDescribed(t *testing.T) {
	vm, err := numa.Discover(numatest.Root(t, "vm"))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		top  *numa.Topology
		want Machine
		text string
	}{
		{
			"a virtual machine", vm,
			Machine{
				CPU: "AMD EPYC", Cores: 2, Memory: 24684084 << 10, Kernel: "6.18.44-fc-v669",
				Caches: []Cache{{Level: 2, Bytes: 1 << 20}, {Level: 3, Bytes: 32 << 20, CountOn: 8 << 20}},
			},
			"AMD EPYC, 2 cores, 23.5 GiB, L2 1 MiB, L3 32 MiB (8 MiB to count on), Linux 6.18.44-fc-v669, ",
		},
		{
			"a machine of its own",
			&numa.Topology{
				CPUModel: "Xeon", Allowed: numa.CPUSet{0}, MemoryBytes: 125 << 30,
				CPUs: []numa.CPU{{L3: numa.Cache{Bytes: 35 << 20, CPUs: numa.CPUSet{0}}}},
			},
			Machine{CPU: "Xeon", Cores: 1, Memory: 125 << 30, Caches: []Cache{{Level: 3, Bytes: 35 << 20}}},
			"Xeon, 1 core, 125 GiB, L3 35 MiB, ",
		},
		{"nothing known", &numa.Topology{}, Machine{}, "unknown CPU, 0 cores, 0 B, "},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.want.Go = runtime.Version()
			got := describe(c.top)
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("machine (-want +got):\n%s", diff)
			}
			if text := got.String(); text != c.text+runtime.Version() {
				t.Errorf("String() = %q, want %q", text, c.text+runtime.Version())
			}
		})
	}
}

func TestThisMachineHasCoresAndMemory(t *testing.T) {
	m := ThisMachine()
	if m.Cores != runtime.NumCPU() {
		t.Errorf("Cores = %d, the runtime counts %d", m.Cores, runtime.NumCPU())
	}
	if m.Memory == 0 || m.Kernel == "" {
		t.Errorf("memory %d, kernel %q: something was not read", m.Memory, m.Kernel)
	}
}

func TestSizePrintsTheLargestUnitThatLeavesOne(t *testing.T) {
	for bytes, want := range map[uint64]string{0: "0 B", 1023: "1023 B", 1024: "1 KiB", 1536: "1.5 KiB", 32 << 10: "32 KiB",
		100_000_000: "95.4 MiB", 3 << 50: "3 PiB"} {
		if got := Size(bytes); got != want {
			t.Errorf("Size(%d) = %q, want %q", bytes, got, want)
		}
	}
}
