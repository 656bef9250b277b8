package report

import (
	"runtime"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
)

func tree(files map[string]string) fstest.MapFS {
	root := fstest.MapFS{}
	for name, data := range files {
		root[name] = &fstest.MapFile{Data: []byte(data)}
	}
	return root
}

func TestReadMachineOfCapturedTrees(t *testing.T) {
	const cache = "sys/devices/system/cpu/cpu0/cache/"
	for _, c := range []struct {
		name  string
		files map[string]string
		want  Machine
		text  string
	}{
		{
			name: "x86-64, confined to 6 of its CPUs",
			files: map[string]string{
				"proc/cpuinfo":              "processor\t: 0\nvendor_id\t: GenuineIntel\nmodel name\t: Intel(R) Xeon(R) CPU E5-2690 v4 @ 2.60GHz\n\nprocessor\t: 1\nmodel name\t: other\n",
				"proc/self/status":          "Name:\trackweave\nCpus_allowed:\t3f\nCpus_allowed_list:\t0-3,8,10\n",
				"proc/meminfo":              "MemTotal:       131072000 kB\nMemFree:        1 kB\n",
				"proc/sys/kernel/osrelease": "6.1.0-13-amd64\n",
				cache + "index0/level":      "1\n", cache + "index0/type": "Data\n", cache + "index0/size": "32K\n",
				cache + "index1/level": "3\n", cache + "index1/type": "Unified\n", cache + "index1/size": "35840K\n",
			},
			want: Machine{
				CPU: "Intel(R) Xeon(R) CPU E5-2690 v4 @ 2.60GHz", Cores: 6, Memory: 131072000 << 10, Kernel: "6.1.0-13-amd64",
				Caches: []Cache{{1, "Data", 32 << 10}, {3, "Unified", 35 << 20}},
			},
			text: "Intel(R) Xeon(R) CPU E5-2690 v4 @ 2.60GHz, 6 cores, 125 GiB, L3 35 MiB, Linux 6.1.0-13-amd64, ",
		},
		{
			name: "arm64 names a part, not a model",
			files: map[string]string{
				"proc/cpuinfo":            "processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd40\n",
				"proc/self/status":        "Cpus_allowed_list:\t0-3\n", // of the first thread
				"proc/thread-self/status": "Cpus_allowed_list:\t0\n",
				"proc/meminfo":            "MemTotal: 1048576 kB\n",
			},
			want: Machine{CPU: "CPU implementer 0x41 part 0xd40", Cores: 1, Memory: 1 << 30},
			text: "CPU implementer 0x41 part 0xd40, 1 core, 1 GiB, ",
		},
		{name: "nothing to read", want: Machine{}, text: "unknown CPU, 0 cores, 0 B, "},
		{
			name: "nonsense",
			files: map[string]string{
				"proc/self/status": "Cpus_allowed_list:\t3-1\n",
				"proc/meminfo":     "MemTotal: lots\n",
			},
			text: "unknown CPU, 0 cores, 0 B, ",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.want.Go = runtime.Version()
			got := ReadMachine(tree(c.files))
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
