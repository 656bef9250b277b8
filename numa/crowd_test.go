package numa

import (
	"os"
	"sync"
	"testing"
)

// threads counts this process's threads.
func threads(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// Go never ends a thread that it started because others waited in the kernel.
func TestACrowdThatMakesArenasTakesFewThreads(t *testing.T) {
	before := threads(t)
	var crowd sync.WaitGroup
	for range 128 {
		crowd.Go(func() {
			for range 4 {
				a, err := NewArena(ArenaConfig{Name: "crowd", Bytes: 1 << 20, Node: AnyNode})
				if err != nil {
					t.Error(err)
					return
				}
				if err := a.Close(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	crowd.Wait()
	if now := threads(t); now > before+2*cap(busy) {
		t.Errorf("128 at once that make and close arenas: %d threads, %d before; want at most %d more", now, before, 2*cap(busy))
	}
}
