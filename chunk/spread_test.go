package chunk

import (
	"slices"
	"testing"
)

// Each aggregator works the plan out for itself, whatever the numbers of its cores and its other jobs.
func TestAggregatorsThatAreAlikeSpreadAlike(t *testing.T) {
	tensors := []Tensor{{"a", 100_000, F32, 0, nil}, {"b", 7, BF16, 0, nil}, {"c", 50_000, F16, 0, nil}}
	hash := func(lanes []Lane) [32]byte {
		p, err := NewPlan(Config{ChunkBytes: 4096, Lanes: Spread(lanes, 3)})
		if err == nil {
			err = p.Add(tensors)
		}
		if err != nil {
			t.Fatal(err)
		}
		var least, most uint64
		for a := range 3 {
			var bytes uint64
			for l := range lanes {
				_, n := p.LaneLoad(a*len(lanes) + l)
				bytes += n
			}
			if least, most = min(least, bytes), max(most, bytes); a == 0 {
				least, most = bytes, bytes
			}
		}
		if most-least > uint64(2*4096) { // a chunk for each NIC
			t.Errorf("one aggregator has %d bytes, another %d", least, most)
		}
		return p.Hash()
	}
	one := []Lane{{NIC: 0, Core: 3, Weight: 100}, {NIC: 1, Core: 5, Weight: 100}, {NIC: 0, Core: 4, Weight: 100}}
	other := slices.Clone(one)
	for i := range other {
		other[i].Core, other[i].Load = 10+i, uint64(i)<<20
	}
	if hash(one) != hash(other) {
		t.Error("numbers of cores or loads change the plan")
	}
	other[0].Weight, other[2].Weight = 200, 200
	if hash(one) == hash(other) {
		t.Error("the speed of links does not change the plan")
	}
	if got := Spread(one, 2)[3:]; got[0].NIC != 2 || got[1].NIC != 3 || got[2].NIC != 2 || NICs(one) != 2 {
		t.Errorf("the second aggregator's lanes are %v", got)
	}
}
