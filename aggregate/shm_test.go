package aggregate_test

import (
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rackweave/rackweave/aggregate"
	"github.com/rackweave/rackweave/aggregate/optim"
	"github.com/rackweave/rackweave/aggregate/racktest"
	"github.com/rackweave/rackweave/cgo/worker"
	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/verbs"
)

// openDevice opens a device and pumps its events until the test ends.
func openDevice(t testing.TB, provider string) *verbs.Device {
	t.Helper()
	d, err := verbs.Open(provider, "", "")
	if err != nil {
		t.Fatal(err)
	}
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			default:
				if _, _, err := d.AsyncEvent(20 * time.Millisecond); err != nil {
					t.Error(err)
					return
				}
			}
		}
	}()
	t.Cleanup(func() {
		close(stop)
		<-done
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

func threadedRack(t testing.TB, provider string, workers int, cfg racktest.Config) *racktest.Rack {
	t.Helper()
	cfg.NICs = []*verbs.Device{openDevice(t, provider)}
	for range workers {
		cfg.Workers = append(cfg.Workers, []*verbs.Device{openDevice(t, provider)})
	}
	return openRack(t, cfg)
}

func openRack(t testing.TB, cfg racktest.Config) *racktest.Rack {
	t.Helper()
	r, err := racktest.Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

// runAll runs every worker's operations on a goroutine of its own and returns the first error.
func runAll(r *racktest.Rack, ops [][]worker.Op) error {
	var wg sync.WaitGroup
	errs := make([]error, len(ops))
	for i, w := range r.Workers {
		wg.Go(func() { errs[i] = w.Run(20*time.Second, ops[i]...) })
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

func TestSharedMemoryEqualsPlainGoBitForBit(t *testing.T) {
	hyper := optim.SGDMXNet.Defaults()
	hyper.Momentum = 0.9
	most := uint64(2_000_000)
	if testing.Short() {
		most /= 10
	}
	for _, arena := range []bool{false, true} {
		r := threadedRack(t, verbs.ProviderSHM, 4, racktest.Config{
			Lanes: 2, Arena: arena,
			Job:     aggregate.JobConfig{Name: "job", Mode: aggregate.Eager, Rule: optim.SGDMXNet, Hyper: hyper},
			Tensors: tensorsOf(chunk.F32, 1, 100_000, 1023, most),
		})
		exchange(t, r, 3, func(ops [][]worker.Op) error { return runAll(r, ops) })
	}
}

func BenchmarkSharedMemorySum(b *testing.B) {
	for _, arena := range []bool{false, true} {
		name := "ordinary memory"
		if arena {
			name = "arenas"
		}
		b.Run(name, func(b *testing.B) {
			const elems = 25_000_000
			r := threadedRack(b, verbs.ProviderSHM, 4, racktest.Config{
				Lanes: 2, Arena: arena, Staging: 16,
				Job:     aggregate.JobConfig{Name: "job", Mode: aggregate.Aggregate, Hyper: optim.Sum.Defaults()},
				Tensors: tensorsOf(chunk.F32, elems),
			})
			ops := make([][]worker.Op, len(r.Workers))
			for i, w := range r.Workers {
				ops[i] = []worker.Op{w.Op(chunk.OpPushPull, 0, 0)}
			}
			b.SetBytes(elems * 4)
			for b.Loop() {
				if err := runAll(r, ops); err != nil {
					b.Fatal(err)
				}
			}
			for i, l := range r.Engine.Lanes() {
				c := l.Counters()
				b.Logf("lane %d: %+v", i, c)
			}
			var st worker.Stats
			worker.StatsOf(r.Workers[0].C, &st)
			b.Logf("worker 0: %+v", st)
		})
	}
}

func TestALaneWithoutItsCoreIsRefusedAtStart(t *testing.T) {
	d := openDevice(t, verbs.ProviderSHM)
	e, err := aggregate.Start(aggregate.Config{Lanes: []aggregate.LaneConfig{{Device: d, CPU: -1, Node: -1},
		{Device: d, CPU: 8000, Node: -1}}})
	if err == nil {
		err = e.Close()
		t.Fatalf("it started, and closed with %v", err)
	}
	if !strings.Contains(err.Error(), "lane 1: pin to cpu 8000") {
		t.Error(err)
	}
}

func TestAWorkerSaysBecauseOfWhomTheJobFailed(t *testing.T) {
	for rank, want := range map[int]string{-1: "the aggregator ended the job", 1: "the aggregator ended the job (worker 1 failed)"} {
		r := threadedRack(t, verbs.ProviderSHM, 2, resumeConfig(aggregate.Aggregate, optim.Sum, chunk.F32))
		r.Job.Fail(rank, errors.New("for the test"))
		if err := r.Workers[0].Run(20*time.Second, r.Workers[0].Op(chunk.OpPushPull, 0, 0)); err == nil ||
			!strings.HasSuffix(err.Error(), ": "+want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// The lane handles the failure after the job's end was requested as well.
func TestTheWorkersOfAFailedJobAreToldBeforeItCloses(t *testing.T) {
	for _, provider := range []string{verbs.ProviderSHM, verbs.ProviderTCP} {
		cfg := resumeConfig(aggregate.Aggregate, optim.Sum, chunk.F32)
		cfg.Lanes = 1
		var late atomic.Bool
		cfg.Now = func() int64 {
			if late.CompareAndSwap(true, false) {
				time.Sleep(50 * time.Millisecond)
			}
			return time.Now().UnixNano()
		}
		r := threadedRack(t, provider, 2, cfg)
		late.Store(true)
		r.Job.Fail(1, errors.New("for the test"))
		if err := r.Job.Close(); err != nil {
			t.Fatal(err)
		}
		want := ": the aggregator ended the job (worker 1 failed)"
		err := r.Workers[0].Run(20*time.Second, r.Workers[0].Op(chunk.OpPushPull, 0, 0))
		if err == nil || !strings.HasSuffix(err.Error(), want) {
			t.Errorf("%s: %v, want …%q", provider, err, want)
		}
	}
}
