package numa

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Limits are what the system lets this process do, and what it wants.
type Limits struct {
	// Memlock is RLIMIT_MEMLOCK in bytes, math.MaxUint64 for unlimited. CanLock tells that CAP_IPC_LOCK lifts it.
	Memlock uint64 `json:"memlock"`
	CanLock bool   `json:"can_lock"`
	// Want is how many bytes the process will register with RDMA devices; 0 is unknown.
	Want uint64 `json:"want"`
}

// ReadLimits reads this process's limits. want is how many bytes it will register.
func ReadLimits(want uint64) (Limits, error) {
	var r unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &r); err != nil {
		return Limits{}, fmt.Errorf("read memlock limit: %w", err)
	}
	tr, err := openTree("")
	if err != nil {
		return Limits{}, fmt.Errorf("read memlock limit: %w", err)
	}
	lim := Limits{Memlock: r.Cur, CanLock: tr.canLock(), Want: want}
	if r.Cur == unix.RLIM_INFINITY {
		lim.Memlock = math.MaxUint64
	}
	return lim, nil
}

// canLock reports whether the process has CAP_IPC_LOCK. The kernel asks for it in the initial user namespace, the one in
// which user numbers mean themselves.
func (t tree) canLock() bool {
	caps, err := strconv.ParseUint(t.field("proc/self/status", "CapEff"), 16, 64)
	initial := strings.Join(strings.Fields(t.text("proc/self/uid_map")), " ") == "0 0 4294967295"
	return err == nil && initial && caps>>unix.CAP_IPC_LOCK&1 == 1
}
