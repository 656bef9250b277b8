// Package roofline measures the most that a machine can do of what an exchange needs, in the same run as the exchange: a memory
// probe for workers on this host, a bare socket loop for TCP, perftest's ib_write_bw for RDMA.
//
// All count the bytes that an exchange must move, every worker's gradient in and result out once, so that an exchange's share of a
// roofline is [report.Result.Moved] over the exchange's time over the roofline.
package roofline

import (
	"fmt"
	"math"
	"runtime"
	"time"

	"github.com/rackweave/rackweave/bench/report"
	"github.com/rackweave/rackweave/cgo/kernel"
	"github.com/rackweave/rackweave/numa"
)

const (
	// A measurement is the median of runs: at least so many, for at least so long.
	leastRuns = 5
	leastTime = 300 * time.Millisecond

	// Bounds of the memory probe's arrays: large enough that starting threads takes less time than the probe, and no larger than
	// needed to be far beyond any cache.
	leastArray = 4 << 20
	mostArrays = 1 << 30
	cacheLine  = 64
	// Arrays a power of two apart would compete for the same sets of the cache. They lie this much further apart.
	stagger = 4096 + 3*cacheLine
)

// Memory measures a bare loop, on as many threads as this process has cores, that reads the workers' gradients once and writes
// their results once, past the cache. Each array has the given bytes, within bounds, in the kind of memory of RackWeave's own
// arenas.
func Memory(workers int, bytes uint64) (report.Roofline, error) {
	isa, err := kernel.Default()
	if err != nil {
		return report.Roofline{}, fmt.Errorf("memory roofline: %w", err)
	}
	each := arrayBytes(workers, bytes)
	stride := each + stagger
	arena, err := numa.NewArena(numa.ArenaConfig{Name: "roofline", Bytes: 2 * int64(workers) * int64(stride), Node: numa.AnyNode})
	if err != nil {
		return report.Roofline{}, fmt.Errorf("memory roofline: %w", err)
	}
	defer arena.Close()
	probe := kernel.Probe{Bytes: each}
	for i := range uint64(workers) {
		at := uint64(uintptr(arena.Addr())) + 2*i*stride
		probe.Read = append(probe.Read, at)
		probe.Write = append(probe.Write, at+stride)
	}
	gbs, err := measure(probe.Moved(), func() (time.Duration, error) {
		start := time.Now()
		probe.Run(isa, runtime.GOMAXPROCS(0))
		return time.Since(start), nil
	})
	return report.Roofline{Name: "memory", GBs: gbs}, err
}

// arrayBytes returns the size of one of the probe's arrays, in whole cache lines.
func arrayBytes(workers int, bytes uint64) uint64 {
	most := uint64(mostArrays / (2 * workers))
	return min(max(bytes, leastArray), max(most, leastArray)) &^ (cacheLine - 1)
}

// measure repeats a run after one that does not count, and returns the median rate in GB/s, rounded to MB/s.
func measure(moved uint64, run func() (time.Duration, error)) (float64, error) {
	if _, err := run(); err != nil {
		return 0, err
	}
	var rates []float64
	for total := time.Duration(0); len(rates) < leastRuns || total < leastTime; {
		took, err := run()
		if err != nil {
			return 0, err
		}
		took = max(took, 1)
		total += took
		rates = append(rates, float64(moved)/float64(took))
	}
	return math.Round(report.Median(rates)*1e3) / 1e3, nil
}
