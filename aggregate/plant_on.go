//go:build plant

package aggregate

import "slices"

// PlantedBugs are all that [Plant] takes.
var PlantedBugs = []string{
	string(plantArrivalOrder), string(plantAnyEpoch), string(plantTwice), string(plantNoTurn), string(plantReleaseEarly),
	string(plantSilentFailure), string(plantNoBarrier), string(plantLeakedSlot), string(plantResentTwice),
}

var planted = plantNone

// Plant puts one of [PlantedBugs] into the package, or none for "". No lane may be running.
func Plant(bug string) {
	if bug != "" && !slices.Contains(PlantedBugs, bug) {
		panic("aggregate: no such bug to plant: " + bug)
	}
	planted = plantedBug(bug)
}
