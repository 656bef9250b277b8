package aggregate_test

import (
	"runtime"
	"testing"
	"time"
	"unsafe"

	"github.com/rackweave/rackweave/aggregate"
	"github.com/rackweave/rackweave/aggregate/optim"
	"github.com/rackweave/rackweave/aggregate/racktest"
	"github.com/rackweave/rackweave/cgo/worker"
	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/numa"
	"github.com/rackweave/rackweave/verbs"
)

// smallPages returns memory in the smallest pages, whose mapping takes longest.
func smallPages(t *testing.T, bytes int) *numa.Arena {
	t.Helper()
	a, err := numa.NewArena(numa.ArenaConfig{Name: "small", Bytes: int64(bytes), Node: numa.AnyNode, Lazy: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	})
	for i := 0; i < bytes; i += 4096 {
		*(*byte)(unsafe.Add(a.Addr(), i)) = 1
	}
	return a
}

// A worker's memory is mapped on the lane that polls its messages, which also serves others. The first message costs little beside
// that, so the longest round is the one that maps most.
func TestMappingAWorkersMemoryDoesNotHoldALane(t *testing.T) {
	long(t, "measures processor time")
	const attempts, most, bytes = 5, time.Millisecond, 256 << 20
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var times []time.Duration
	for range attempts {
		r := threadedRack(t, verbs.ProviderSHM, 1, racktest.Config{
			Lanes: 1, Manual: true, Job: aggregate.JobConfig{Name: "job", Mode: aggregate.Aggregate, Hyper: optim.Sum.Defaults()},
			Tensors: tensorsOf(chunk.F32, 1000),
		})
		w := r.Workers[0]
		large := smallPages(t, bytes)
		pd := w.NICs[0].PD
		mr, err := pd.RegisterMR(large.Addr(), bytes, verbs.AccessLocalWrite|verbs.AccessRemoteWrite, large.FD(), 0)
		if err != nil {
			t.Fatal(err)
		}
		handles, err := w.Submit(w.Op(chunk.OpPushPull, 0, 0))
		if err != nil {
			t.Fatal(err)
		}
		longest, done := time.Duration(0), false
		for end := time.Now().Add(10 * time.Second); !done || time.Until(end) > 9900*time.Millisecond; {
			before := threadTime()
			if _, err := r.Engine.Lanes()[0].Step(); err != nil {
				t.Fatal(err)
			}
			longest = max(longest, threadTime()-before)
			worker.Progress(w.C)
			if done, err = w.Done(handles[0]); err != nil || time.Now().After(end) {
				t.Fatal(done, err)
			}
		}
		times = append(times, longest)
		if err := pd.DeregisterMR(mr); err != nil {
			t.Fatal(err)
		}
	}
	if median := medianOf(times); median > most {
		t.Errorf("the longest round took %v of processor time, the median of %v", median, times)
	}
}
