package data

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// dealt deals as figures 6.5 and 6.7 of the thesis read: group after group, row after row.
func dealt(sizes Sizes, workers int, start Start, broadcast bool, seed uint64) map[Place][]int {
	out := make(map[Place][]int)
	turn := 0
	for g, n := range sizes {
		if broadcast && n < uint64(workers) {
			for i := range n {
				for w := range workers {
					out[Place{g, i}] = append(out[Place{g, i}], w)
				}
			}
			continue
		}
		if start == First {
			turn = 0
		}
		permuted := newPermutation(n, hash(seed, uint64(g)))
		rows := make([]uint64, n)
		for i := range n {
			rows[permuted.at(i)] = i
		}
		for _, i := range rows {
			out[Place{g, i}] = []int{turn % workers}
			turn++
		}
	}
	return out
}

func TestDealsAreThoseOfTheThesis(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		sizes := Sizes(rapid.SliceOfN(rapid.Uint64Range(0, 6), 1, 5).Draw(t, "sizes"))
		sizes[0]++
		workers := rapid.IntRange(1, int(min(6, sizes.Total()))).Draw(t, "workers")
		start := rapid.SampledFrom([]Start{Rotate, First}).Draw(t, "start")
		broadcast, seed := rapid.Bool().Draw(t, "broadcast"), rapid.Uint64().Draw(t, "seed")
		d, err := NewDeal(sizes, workers, start, broadcast, seed)
		if err != nil {
			t.Fatal(err)
		}
		want := dealt(sizes, workers, start, broadcast, seed)
		shards := make([]int, workers)
		for g, n := range sizes {
			counts := make([]int, workers)
			for i := range n {
				got := []int{d.Worker(Place{g, i})}
				if got[0] == Everyone {
					got = nil
					for w := range workers {
						got = append(got, w)
					}
				}
				if !slices.Equal(got, want[Place{g, i}]) {
					t.Fatalf("row %d of group %d goes to %v, not %v", i, g, got, want[Place{g, i}])
				}
				for _, w := range got {
					counts[w]++
					shards[w]++
				}
			}
			if slices.Max(counts)-slices.Min(counts) > 1 {
				t.Fatalf("group %d of %d rows is divided into %v", g, n, counts)
			}
		}
		if start == Rotate && slices.Max(shards)-slices.Min(shards) > 1 {
			t.Fatalf("shards of %v rows", shards)
		}
	})
}

func TestDealsRefuseFewerRowsThanWorkers(t *testing.T) {
	for _, c := range []struct {
		sizes   Sizes
		workers int
	}{
		{Sizes{3}, 4}, {Sizes{1, 1}, 3}, {Sizes{3}, 0}, {Sizes{0, 0}, 1}, {nil, 1}, {Sizes{MaxRows, 1}, 1}, {Sizes{1 << 63, 1 << 63}, 1},
	} {
		if _, err := NewDeal(c.sizes, c.workers, Rotate, false, 1); err == nil {
			t.Errorf("%v to %d workers", c.sizes, c.workers)
		}
	}
}
