package chunk_test

import (
	"errors"
	"testing"

	"github.com/rackweave/rackweave/chunk"
)

func planOf(t *testing.T, lanes ...chunk.Lane) *chunk.Plan {
	t.Helper()
	for i := range lanes {
		lanes[i].Core = i
	}
	p, err := chunk.NewPlan(chunk.Config{ChunkBytes: 4096, Lanes: lanes})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestChunksGoWhereOtherPlansHaveLeftRoom(t *testing.T) {
	p := planOf(t, chunk.Lane{Load: 8 * 4096}, chunk.Lane{}, chunk.Lane{Load: 4 * 4096})
	if err := p.Add([]chunk.Tensor{{Name: "a", Elems: 12 * 1024, DType: chunk.F32}}); err != nil {
		t.Fatal(err)
	}
	for l, want := range []int{0, 8, 4} {
		if got := len(p.LaneChunks(l)); got != want {
			t.Errorf("lane %d has %d chunks, expected %d", l, got, want)
		}
		if _, bytes := p.LaneLoad(l); bytes != uint64(want*4096) {
			t.Errorf("lane %d has %d bytes of the plan's own", l, bytes)
		}
	}
}

// The end that follows knows no loads.
func TestAPlanThatFollowsAnotherEqualsIt(t *testing.T) {
	ours := planOf(t, chunk.Lane{Load: 50_000}, chunk.Lane{NIC: 1}, chunk.Lane{Load: 9999})
	theirs := planOf(t, chunk.Lane{}, chunk.Lane{NIC: 1}, chunk.Lane{})
	for _, batch := range [][]chunk.Tensor{
		{{Name: "a", Elems: 30_000, DType: chunk.F32}, {Name: "b", Elems: 1, DType: chunk.BF16}},
		{{Name: "c", Elems: 100_000, DType: chunk.F16}},
	} {
		first := ours.NumChunks()
		if err := ours.Add(batch); err != nil {
			t.Fatal(err)
		}
		var lanes []uint32
		for id := first; id < ours.NumChunks(); id++ {
			lanes = append(lanes, uint32(ours.Chunk(id).Lane))
		}
		for _, bad := range [][]uint32{nil, lanes[1:], append([]uint32{3}, lanes[1:]...)} {
			if err := theirs.Follow(batch, bad); !errors.Is(err, chunk.ErrInvalid) {
				t.Errorf("placed on lanes %v: %v", bad, err)
			}
		}
		if err := theirs.Follow(batch, lanes); err != nil {
			t.Fatal(err)
		}
		if ours.Hash() != theirs.Hash() {
			t.Error("the plans differ")
		}
	}
}
