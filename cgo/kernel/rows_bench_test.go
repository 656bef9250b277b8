package kernel

import (
	"fmt"
	"slices"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/rackweave/rackweave/aggregate/optim"
	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/codec"
)

// embedding is a lane with 1M rows of 64 in chunks of 32 KiB, and steps of messages, each rank's drawn by itself. Steps alternate,
// so that rows come from memory.
type embedding struct {
	rows   Rows
	memory []byte
	steps  [4][]RowSource
	blocks uint64
	union  int // rows of all steps
}

const benchRows, benchWidth, benchBlocks = 1 << 20, 64, 64

func newEmbedding(b *testing.B, ranks int, share float64) *embedding {
	rnd := rndFor(uint64(ranks))
	const perChunk = chunkBytes / (4 * benchWidth)
	e := &embedding{memory: newArena(b, benchRows/perChunk*rowArrays*chunkBytes).mem}
	_ = unix.Madvise(e.memory, unix.MADV_HUGEPAGE) // as the aggregator's arenas
	for i := 0; i < len(e.memory); i += 4096 {
		e.memory[i] = 0
	}
	bits, heat := newArena(b, benchRows/8), newArena(b, benchRows/perChunk*8)
	e.rows = Rows{Base: address(e.memory), Pitch: rowArrays * chunkBytes, Rows: benchRows, PerChunk: perChunk, Width: benchWidth,
		Touched: address(bits.mem), Heat: address(heat.mem), Accumulator: accumulator, SrcType: F32, OutType: F32,
		Cap: uint32(codec.BlockRows(chunkBytes, 4*benchWidth))}
	blocks := newArena(b, benchBlocks*chunkBytes)
	e.blocks = address(blocks.mem)
	for i := range e.steps {
		seen := make([]bool, benchRows)
		for range ranks {
			var ids []uint32
			for row := range uint32(benchRows) {
				if share == 1 || rnd.Float64() < share {
					ids = append(ids, row)
					seen[row] = true
				}
			}
			values := unsafe.Slice((*byte)(unsafe.Pointer(&draw(rnd, len(ids)*benchWidth, false)[0])), len(ids)*benchWidth*4)
			p := codec.AppendRows(nil, codec.RowsWanted, 0, benchRows, ids, values)
			e.steps[i] = append(e.steps[i], source(newArena(b, len(p)), p, 4*benchWidth))
		}
		for _, s := range seen {
			if s {
				e.union++
			}
		}
	}
	return e
}

// step merges a step in parts, as a worker's messages let it.
func (e *embedding) step(b *testing.B, isa ISA, i int, results bool) {
	src := slices.Clone(e.steps[i%len(e.steps)])
	block := 0
	for from := uint32(0); from < benchRows; {
		if results {
			e.rows.Block = e.blocks + uint64(block%benchBlocks*chunkBytes)
		}
		reached, wrong := e.rows.Merge(isa, src, nil, from, min(benchRows, from+benchRows/64))
		if wrong >= 0 {
			b.Fatalf("source %d is wrong", wrong)
		}
		if e.rows.Count == e.rows.Cap {
			e.rows.Count = 0
			block++
		}
		from = reached
	}
}

// BenchmarkRows merges the rows of a step. Each rank touches a share of them. It reports the time for each row of the union.
func BenchmarkRows(b *testing.B) {
	isa := Best()
	for _, share := range []float64{0.01, 1} {
		ranks := 4
		if share == 1 {
			ranks = 2
		}
		e := newEmbedding(b, ranks, share)
		for _, c := range []struct {
			name    string
			what    uint8
			rule    optim.Rule
			results bool
		}{
			{"sgd", UpdateRows, optim.SGDTorch, true}, {"adam", UpdateRows, optim.AdamTorch, true},
			{"push", UpdateRows, optim.SGDTorch, false}, {"sum", SumRows, optim.Sum, true},
			{"two-phase", AccumulateRows, optim.AdamTorch, false},
		} {
			b.Run(fmt.Sprintf("touched=%v/%s", share, c.name), func(b *testing.B) {
				e.rows.What, e.rows.Rule, e.rows.Scalar = c.what, uint8(c.rule), optim.Derive(c.rule, c.rule.Defaults(), 1)
				e.rows.Block, e.rows.Count = 0, 0
				for i := range b.N {
					e.step(b, isa, i, c.results)
					if c.what == AccumulateRows {
						apply := e.rows
						apply.What = ApplyRows
						apply.Apply(isa, 0, benchRows)
					}
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(e.union/len(e.steps)), "ns/row")
			})
		}
	}
	e := newEmbedding(b, 1, 0.01)
	b.Run("gather", func(b *testing.B) {
		dst := newArena(b, chunkBytes)
		n := uint32(chunkBytes / (4 * benchWidth))
		at := newArena(b, 1<<20).take(1<<18, chunk.F32)
		words := unsafe.Slice((*uint32)(unsafe.Pointer(&at[0])), 1<<18)
		rnd := rndFor(9)
		for i := range words {
			words[i] = rnd.Uint32N(benchRows)
		}
		for i := range b.N {
			from := uint32(i) * n % (1<<18 - n)
			if wrong := e.rows.Gather(isa, address(at)+4*uint64(from), n, address(dst.mem), F32); wrong >= 0 {
				b.Fatal(wrong)
			}
		}
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/row")
	})
}
