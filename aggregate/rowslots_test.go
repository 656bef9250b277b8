package aggregate_test

import (
	"fmt"
	"testing"

	"github.com/rackweave/rackweave/aggregate"
	"github.com/rackweave/rackweave/aggregate/optim"
	"github.com/rackweave/rackweave/aggregate/racktest"
	"github.com/rackweave/rackweave/cgo/worker"
	"github.com/rackweave/rackweave/chunk"
)

var sums = aggregate.JobConfig{
	Name: "job", Mode: aggregate.Aggregate, Rule: optim.Sum, Hyper: optim.Sum.Defaults(), ChunkBytes: 4096,
}

// Chunks take the slots and buffers that are not kept for rows.
func TestRowsTravelBesideChunksInWindowsOfAnySize(t *testing.T) {
	sparse := tables[:2]
	for window := 8; window <= 20; window++ {
		for _, options := range []string{"", ",by_reference=1"} {
			t.Run(fmt.Sprint(window, options), func(t *testing.T) {
				r, network := simRack(t, uint64(window), options, 3, racktest.Config{
					Lanes: 1, Window: window, Staging: window, Job: sums,
					Tensors: append(sparse[:len(sparse):len(sparse)], tensorsOf(chunk.F32, 20_000)...),
				})
				run := driven(r, network)
				x := newRowsRack(t, r, func(ops [][]worker.Op) error {
					for i, w := range r.Workers {
						ops[i] = append(ops[i], w.Op(chunk.OpPushPull, len(sparse), int32(i)))
					}
					return run(ops)
				}, nil)
				x.tables = x.tables[:len(sparse)]
				for range 4 {
					x.pushPull("sums", func(i int, g gradients) map[int64][]float32 { return x.tables[i].union(g) })
				}
			})
		}
	}
}
