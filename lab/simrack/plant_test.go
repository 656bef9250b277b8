//go:build plant

package simrack

import (
	"testing"

	"github.com/rackweave/rackweave/aggregate"
)

// withinSeeds is how many schedules may pass before a planted bug must have made one fail.
const withinSeeds = 600

func TestPlantedBugsAreCaught(t *testing.T) {
	t.Cleanup(func() { aggregate.Plant("") })
	for _, bug := range aggregate.PlantedBugs {
		t.Run(bug, func(t *testing.T) {
			aggregate.Plant(bug)
			failures, _ := sweep(1, withinSeeds, 1)
			if len(failures) == 0 {
				t.Fatalf("%d schedules passed with this bug in the aggregator", withinSeeds)
			}
			for s, err := range failures {
				t.Logf("caught by seed %d: %v", s, err)
			}
		})
	}
}
