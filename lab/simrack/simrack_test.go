package simrack

import (
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

var (
	seeds      = flag.Int("seeds", 600, "how many schedules TestSchedules runs; a tenth of them with -short")
	pacedSeeds = flag.Int("paced-seeds", 120, "how many schedules TestPacedSchedules runs; a tenth of them with -short")
	from       = flag.Uint64("from", 1, "the first of their seeds")
	paced      = flag.Bool("paced", false, "with -seed: the schedule in which workers are out of step")
	enough     = flag.Int("enough", 5, "stop when so many seeds have failed")
	seed       = flag.Uint64("seed", 0, "run the schedule of this seed only; with -v, and trace it")
)

// found is what a sweep of schedules found.
type found struct {
	failures  map[uint64]error // by seed
	broken    int              // schedules that ended a job by a fault
	spared    int              // schedules in which a job went on without a lost worker
	failovers int
}

// sweep runs schedules on all cores until so many have failed.
func sweep(schedule func(seed uint64) *Schedule, first uint64, n, enough int) found {
	f := found{failures: map[uint64]error{}}
	var mu sync.Mutex
	var wg sync.WaitGroup
	var next atomic.Int64
	done := func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(f.failures) >= enough
	}
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for !done() {
				i := next.Add(1) - 1
				if i >= int64(n) {
					return
				}
				s := first + uint64(i)
				res, err := Run(schedule(s), nil)
				mu.Lock()
				if res.Failed {
					f.broken++
				}
				if res.Spared {
					f.spared++
				}
				f.failovers += res.Failovers
				if err != nil {
					f.failures[s] = err
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return f
}

func TestSchedules(t *testing.T) {
	if *seed != 0 && *paced {
		t.Skip("-paced: TestPacedSchedules replays")
	}
	testSchedules(t, Draw, *seeds, "")
}

func TestPacedSchedules(t *testing.T) {
	if *seed != 0 && !*paced {
		t.Skip("without -paced: TestSchedules replays")
	}
	testSchedules(t, DrawPaced, *pacedSeeds, " PACED=1")
}

func testSchedules(t *testing.T, schedule func(seed uint64) *Schedule, n int, option string) {
	if *seed != 0 {
		replay(t, schedule(*seed))
		return
	}
	if testing.Short() {
		n = max(n/10, 1)
	}
	start := time.Now()
	f := sweep(schedule, *from, n, *enough)
	for _, s := range slices.Sorted(maps.Keys(f.failures)) {
		t.Errorf("seed %d: %v\nreplay: make sim SEED=%d%s", s, f.failures[s], s, option)
	}
	if len(f.failures) > 0 {
		t.Logf("the sweep of %d schedules stopped after these failures", n)
		return
	}
	took := time.Since(start)
	t.Logf("%d schedules from seed %d: a fault ended a job in %d and a worker alone in %d; %d failovers; %.1f s, %.0f schedules a second",
		n, *from, f.broken, f.spared, f.failovers, took.Seconds(), float64(n)/took.Seconds())
	if n >= 100 && f.failovers < n {
		t.Errorf("%d failovers in %d schedules are too few to show much", f.failovers, n)
	}
	if option != "" && n >= 100 && f.spared < n/50 {
		t.Errorf("%d schedules of %d in which a job goes on without a lost worker are too few to show much", f.spared, n)
	}
}

func replay(t *testing.T, s *Schedule) {
	var log io.Writer
	if testing.Verbose() {
		log = os.Stdout
	}
	res, err := Run(s, log)
	t.Logf("%d turns, %v of virtual time, network hash %#x", res.Turns, res.Virtual, res.NetworkHash)
	if err != nil {
		t.Fatalf("seed %d: %v", s.Seed, err)
	}
}

func TestSameSeedRunsTheSameWay(t *testing.T) {
	for i := range uint64(40) {
		s, schedule := i/2, Draw
		if i%2 == 1 {
			schedule = DrawPaced
		}
		t.Run(fmt.Sprintf("seed %d", i), func(t *testing.T) {
			t.Parallel()
			a, err := Run(schedule(s), nil)
			if err != nil {
				t.Fatal(err)
			}
			b, err := Run(schedule(s), nil)
			if err != nil {
				t.Fatal(err)
			}
			if a != b {
				t.Fatalf("two runs differ:\n%+v\n%+v", a, b)
			}
		})
	}
}
