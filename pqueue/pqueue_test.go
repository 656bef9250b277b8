package pqueue_test

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/rackweave/rackweave/pqueue"
)

func TestItemsComeOutInOrderWhateverComesBetween(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	q := pqueue.New(func(a, b int) bool { return a < b })
	var want []int
	for range 10_000 {
		if len(want) == 0 || rng.IntN(5) < 3 {
			x := rng.IntN(100)
			q.Push(x)
			i, _ := slices.BinarySearch(want, x)
			want = slices.Insert(want, i, x)
		} else {
			if got := q.Pop(); got != want[0] {
				t.Fatalf("popped %d, want %d", got, want[0])
			}
			want = want[1:]
		}
		if q.Len() != len(want) {
			t.Fatalf("%d items, want %d", q.Len(), len(want))
		}
	}
}
