package aggregate_test

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/rackweave/rackweave/aggregate"
	"github.com/rackweave/rackweave/aggregate/optim"
	"github.com/rackweave/rackweave/aggregate/racktest"
	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/verbs"
)

// commands lists the commands that a tenant can run on a lane beside its chunks, each at its largest.
var commands = []struct {
	name string
	run  func(ctx context.Context, r *racktest.Rack) error
}{
	{"registering tensors", func(_ context.Context, r *racktest.Rack) error { return r.Add(later(300_000)) }},
	{"saving", func(ctx context.Context, r *racktest.Rack) error {
		s, err := r.Job.Snapshot(ctx, r.Plan)
		if err != nil {
			return err
		}
		if _, err := s.Updates(ctx); err != nil {
			return err
		}
		var pieces []aggregate.Piece
		for i := range r.Plan.NumChunks() {
			pieces = append(pieces, aggregate.Piece{Chunk: i, Data: make([]float32, r.Plan.Chunk(i).Elems)})
		}
		return s.Read(ctx, pieces)
	}},
	{"asking for its state", func(ctx context.Context, r *racktest.Rack) error {
		for range 200 {
			r.Job.WorkerCounters()
			if _, _, err := r.Job.Awaited(ctx); err != nil {
				return err
			}
		}
		return nil
	}},
	{"tracing", func(ctx context.Context, r *racktest.Rack) error {
		if _, _, err := r.Job.Trace(ctx, 1<<21); err != nil {
			return err
		}
		for range 20 {
			if err := runAll(r, pushPullAll(r)); err != nil {
				return err
			}
		}
		_, _, err := r.Job.Trace(ctx, 0)
		return err
	}},
}

// The test measures the processor time of a lane's commands, not the clock's, because the machine may be busy.
func TestNoCommandOfATenantHoldsALaneForAMillisecond(t *testing.T) {
	long(t, "measures processor time")
	const attempts, most = 5, time.Millisecond
	for i, c := range commands {
		t.Run(c.name, func(t *testing.T) {
			var times []time.Duration
			for range attempts {
				var longest atomic.Int64
				r := threadedRack(t, verbs.ProviderSHM, 1, racktest.Config{
					Lanes: 2, Job: aggregate.JobConfig{Name: "job", Rule: optim.SGDTorch, Hyper: optim.SGDTorch.Defaults()},
					Tensors: tensorsOf(chunk.F32, 1<<20), Watch: longestOf(&longest),
				})
				if i > 0 {
					if err := r.Add(later(100_000)); err != nil {
						t.Fatal(err)
					}
				}
				longest.Store(0)
				if err := c.run(t.Context(), r); err != nil {
					t.Fatal(err)
				}
				times = append(times, time.Duration(longest.Load()))
			}
			if median := medianOf(times); median > most {
				t.Errorf("the longest command took %v of processor time, the median of %v", median, times)
			}
		})
	}
}

// long skips a test that measures, unless all such tests are asked for.
func long(t *testing.T, why string) {
	t.Helper()
	if os.Getenv("RACKWEAVE_LONG") == "" {
		t.Skipf("%s: runs with RACKWEAVE_LONG=1, as make test-long sets it", why)
	}
}

func medianOf(times []time.Duration) time.Duration {
	slices.Sort(times)
	return times[len(times)/2]
}

// longestOf returns a wrapper of lanes' commands that keeps the longest processor time.
func longestOf(longest *atomic.Int64) func(func() error) func() error {
	return func(f func() error) func() error {
		return func() error {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			before := threadTime()
			err := f()
			took := int64(threadTime() - before)
			for seen := longest.Load(); took > seen && !longest.CompareAndSwap(seen, took); seen = longest.Load() {
			}
			return err
		}
	}
}

// threadTime returns the processor time of the calling thread.
func threadTime() time.Duration {
	const clock = 3 // CLOCK_THREAD_CPUTIME_ID
	var ts syscall.Timespec
	if _, _, errno := syscall.Syscall(syscall.SYS_CLOCK_GETTIME, clock, uintptr(unsafe.Pointer(&ts)), 0); errno != 0 {
		panic(errno)
	}
	return time.Duration(ts.Nano())
}

// Rings are large, so a job that was traced once must not keep them.
func TestATraceThatHasEndedKeepsNoEvents(t *testing.T) {
	r := threadedRack(t, verbs.ProviderSHM, 1, racktest.Config{
		Lanes: 2, Job: aggregate.JobConfig{Name: "job", Rule: optim.SGDTorch, Hyper: optim.SGDTorch.Defaults()},
		Tensors: tensorsOf(chunk.F32, 1<<10),
	})
	if _, _, err := r.Job.Trace(t.Context(), 100); err != nil {
		t.Fatal(err)
	}
	if err := runAll(r, pushPullAll(r)); err != nil {
		t.Fatal(err)
	}
	for _, want := range []bool{true, false} {
		lanes, _, err := r.Job.Trace(t.Context(), 0)
		if got := slices.ContainsFunc(lanes, func(l []aggregate.TraceEvent) bool { return cap(l) > 0 }); got != want || err != nil {
			t.Errorf("events are kept: %v, %v, want %v", got, err, want)
		}
	}
}

// later returns tensors of one element each.
func later(n int) (out []chunk.Tensor) {
	for i := range n {
		out = append(out, chunk.Tensor{Name: fmt.Sprintf("later %d", i), Elems: 1, DType: chunk.F32})
	}
	return out
}
