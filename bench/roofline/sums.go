package roofline

import (
	"fmt"
	"sync"
	"time"

	"github.com/rackweave/rackweave/bench/report"
	"github.com/rackweave/rackweave/cgo/kernel"
	"github.com/rackweave/rackweave/numa"
)

// sumBytes is what each core sums in a run: milliseconds.
const sumBytes = 64 << 20

// Sums measures how fast cores sum f32 gradients of workers, chunk by chunk: the bytes of all gradients, which lie in the cores'
// own caches if they have room there.
func Sums(cores, workers, chunkBytes int) (report.Roofline, error) {
	if cores < 1 || workers < 1 || chunkBytes < cacheLine {
		return report.Roofline{}, fmt.Errorf("sums of %d workers' chunks of %d bytes on %d cores: at least 1, %d and 1 are needed", workers,
			chunkBytes, cores, cacheLine)
	}
	isa, err := kernel.Default()
	if err != nil {
		return report.Roofline{}, fmt.Errorf("sums: %w", err)
	}
	chunk := uint64(chunkBytes) &^ (cacheLine - 1)
	stride := chunk + stagger
	each := uint64(workers+1) * stride // of a core: its gradients, and their sum
	arena, err := numa.NewArena(numa.ArenaConfig{Name: "sums", Bytes: int64(uint64(cores) * each), Node: numa.AnyNode})
	if err != nil {
		return report.Roofline{}, fmt.Errorf("sums: %w", err)
	}
	defer arena.Close()
	turns := max(1, sumBytes/(uint64(workers)*chunk))
	gbs, err := measure(uint64(cores)*turns*uint64(workers)*chunk, func() (time.Duration, error) {
		var all sync.WaitGroup
		began := time.Now()
		for core := range uint64(cores) {
			all.Go(func() {
				at := uint64(uintptr(arena.Addr())) + core*each
				gradients := make([]uint64, workers)
				for i := range gradients {
					gradients[i] = at + uint64(i+1)*stride
				}
				for range turns {
					kernel.SumTo(isa, []uint64{at}, kernel.F32, gradients, kernel.F32, chunk/4, false, false)
				}
			})
		}
		all.Wait()
		return time.Since(began), nil
	})
	return report.Roofline{Name: "sums", GBs: gbs}, err
}
