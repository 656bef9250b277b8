package numa

import (
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"
)

// Pin keeps the calling goroutine on one CPU for good. No other goroutine may use the thread after it. The goroutine must end by
// returning, so that the runtime destroys the thread. Pin locks the goroutine to its thread before it pins the thread. A locked
// thread starts no others for the runtime, so the affinity does not leak into them.
func Pin(cpu int) error {
	if cpu < 0 || cpu >= maxCPUs {
		return fmt.Errorf("pin to cpu %d: no such cpu", cpu)
	}
	set := unix.NewCPUSet(cpu + 1)
	set.Set(cpu)
	runtime.LockOSThread()
	if err := unix.SchedSetaffinityDynamic(0, set); err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("pin to cpu %d: %w: it is offline, or the cpuset does not hold it (see rackweave topo)", cpu, err)
	}
	return nil
}
