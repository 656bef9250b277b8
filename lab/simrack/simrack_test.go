package simrack

import (
	"flag"
	"fmt"
	"io"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

var (
	seeds  = flag.Int("seeds", 2000, "how many schedules TestSchedules runs; a tenth of them with -short")
	from   = flag.Uint64("from", 1, "the first of their seeds")
	enough = flag.Int("enough", 5, "stop when so many seeds have failed")
	seed   = flag.Uint64("seed", 0, "run the schedule of this seed only; with -v, and trace it")
)

// sweep runs schedules on all cores until so many have failed, and returns what it found.
func sweep(first uint64, n, enough int) (failures map[uint64]error, faults int) {
	failures = map[uint64]error{}
	var mu sync.Mutex
	var wg sync.WaitGroup
	var next, failed, broken atomic.Int64
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for failed.Load() < int64(enough) {
				i := next.Add(1) - 1
				if i >= int64(n) {
					return
				}
				s := first + uint64(i)
				res, err := Run(Draw(s), nil)
				if res.Failed {
					broken.Add(1)
				}
				if err != nil {
					failed.Add(1)
					mu.Lock()
					failures[s] = err
					mu.Unlock()
				}
			}
		})
	}
	wg.Wait()
	return failures, int(broken.Load())
}

func TestSchedules(t *testing.T) {
	if *seed != 0 {
		replay(t, *seed)
		return
	}
	n := *seeds
	if testing.Short() {
		n = max(n/10, 1)
	}
	start := time.Now()
	failures, faults := sweep(*from, n, *enough)
	for s, err := range failures {
		t.Errorf("seed %d: %v\nreplay: go test ./lab/simrack -run TestSchedules -seed=%d -v", s, err, s)
	}
	if len(failures) == 0 {
		took := time.Since(start)
		t.Logf("%d schedules from seed %d, %d of which ended a job by a fault, in %.1f s: %.0f a second",
			n, *from, faults, took.Seconds(), float64(n)/took.Seconds())
	}
}

func replay(t *testing.T, seed uint64) {
	var log io.Writer
	if testing.Verbose() {
		log = os.Stdout
	}
	res, err := Run(Draw(seed), log)
	t.Logf("%d turns, %v of virtual time, network hash %#x", res.Turns, res.Virtual, res.NetworkHash)
	if err != nil {
		t.Fatalf("seed %d: %v", seed, err)
	}
}

func TestSameSeedRunsTheSameWay(t *testing.T) {
	for s := range uint64(40) {
		t.Run(fmt.Sprintf("seed %d", s), func(t *testing.T) {
			t.Parallel()
			a, err := Run(Draw(s), nil)
			if err != nil {
				t.Fatal(err)
			}
			b, err := Run(Draw(s), nil)
			if err != nil {
				t.Fatal(err)
			}
			if a != b {
				t.Fatalf("two runs differ:\n%+v\n%+v", a, b)
			}
		})
	}
}
