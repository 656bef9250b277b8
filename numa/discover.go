package numa

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/klauspost/cpuid/v2"
)

// Discover reads a machine's topology from the sysfs and procfs below root. If root is empty, it reads this machine's.
//
// The allowed CPUs are the affinity of the calling thread, so it must be called from a goroutine that is not pinned. With isolcpus=
// the kernel removes the isolated CPUs from every process's default affinity, although it lets a thread be pinned to them. They
// count as allowed where the process's cpuset holds them, unless the affinity was narrowed (taskset(1), systemd's CPUAffinity=). A
// narrowed affinity is used unchanged.
//
// Properties that the machine does not report stay zero and, where it matters, are noted. Discover returns an error if sysfs is
// missing.
func Discover(root string) (*Topology, error) {
	tr, err := openTree(root)
	if err != nil {
		return nil, fmt.Errorf("discover topology: %w", err)
	}
	online := tr.cpus("sys/devices/system/cpu/online")
	if len(online) == 0 {
		return nil, fmt.Errorf("discover topology: %s lists no cpu: is sysfs mounted?", tr.path("sys/devices/system/cpu/online"))
	}
	t := &Topology{
		CPUModel:       tr.cpuModel(),
		Kernel:         tr.text("proc/sys/kernel/osrelease"),
		MemoryBytes:    tr.kib("proc/meminfo", "MemTotal"),
		AvailableBytes: tr.kib("proc/meminfo", "MemAvailable"),
		Isolated:       tr.cpus("sys/devices/system/cpu/isolated"),
		NoHzFull:       tr.cpus("sys/devices/system/cpu/nohz_full"),
		THP: THP{
			Anon:  tr.chosen("sys/kernel/mm/transparent_hugepage/enabled"),
			Shmem: tr.chosen("sys/kernel/mm/transparent_hugepage/shmem_enabled"),
		},
	}
	t.Hypervisor = tr.hypervisor()
	t.Allowed = tr.allowed(online, t.Isolated)
	t.discoverNodes(tr, online)
	t.discoverCPUs(tr, online)
	t.discoverNICs(tr)
	t.discoverRDMA(tr)
	return t, nil
}

// cpuModel returns the name of the CPU. Kernels on arm64 give no name, and the implementer's and the part's numbers replace it.
func (t tree) cpuModel() string {
	const cpuinfo = "proc/cpuinfo"
	name := t.field(cpuinfo, "model name\t:")
	if name == "" && t.own() {
		name = cpuid.CPU.BrandName
	}
	if part := t.field(cpuinfo, "CPU part\t:"); name == "" && part != "" {
		name = fmt.Sprintf("CPU implementer %s part %s", t.field(cpuinfo, "CPU implementer\t:"), part)
	}
	return name
}

// hypervisor returns the name of the hypervisor if this machine is a virtual one. Only the CPU knows the name. A captured machine's
// flags show only that it has one.
func (t tree) hypervisor() string {
	if t.own() {
		return cpuid.CPU.HypervisorVendorString
	}
	if slices.Contains(strings.Fields(t.field("proc/cpuinfo", "flags\t\t:")), "hypervisor") {
		return "unknown"
	}
	return ""
}

// allowed returns the CPUs to which this process may pin threads.
func (t tree) allowed(online, isolated CPUSet) CPUSet {
	// The process's file is that of its first thread, which may be pinned. The thread has its own file.
	const name = "Cpus_allowed_list:"
	affinity, err := ParseCPUs(cmp.Or(t.field("proc/thread-self/status", name), t.field("proc/self/status", name)))
	if err != nil || len(affinity) == 0 {
		affinity = online
	}
	affinity = affinity.And(online)
	reach, ok := t.cpuset()
	if !ok {
		reach = online
	}
	reach = reach.And(online)
	if slices.Equal(affinity, reach.Minus(isolated)) {
		return reach
	}
	return affinity
}

func (t *Topology) discoverNodes(tr tree, online CPUSet) {
	const dir = "sys/devices/system/node"
	ids := tr.cpus(dir + "/online")
	if len(ids) == 0 {
		t.Notes = append(t.Notes, "the kernel knows no NUMA nodes: all cpus and memory are taken as node 0")
		t.Nodes = []Node{{
			CPUs: online, Allowed: t.Allowed, MemAllowed: true, MemoryBytes: t.MemoryBytes,
			FreeBytes: tr.kib("proc/meminfo", "MemFree"), HugePages: tr.hugePools("sys/kernel/mm/hugepages"),
		}}
		return
	}
	mems, err := ParseCPUs(tr.field("proc/self/status", "Mems_allowed_list:"))
	for _, id := range ids {
		at := fmt.Sprintf("%s/node%d", dir, id)
		n := Node{
			ID: id, CPUs: tr.cpus(at + "/cpulist").And(online),
			MemAllowed:  err != nil || len(mems) == 0 || mems.Has(id),
			MemoryBytes: tr.kib(at+"/meminfo", "MemTotal"), FreeBytes: tr.kib(at+"/meminfo", "MemFree"),
			HugePages: tr.hugePools(at + "/hugepages"),
		}
		n.Allowed = n.CPUs.And(t.Allowed)
		for d := range strings.FieldsSeq(tr.text(at + "/distance")) {
			v, _ := strconv.Atoi(d)
			n.Distances = append(n.Distances, v)
		}
		t.Nodes = append(t.Nodes, n)
	}
}

func (t tree) hugePools(dir string) []HugePool {
	var pools []HugePool
	for _, name := range t.names(dir) {
		size, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimPrefix(name, "hugepages-"), "kB"), 10, 64)
		if err != nil {
			continue
		}
		pages, _ := t.number(path.Join(dir, name, "nr_hugepages"))
		free, _ := t.number(path.Join(dir, name, "free_hugepages"))
		pools = append(pools, HugePool{PageBytes: size << 10, Pages: pages, Free: free})
	}
	return pools
}

func (t *Topology) discoverCPUs(tr tree, online CPUSet) {
	sockets := map[int]bool{}
	for _, id := range online {
		at := fmt.Sprintf("sys/devices/system/cpu/cpu%d", id)
		socket, _ := tr.number(at + "/topology/physical_package_id")
		core, _ := tr.number(at + "/topology/core_id")
		c := CPU{
			ID: id, Socket: max(0, int(socket)), Core: int(core),
			Siblings: tr.cpus(at + "/topology/thread_siblings_list").And(online),
			Governor: tr.text(at + "/cpufreq/scaling_governor"),
		}
		if !c.Siblings.Has(id) {
			c.Siblings = CPUSet{id}
		}
		if n := find(t.Nodes, func(n Node) bool { return n.CPUs.Has(id) }); n != nil {
			c.Node = n.ID
		}
		for _, index := range tr.names(at + "/cache") {
			dir := path.Join(at, "cache", index)
			switch tr.text(dir + "/level") {
			case "2":
				c.L2 = tr.cache(dir)
			case "3":
				c.L3 = tr.cache(dir)
			}
		}
		if tr.own() {
			c.L2.Bytes = cmp.Or(c.L2.Bytes, int64(max(0, cpuid.CPU.Cache.L2)))
			c.L3.Bytes = cmp.Or(c.L3.Bytes, int64(max(0, cpuid.CPU.Cache.L3)))
		}
		sockets[c.Socket] = true
		t.CPUs = append(t.CPUs, c)
	}
	t.Sockets = len(sockets)
}

// cache reads a cache's size, which sysfs gives as in "1024K", and the CPUs that share it.
func (t tree) cache(dir string) Cache {
	kib, _ := strconv.ParseInt(strings.TrimSuffix(t.text(dir+"/size"), "K"), 10, 64)
	return Cache{Bytes: kib << 10, CPUs: t.cpus(dir + "/shared_cpu_list")}
}
