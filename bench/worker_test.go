package bench

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/rackweave/rackweave/client"
)

func TestAnOrderOfItsOwnIsTheOneThatAWorkerSendsIn(t *testing.T) {
	// What the worker does with what was submitted at once: by priority, then in the order of submission.
	sent := func(rank uint64) (tensors []int) {
		ops := make([]client.Op, 20)
		for i := range ops {
			ops[i] = client.Op{Tensor: i, Priority: int32(-i)}
		}
		inOwnOrder(ops, rand.New(rand.NewPCG(1, rank)))
		slices.SortStableFunc(ops, func(a, b client.Op) int { return int(b.Priority) - int(a.Priority) })
		for _, op := range ops {
			tensors = append(tensors, op.Tensor)
		}
		return tensors
	}
	if a, b := sent(0), sent(1); slices.Equal(a, b) {
		t.Errorf("two workers send in the same order %v", a)
	}
}
