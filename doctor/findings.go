package doctor

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/rackweave/rackweave/numa"
)

// findings collects findings, in order.
type findings []Finding

func (f *findings) add(check string, level Level, remedy, detail string, args ...any) {
	*f = append(*f, Finding{check, level, fmt.Sprintf(detail, args...), remedy})
}

// Findings returns the settings of a machine that help or hinder, in a fixed order. It only reads its arguments.
func Findings(t *numa.Topology, lim numa.Limits) []Finding {
	var f findings
	f.memlock(t, lim)
	f.descriptors(lim)
	f.cpuset(t)
	f.hugePages(t)
	f.transparentHugePages(t)
	f.cache(t)
	f.governor(t)
	f.isolation(t)
	for i := range t.NICs {
		f.nic(t, &t.NICs[i])
	}
	for i := range t.RDMA {
		f.rdma(t, &t.RDMA[i])
	}
	return f
}

func (f *findings) memlock(t *numa.Topology, lim numa.Limits) {
	const remedy = "LimitMEMLOCK=infinity in the systemd unit; " +
		"or \"* - memlock unlimited\" in /etc/security/limits.d/rackweave.conf and a new login"
	has := numa.FormatBytes(int64(min(lim.Memlock, math.MaxInt64)))
	switch {
	case lim.Memlock == math.MaxUint64:
		f.add("memlock", LevelOK, "", "unlimited")
	case lim.CanLock:
		f.add("memlock", LevelOK, "", "%s, lifted by the capability IPC_LOCK", has)
	case len(t.RDMA) == 0:
		f.add("memlock", LevelInfo, "", "%s; it matters for RDMA devices only, and this machine has none", has)
	default:
		f.add("memlock", LevelWarn, remedy, "%s; arenas, queues and completion queues count against it", has)
	}
}

// enoughDescriptors suffices for several hundred workers, with a connection each, and some files in each lane.
const enoughDescriptors = 4096

func (f *findings) descriptors(lim numa.Limits) {
	switch {
	case lim.Descriptors == 0: // unknown
	case lim.Descriptors < enoughDescriptors:
		f.add("descriptors", LevelWarn, "LimitNOFILE=65536 in the systemd unit; "+
			"or \"* - nofile 65536\" in /etc/security/limits.d/rackweave.conf and a new login",
			"%d files may be open; each worker takes some, in each lane", lim.Descriptors)
	default:
		f.add("descriptors", LevelOK, "", "%d files may be open", lim.Descriptors)
	}
}

func (f *findings) cpuset(t *numa.Topology) {
	if len(t.Allowed) == len(t.CPUs) {
		return
	}
	f.add("cpuset", LevelInfo, "", "%d of %d cpus may be used: %s", len(t.Allowed), len(t.CPUs), t.Allowed)
	for _, n := range t.Nodes {
		if len(n.CPUs) > 0 && !n.MemAllowed && len(n.Allowed) > 0 {
			f.add("cpuset", LevelWarn, fmt.Sprintf("add node %d to cpuset.mems", n.ID),
				"node %d: cpus %s may be used, its memory may not", n.ID, n.Allowed)
		}
	}
}

func (f *findings) hugePages(t *numa.Topology) {
	for _, n := range t.Nodes {
		if n.MemoryBytes == 0 {
			continue
		}
		var pools []string
		pages, free := int64(0), int64(0)
		for _, p := range n.HugePages {
			pools = append(pools, fmt.Sprintf("%d of %d of %s free", p.Free, p.Pages, numa.FormatBytes(p.PageBytes)))
			pages += p.Pages
			free += p.Free
		}
		const reserve = "echo PAGES > /sys/devices/system/node/node%d/hugepages/hugepages-2048kB/nr_hugepages, early after boot"
		detail := fmt.Sprintf("node %d: %s", n.ID, unknown(strings.Join(pools, ", ")))
		switch {
		case free > 0:
			f.add("huge pages", LevelOK, "", "%s", detail)
		case pages > 0:
			f.add("huge pages", LevelInfo, fmt.Sprintf(reserve, n.ID), "%s: all taken", detail)
		case t.CanCollapse():
			f.add("huge pages", LevelInfo, fmt.Sprintf(reserve, n.ID),
				"%s: transparent huge pages take their place as long as memory is not fragmented", detail)
		default:
			f.add("huge pages", LevelWarn, fmt.Sprintf(reserve, n.ID), "%s", detail)
		}
	}
}

func (f *findings) transparentHugePages(t *numa.Topology) {
	const dir = "/sys/kernel/mm/transparent_hugepage/"
	switch t.THP.Anon {
	case "":
		f.add("transparent huge pages", LevelWarn, "a kernel with CONFIG_TRANSPARENT_HUGEPAGE", "the kernel has none")
		return
	case "never":
		f.add("transparent huge pages", LevelWarn, "echo madvise > "+dir+"enabled",
			"anonymous memory: never; a worker's own gradients stay in small pages")
	default:
		f.add("transparent huge pages", LevelOK, "", "anonymous memory: %s", t.THP.Anon)
	}
	switch {
	case t.CanCollapse():
		f.add("transparent huge pages", LevelOK, "", "shared memory: %s; arenas get them by MADV_COLLAPSE all the same",
			unknown(t.THP.Shmem))
	case slices.Contains([]string{"always", "within_size", "advise", "force"}, t.THP.Shmem):
		f.add("transparent huge pages", LevelOK, "", "shared memory: %s", t.THP.Shmem)
	default:
		f.add("transparent huge pages", LevelWarn, "echo advise > "+dir+"shmem_enabled",
			"shared memory: %s, and the kernel (%s, before 6.1) cannot collapse on demand", unknown(t.THP.Shmem), t.Kernel)
	}
}

func (f *findings) cache(t *numa.Topology) {
	claimed := int64(0)
	for _, c := range t.CPUs {
		claimed = max(claimed, c.L3.Bytes)
	}
	counted := numa.FormatBytes(t.LastLevelCache())
	switch {
	case claimed == 0:
		f.add("last-level cache", LevelInfo, "", "its size is unknown; %s is counted on", counted)
	case t.LastLevelCache() == claimed:
		f.add("last-level cache", LevelOK, "", "%s", counted)
	default:
		f.add("last-level cache", LevelInfo, "", "%s is claimed, but others use it too; %s is counted on",
			numa.FormatBytes(claimed), counted)
	}
}

func (f *findings) governor(t *numa.Topology) {
	governors := t.Governors()
	switch {
	case len(governors) == 0:
		f.add("governor", LevelOK, "", "frequency is not scaled by this kernel, as in most virtual machines")
	case slices.Equal(governors, []string{"performance"}):
		f.add("governor", LevelOK, "", "performance")
	default:
		f.add("governor", LevelWarn, "cpupower frequency-set -g performance",
			"%s: cores that wait run slowly", strings.Join(governors, ", "))
	}
}

func (f *findings) isolation(t *numa.Topology) {
	usable := t.Isolated.And(t.Allowed)
	switch {
	case len(usable) > 0:
		f.add("isolated cores", LevelOK, "", "cpus %s", usable)
		if tick := usable.Minus(t.NoHzFull); len(tick) > 0 {
			f.add("isolated cores", LevelInfo, fmt.Sprintf("nohz_full=%s rcu_nocbs=%s on the kernel command line", usable, usable),
				"cpus %s still get the timer tick", tick)
		}
	case len(t.Isolated) > 0:
		f.add("isolated cores", LevelWarn, "start without taskset, or with these cpus in the cpuset",
			"cpus %s are isolated, but this process may not use them", t.Isolated)
	default:
		f.add("isolated cores", LevelInfo, "isolcpus=LIST nohz_full=LIST rcu_nocbs=LIST on the kernel command line",
			"none: other work may run on the cores that aggregate")
	}
}

func (f *findings) nic(t *numa.Topology, n *numa.NIC) {
	if n.NodeUnknown && len(t.Nodes) > 1 {
		f.add("NIC "+n.Name, LevelWarn,
			"set the slot's proximity (NUMA) in the firmware, or the virtual machine's device on the node's own bus",
			"the machine does not say which node it is on; node 0 is assumed")
	}
	switch {
	case n.OperState == "down":
		f.add("NIC "+n.Name, LevelInfo, "ip link set "+n.Name+" up", "down")
	case len(n.RDMA) == 0 && n.MTU < 9000 && n.SpeedMbps >= 10000:
		f.add("NIC "+n.Name, LevelInfo, "ip link set "+n.Name+" mtu 9000, on every host and switch port of the path",
			"mtu %d: with large frames tcp costs less", n.MTU)
	}
}

// roceMTU is the least MTU of a network device for RoCE packets with 4096 bytes of payload.
const roceMTU = 4200

func (f *findings) rdma(t *numa.Topology, d *numa.RDMADevice) {
	check := "RDMA " + d.Name
	if d.NodeUnknown && len(t.Nodes) > 1 {
		f.add(check, LevelWarn, "", "the machine does not say which node it is on; node 0 is assumed")
	}
	if !d.Active() {
		f.add(check, LevelWarn, "connect the cable; InfiniBand needs a subnet manager too", "no port is active")
		return
	}
	if !slices.ContainsFunc(d.Ports, func(p numa.Port) bool { return p.LinkLayer == "Ethernet" }) {
		return
	}
	for _, dev := range d.NetDevs {
		if n := t.NIC(dev); n != nil && n.MTU < roceMTU {
			f.add(check, LevelWarn, "ip link set "+dev+" mtu 9000, on every host and switch port of the path",
				"mtu of %s is %d: packets of 4096 bytes need %d", dev, n.MTU, roceMTU)
		}
	}
	v2 := func(p numa.Port) bool {
		return slices.ContainsFunc(p.GIDs, func(g numa.GID) bool { return g.Type == "RoCE v2" })
	}
	if !slices.ContainsFunc(d.Ports, v2) {
		f.add(check, LevelFail, "give its network device an address, and check cma_roce_mode", "no RoCE v2 GID")
	}
	if d.Soft {
		f.add(check, LevelInfo, "", "made in software: for correctness, not for speed; no flow control to set up")
		return
	}
	dev := "DEVICE"
	if len(d.NetDevs) > 0 {
		dev = d.NetDevs[0]
	}
	f.add(check, LevelInfo, fmt.Sprintf("dcb pfc set dev %s prio-pfc all:off 3:on; dcb app add dev %s dscp-prio 26:3; "+
		"mark ECN on the switch for the same class", dev, dev),
		"RoCE loses packets under incast unless priority flow control or ECN is on along the path, which cannot be seen from here")
}

func unknown(s string) string { return cmp.Or(s, "unknown") }
