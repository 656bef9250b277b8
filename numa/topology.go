// Package numa describes the machine. [Discover] finds its NUMA nodes, cores, NICs and RDMA devices, and their distances.
// [Topology.Lanes] chooses the core that serves each NIC. [NewArena] makes memory on a node, in the largest pages available. [Pin]
// keeps a thread on a core. [LastLevelCache] returns the part of the cache that a process can rely on.
//
// Discovery reads sysfs and procfs below a root, which may be a captured tree, and returns a plain value.
package numa

import (
	"fmt"
	"slices"
)

// Topology describes a machine. Its lists are in ascending or natural order, so equal machines have equal values.
type Topology struct {
	CPUModel string `json:"cpu_model,omitempty"`
	// Hypervisor is the name of the hypervisor of a virtual machine. It is empty if the machine is not virtual, or if it does not
	// report the name.
	Hypervisor     string `json:"hypervisor,omitempty"`
	Kernel         string `json:"kernel"`
	Sockets        int    `json:"sockets"`
	MemoryBytes    int64  `json:"memory_bytes"`
	AvailableBytes int64  `json:"available_bytes"`
	// Allowed is the CPUs on which this process may run. [Discover] defines the treatment of isolated ones.
	Allowed  CPUSet       `json:"allowed_cpus"`
	Isolated CPUSet       `json:"isolated_cpus,omitempty"`
	NoHzFull CPUSet       `json:"nohz_full_cpus,omitempty"`
	THP      THP          `json:"transparent_huge_pages"`
	Nodes    []Node       `json:"nodes"`
	CPUs     []CPU        `json:"cpus"`
	NICs     []NIC        `json:"nics"`
	RDMA     []RDMADevice `json:"rdma_devices"`
	// Notes hold assumptions and omissions, for a person.
	Notes []string `json:"notes,omitempty"`
}

// THP is the setting of transparent huge pages in /sys/kernel/mm/transparent_hugepage: always, within_size, advise, madvise, never,
// …. It is empty if the kernel has none.
type THP struct {
	Anon  string `json:"anonymous"`
	Shmem string `json:"shmem"`
}

// Node is a NUMA node. A node without CPUs has only memory.
type Node struct {
	ID          int        `json:"id"`
	CPUs        CPUSet     `json:"cpus"`         // online
	Allowed     CPUSet     `json:"allowed_cpus"` // the CPUs among them on which this process may run
	MemAllowed  bool       `json:"memory_allowed"`
	MemoryBytes int64      `json:"memory_bytes"`
	FreeBytes   int64      `json:"free_bytes"`
	HugePages   []HugePool `json:"huge_pages,omitempty"`
	// Distances holds the distance to every node, in the order of Topology.Nodes. 10 is local (ACPI SLIT).
	Distances []int `json:"distances,omitempty"`
}

// HugePool is a node's pool of huge pages of one size.
type HugePool struct {
	PageBytes int64 `json:"page_bytes"`
	Pages     int64 `json:"pages"`
	Free      int64 `json:"free"`
}

// CPU is an online logical CPU.
type CPU struct {
	ID       int    `json:"id"`
	Node     int    `json:"node"`
	Socket   int    `json:"socket"`
	Core     int    `json:"core"`     // number of the core, unique within its socket only
	Siblings CPUSet `json:"siblings"` // CPUs of the same core, including itself
	L2       Cache  `json:"l2"`
	L3       Cache  `json:"l3"`
	Governor string `json:"governor,omitempty"`
}

// Cache is a cache and the CPUs that share it, or zero if that is unknown.
type Cache struct {
	Bytes int64  `json:"bytes"`
	CPUs  CPUSet `json:"cpus"`
}

// Device is a network or RDMA device, and its place.
type Device struct {
	Name string `json:"name"`
	// Node is the NUMA node to which it is attached. If NodeUnknown, the machine does not report the node, and it is assumed to be 0.
	Node        int    `json:"node"`
	NodeUnknown bool   `json:"node_unknown,omitempty"`
	PCI         string `json:"pci,omitempty"`
	PCIe        PCIe   `json:"pcie,omitzero"`
	Driver      string `json:"driver,omitempty"`
}

// NIC is a network device with hardware, real or emulated, behind it.
type NIC struct {
	Device
	SpeedMbps int      `json:"speed_mbps"` // 0 if unknown, or without a link
	MTU       int      `json:"mtu"`
	OperState string   `json:"operstate"`
	RDMA      []string `json:"rdma,omitempty"` // names of its RDMA devices
}

// RDMADevice is an RDMA device in libibverbs' list, except devices on the loopback interface.
type RDMADevice struct {
	Device
	Soft    bool     `json:"soft,omitempty"` // made in software on top of a network device: rxe, siw
	NetDevs []string `json:"netdevs,omitempty"`
	Ports   []Port   `json:"ports"`
}

// PCIe is the link by which a device is attached, in its present state. It is zero if the link is unknown or not PCIe.
type PCIe struct {
	Lanes        int     `json:"lanes"`
	GigaTransfer float64 `json:"gt_per_second"` // of a lane, in each direction
}

func (p PCIe) String() string {
	if p.Lanes == 0 {
		return "-"
	}
	return fmt.Sprintf("x%d %g GT/s", p.Lanes, p.GigaTransfer)
}

// Port is a port of an RDMA device.
type Port struct {
	Num       int    `json:"num"`
	State     string `json:"state"`      // ACTIVE, DOWN, …
	LinkLayer string `json:"link_layer"` // Ethernet or InfiniBand
	RateMbps  int    `json:"rate_mbps"`
	GIDs      []GID  `json:"gids"` // the entries that are set
}

// GID is an entry of a port's GID table.
type GID struct {
	Index  int    `json:"index"`
	GID    string `json:"gid"`
	Type   string `json:"type"` // "RoCE v2", "IB/RoCE v1"
	NetDev string `json:"netdev,omitempty"`
}

// Active reports whether a port of the device can carry traffic.
func (d *RDMADevice) Active() bool {
	return slices.ContainsFunc(d.Ports, func(p Port) bool { return p.State == "ACTIVE" })
}

// RateMbps returns the rate of the device's active ports together, or of all ports if none is active.
func (d *RDMADevice) RateMbps() int {
	sum := 0
	for _, p := range d.Ports {
		if p.State == "ACTIVE" || !d.Active() {
			sum += p.RateMbps
		}
	}
	return sum
}

// node returns the node of a number, or nil.
func (t *Topology) node(id int) *Node {
	return find(t.Nodes, func(n Node) bool { return n.ID == id })
}

// find returns the first element that is one, or nil.
func find[T any](all []T, is func(T) bool) *T {
	if i := slices.IndexFunc(all, is); i >= 0 {
		return &all[i]
	}
	return nil
}

// cores groups CPUs by physical core, in order of each core's first CPU.
func (t *Topology) cores(cpus CPUSet) []CPUSet {
	var cores []CPUSet
	for _, c := range t.CPUs {
		if own := c.Siblings.And(cpus); len(own) > 0 && own[0] == c.ID {
			cores = append(cores, own)
		}
	}
	return cores
}

// CanCollapse reports whether arenas can have transparent huge pages whatever their setting, because the kernel has them and
// MADV_COLLAPSE (6.1).
func (t *Topology) CanCollapse() bool {
	return t.THP.Anon != "" && compareNatural(t.Kernel, "6.1") >= 0
}
