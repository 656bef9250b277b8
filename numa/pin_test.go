package numa

import (
	"runtime"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rackweave/rackweave/numa/numatest"
)

func affinity(t *testing.T) CPUSet {
	t.Helper()
	set := unix.NewCPUSet(maxCPUs)
	if err := unix.SchedGetaffinityDynamic(0, set); err != nil {
		t.Error(err)
	}
	var cpus CPUSet
	for cpu := range maxCPUs {
		if set.IsSet(cpu) {
			cpus = append(cpus, cpu)
		}
	}
	return cpus
}

func TestPinnedGoroutineRunsOnItsCPU(t *testing.T) {
	top, err := Discover("")
	if err != nil {
		t.Fatal(err)
	}
	for _, cpu := range top.Allowed {
		var done sync.WaitGroup
		done.Go(func() {
			if err := Pin(cpu); err != nil {
				t.Error(err)
			}
			for range 3 {
				if got := numatest.CurrentCPU(); got != cpu {
					t.Errorf("pinned to cpu %d, running on %d", cpu, got)
				}
				runtime.Gosched()
			}
			if got := affinity(t); got.String() != (CPUSet{cpu}).String() {
				t.Errorf("pinned to cpu %d, affinity %s", cpu, got)
			}
		})
		done.Wait()
	}
}

func TestPinRefusesCPUsThatAreNotThere(t *testing.T) {
	for _, cpu := range []int{-1, 8191, maxCPUs} {
		if err := Pin(cpu); err == nil || !strings.HasPrefix(err.Error(), "pin to cpu ") {
			t.Errorf("Pin(%d): %v", cpu, err)
		}
	}
}

// The affinity of a pinned thread must reach neither the threads the runtime starts meanwhile nor later goroutines.
func TestPinnedThreadsLeaveOthersAlone(t *testing.T) {
	top, err := Discover("")
	if err != nil {
		t.Fatal(err)
	}
	cpu := top.Allowed[len(top.Allowed)-1]
	release := make(chan struct{})
	var pinned, done sync.WaitGroup
	for range 4 {
		pinned.Add(1)
		done.Go(func() {
			if err := Pin(cpu); err != nil {
				t.Error(err)
			}
			if got := numatest.CurrentCPU(); got != cpu {
				t.Errorf("pinned to cpu %d, running on %d", cpu, got)
			}
			pinned.Done()
			<-release
		})
	}
	pinned.Wait()
	narrowed := make(chan CPUSet, 64)
	var others sync.WaitGroup
	for range cap(narrowed) {
		others.Go(func() {
			runtime.LockOSThread() // a thread of its own, most of them new
			defer runtime.UnlockOSThread()
			narrowed <- affinity(t)
		})
	}
	others.Wait()
	close(release)
	done.Wait()
	close(narrowed)
	for set := range narrowed {
		if set.String() != top.Allowed.String() && len(top.Isolated) == 0 {
			t.Fatalf("another goroutine's thread has affinity %s, want %s", set, top.Allowed)
		}
	}
}
