package numa

import (
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Limits holds the limits of this process.
type Limits struct {
	// Memlock is RLIMIT_MEMLOCK in bytes, or math.MaxUint64 for unlimited. CanLock reports that CAP_IPC_LOCK lifts it.
	Memlock uint64
	CanLock bool
	// Descriptors is the number of files that the process may open. If 0, it is unknown.
	Descriptors uint64
}

// ReadLimits reads this process's limits.
func ReadLimits() Limits {
	var locked, files unix.Rlimit
	for resource, to := range map[int]*unix.Rlimit{unix.RLIMIT_MEMLOCK: &locked, unix.RLIMIT_NOFILE: &files} {
		if err := unix.Getrlimit(resource, to); err != nil {
			panic(fmt.Sprintf("getrlimit: %v", err)) // only for a resource that does not exist
		}
	}
	return Limits{Memlock: locked.Cur, CanLock: tree{"/"}.canLock(), Descriptors: files.Max} // Go raises its limit to the maximum
}

// canLock reports whether the process has CAP_IPC_LOCK. The kernel requires it in the initial user namespace, in which user numbers
// map to themselves.
func (t tree) canLock() bool {
	caps, err := strconv.ParseUint(t.field("proc/self/status", "CapEff:"), 16, 64)
	initial := strings.Join(strings.Fields(t.text("proc/self/uid_map")), " ") == "0 0 4294967295"
	return err == nil && initial && caps>>unix.CAP_IPC_LOCK&1 == 1
}
