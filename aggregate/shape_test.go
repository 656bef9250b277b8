package aggregate_test

import (
	"strings"
	"testing"

	"github.com/rackweave/rackweave/aggregate"
	"github.com/rackweave/rackweave/aggregate/optim"
	"github.com/rackweave/rackweave/aggregate/racktest"
	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/hierarchy"
)

func TestAShapeSetBeforeTensorsEqualsPlainGo(t *testing.T) {
	for _, tc := range []struct {
		shape hierarchy.Shape
		pods  int
		// owns tells, by rack, whether it owns some of the chunks.
		owns []bool
	}{
		{hierarchy.Root, 1, []bool{true, false, false, false}}, {hierarchy.Chain, 1, []bool{false, false, false, true}},
		{hierarchy.Pods, 2, []bool{true, true, true, true}}, {hierarchy.Sharded, 2, []bool{true, true, true, true}},
	} {
		t.Run(tc.shape.String(), func(t *testing.T) {
			top := hierarchy.Topology{Shape: hierarchy.Sharded, Racks: 4, Pods: tc.pods}
			c, network := simCluster(t, 7, top, []int{1, 2, 1, 1}, racktest.Config{
				Lanes: 2, Window: 4, Tensors: tensorsOf(chunk.F32, 1, 5000, 1023, 20000, 3),
				Begin: func(j *aggregate.Job) error { return j.SetShape(t.Context(), tc.shape) },
				Job: aggregate.JobConfig{Name: "job", Mode: aggregate.Eager, Rule: optim.AdamTorch,
					Hyper: optim.AdamTorch.Defaults(), ChunkBytes: 4096},
			})
			exchangeRacks(t, 1, c, tc.pods, 3, network)
			for rack, counters := range c.Racks[0].Job.RackCounters() {
				if owns := counters.OwnedBytes > 0; owns != tc.owns[rack] {
					t.Errorf("rack %d owns %d bytes", rack, counters.OwnedBytes)
				}
			}
			err := c.Racks[0].Job.SetShape(t.Context(), hierarchy.Sharded)
			if err == nil || !strings.Contains(err.Error(), "their owners stay") {
				t.Errorf("a shape after tensors: %v", err)
			}
		})
	}
}

func TestAShapeThatTheRacksCannotHaveIsRefused(t *testing.T) {
	tried := 0
	simCluster(t, 7, hierarchy.Topology{Shape: hierarchy.Sharded, Racks: 2, Pods: 1}, []int{1, 1}, racktest.Config{
		Lanes: 1, Tensors: tensorsOf(chunk.F32, 10), Begin: func(j *aggregate.Job) error {
			for _, s := range []hierarchy.Shape{hierarchy.Pods, hierarchy.Flat} {
				tried++
				if err := j.SetShape(t.Context(), s); err == nil || !strings.Contains(err.Error(), s.String()) {
					t.Errorf("shape %v of 2 racks: %v", s, err)
				}
			}
			return nil
		},
		Job: aggregate.JobConfig{Name: "job", Mode: aggregate.Aggregate, Hyper: optim.Sum.Defaults(), ChunkBytes: 4096},
	})
	if tried == 0 {
		t.Error("no shape was tried")
	}
}
