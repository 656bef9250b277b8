package numa

import (
	"fmt"
	"math"
	"path"
)

// memoryNodes lists the nodes that can hold memory. It lists node 0 if the kernel has no nodes.
func (t tree) memoryNodes() CPUSet {
	for _, file := range []string{"has_memory", "online"} {
		if nodes := t.cpus(path.Join("sys/devices/system/node", file)); len(nodes) > 0 {
			return nodes
		}
	}
	return CPUSet{0}
}

// available returns the ordinary memory that can be taken now without evicting other data, and the name of the bound. If node is
// -1, any node counts. Huge page pools are not part of it.
func (t tree) available(node int) (bytes int64, bound string) {
	bytes, bound = math.MaxInt64, "nothing known"
	if n := t.kib("proc/meminfo", "MemAvailable"); n > 0 {
		bytes, bound = n, "MemAvailable in /proc/meminfo"
	}
	if n, limit := t.cgroupMemory(); n < bytes {
		bytes, bound = n, limit
	}
	// Beyond the memory of a bound node, the kernel kills instead of refusing. With one node MemAvailable is that memory.
	if node >= 0 && len(t.memoryNodes()) > 1 {
		file := fmt.Sprintf("sys/devices/system/node/node%d/meminfo", node)
		n := t.kib(file, "MemFree") + t.kib(file, "Active(file)") + t.kib(file, "Inactive(file)") + t.kib(file, "SReclaimable")
		if n < bytes {
			bytes, bound = n, "/"+file
		}
	}
	return bytes, bound
}

// AvailableMemory returns the ordinary memory that this process can take now without evicting other data.
func AvailableMemory() int64 {
	bytes, _ := tree{"/"}.available(AnyNode)
	return bytes
}
