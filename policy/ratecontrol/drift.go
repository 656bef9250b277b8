package ratecontrol

import (
	"fmt"
	"math"
)

// Drift sets the number of steps for which workers train apart, by how far they drift: equation 9 of ACE-Sync, whose law of
// intervals has no formula there. When each worker has reported its distance from the common parameters, ‖θk-θ‖, the largest of
// them halves the interval if it is above the threshold, and makes it one step longer if it is below half of that.
type Drift struct {
	threshold   float64
	least, most int
	interval    int
	distance    float64   // the largest of the last round
	reported    []float64 // by rank: the distance, or absent or awaited
}

const (
	absent  = -2
	awaited = -1
)

// NewDrift returns a drift whose intervals begin with first and lie between least and most steps.
func NewDrift(threshold float64, first, least, most, ranks int) (*Drift, error) {
	switch {
	case !(threshold > 0) || math.IsInf(threshold, 1):
		return nil, fmt.Errorf("drift threshold %v: use a distance above 0", threshold)
	case least < 1 || first < least || most < first:
		return nil, fmt.Errorf("drift intervals from %d to %d, at first %d: use 1 step or more, and the first between the others", least,
			most, first)
	case ranks < 1:
		return nil, fmt.Errorf("drift of %d ranks: use 1 or more", ranks)
	}
	d := &Drift{threshold: threshold, least: least, most: most, interval: first, reported: make([]float64, ranks)}
	for r := range d.reported {
		d.reported[r] = awaited
	}
	return d, nil
}

// Report takes the distance of a rank, which must be one of the drift's. A distance that is not a number counts as infinite.
func (d *Drift) Report(rank int, distance float64) {
	if !(distance >= 0) {
		distance = math.Inf(1)
	}
	d.reported[rank] = distance
	d.decide()
}

// Leave drops a rank: rounds are complete without it.
func (d *Drift) Leave(rank int) {
	d.reported[rank] = absent
	d.decide()
}

// Join awaits a rank's reports again.
func (d *Drift) Join(rank int) { d.reported[rank] = awaited }

// Interval returns the number of steps from one meeting to the next.
func (d *Drift) Interval() int { return d.interval }

// Distance returns the largest distance of the last complete round.
func (d *Drift) Distance() float64 { return d.distance }

func (d *Drift) decide() {
	largest := float64(absent)
	for _, x := range d.reported {
		if x == awaited {
			return
		}
		largest = max(largest, x)
	}
	if largest == absent {
		return
	}
	d.distance = largest
	switch {
	case largest > d.threshold:
		d.interval = max(d.least, d.interval/2)
	case largest < d.threshold/2:
		d.interval = min(d.most, d.interval+1)
	}
	for r, x := range d.reported {
		if x != absent {
			d.reported[r] = awaited
		}
	}
}
