package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// An aggregator that is stopped for a while, as by a debugger or a busy host, posts no receives meanwhile. The other racks wait for
// it, and the job goes on.
func TestAnAggregatorThatStallsEndsNoJob(t *testing.T) {
	const stall = 2 * time.Second // twice what a message waits for a receive where nobody says how long
	b := openBuddyCluster(t, "shm")
	w := joinBuddies(t, b.at)
	defer w.close()
	for step := range 3 {
		w.step(step)
	}
	pid := b.runs[1].Process.Pid
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(2 * time.Minute); !stopped(t, pid); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("process %d still runs 2 minutes after a SIGSTOP", pid)
		}
	}
	time.AfterFunc(stall, func() { _ = syscall.Kill(pid, syscall.SIGCONT) })
	began := time.Now()
	w.step(3)
	if took := time.Since(began); took < stall {
		t.Errorf("a step took %v beside an aggregator that was stopped for %v: it did not need that one", took, stall)
	}
	w.step(4)
}

// stopped reports whether every thread of a process is stopped: on a busy host some run on after kill has returned.
func stopped(t *testing.T, pid int) bool {
	stats, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range stats {
		b, err := os.ReadFile(path)
		if err != nil {
			return false
		}
		if state := b[bytes.LastIndexByte(b, ')')+2]; state != 'T' {
			return false
		}
	}
	return len(stats) > 0
}
