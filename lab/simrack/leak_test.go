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

// footprint returns what the process holds: open files, bytes of memory, goroutines.
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
		if f := sweep(Draw, 1, n, 1); len(f.failures) > 0 {
			t.Fatal(f.failures)
		}
	}
	run()
	files, resident, goroutines := footprint(t)
	// Heaps of C threads, and their stacks, grow to their size in steps. A leak never stops to grow.
	for range 5 {
		run()
		run()
		f, r, g := footprint(t)
		if f > files || g > goroutines {
			t.Fatalf("before: %d files, %d goroutines; %d schedules later: %d, %d", files, goroutines, 2*n, f, g)
		}
		t.Logf("%d files, %d goroutines, %d MiB; %d MiB after %d more schedules", f, g, resident>>20, r>>20, 2*n)
		if r <= resident+slack {
			return
		}
		resident = r
	}
	t.Fatal("memory grows with the schedules")
}
