// The sanitizers keep freed memory for a while.
//go:build !asan && !race

package simrack

import (
	"bytes"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"testing"
)

// footprint is what the process holds: open files, bytes of memory, goroutines.
func footprint(t *testing.T) (files, resident, goroutines int) {
	t.Helper()
	debug.FreeOSMemory()
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	statm, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		t.Fatal(err)
	}
	pages, err := strconv.Atoi(string(bytes.Fields(statm)[1]))
	if err != nil {
		t.Fatal(err)
	}
	return len(fds), pages * os.Getpagesize(), runtime.NumGoroutine()
}

func TestSchedulesLeaveNothingBehind(t *testing.T) {
	const n, slack = 100, 8 << 20
	run := func() {
		if failures, _ := sweep(1, n, 1); len(failures) > 0 {
			t.Fatal(failures)
		}
	}
	run() // heaps and thread stacks grow to their size
	files, resident, goroutines := footprint(t)
	run()
	run()
	f, r, g := footprint(t)
	if f != files || g != goroutines || r > resident+slack {
		t.Fatalf("before: %d files, %d MiB, %d goroutines; %d schedules later: %d, %d MiB, %d",
			files, resident>>20, goroutines, 2*n, f, r>>20, g)
	}
	t.Logf("%d files, %d goroutines, %d MiB; %d MiB after %d more schedules", f, g, resident>>20, r>>20, 2*n)
}
