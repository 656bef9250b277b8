package numa

import (
	"fmt"
	"math"
	"path"
)

// memoryNodes lists the nodes that can hold memory; node 0 where the kernel knows no nodes.
func (t tree) memoryNodes() CPUSet {
	for _, file := range []string{"has_memory", "online"} {
		if nodes := t.cpus(path.Join("sys/devices/system/node", file)); len(nodes) > 0 {
			return nodes
		}
	}
	return CPUSet{0}
}

// available returns how much ordinary memory can be taken now without pushing anything out, and what sets that bound. node -1
// is any. Huge page pools are not part of it.
func (t tree) available(node int) (bytes int64, bound string) {
	bytes, bound = math.MaxInt64, "nothing known"
	if n := t.kib("proc/meminfo", "MemAvailable"); n > 0 {
		bytes, bound = n, "MemAvailable in /proc/meminfo"
	}
	if n, limit := t.cgroupMemory(); n < bytes {
		bytes, bound = n, limit
	}
	// Beyond what a bound node has, the kernel kills instead of refusing. With one node MemAvailable has told.
	if node >= 0 && len(t.memoryNodes()) > 1 {
		file := fmt.Sprintf("sys/devices/system/node/node%d/meminfo", node)
		n := t.kib(file, "MemFree") + t.kib(file, "Active(file)") + t.kib(file, "Inactive(file)") + t.kib(file, "SReclaimable")
		if n < bytes {
			bytes, bound = n, "/"+file
		}
	}
	return bytes, bound
}

// AvailableMemory returns how much ordinary memory this process can take now without pushing anything out.
func AvailableMemory() int64 {
	bytes, _ := tree{"/"}.available(AnyNode)
	return bytes
}

// freeHugePages returns how many huge pages of a size are free in a node's pool, or in all pools for -1.
func (t tree) freeHugePages(size int64, node int) int64 {
	at := "sys/kernel/mm"
	if node >= 0 && t.exists("sys/devices/system/node") {
		at = fmt.Sprintf("sys/devices/system/node/node%d", node)
	}
	free, _ := t.number(fmt.Sprintf("%s/hugepages/hugepages-%dkB/free_hugepages", at, size>>10))
	return free
}
