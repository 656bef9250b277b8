package ratecontrol

import (
	"cmp"
	"slices"
)

// point is a codec that a group may use: what it costs, and what it keeps.
type point struct {
	codec uint8
	bytes int64
	value float64
}

// hull returns the upper concave hull of points, in place: bytes and values rise, and the gain per byte falls. Its first point has
// the fewest bytes, whatever its value, because a group is never skipped.
func hull(points []point) []point {
	slices.SortFunc(points, func(a, b point) int {
		return cmp.Or(cmp.Compare(a.bytes, b.bytes), cmp.Compare(b.value, a.value), cmp.Compare(a.codec, b.codec))
	})
	h := points[:0]
	for _, p := range points {
		if len(h) > 0 && (p.value <= h[len(h)-1].value || p.bytes == h[len(h)-1].bytes) {
			continue
		}
		for len(h) > 1 && gain(h[len(h)-2], h[len(h)-1]) <= gain(h[len(h)-1], p) {
			h = h[:len(h)-1]
		}
		h = append(h, p)
	}
	return h
}

// gain returns the value of a byte between two points.
func gain(a, b point) float64 { return (b.value - a.value) / float64(b.bytes-a.bytes) }

// solve solves a multiple-choice knapsack: one point of each group's hull, of the largest value within a budget of bytes. It climbs
// the hulls from their lowest rungs, by falling gain and then by group, and passes over groups whose next rung does not fit. It
// returns the choice with its bytes, and the value that no choice within the budget exceeds: the optimum if rungs could be divided.
// If the lowest rungs alone exceed the budget, they are the choice, and the bound is their value.
func solve(hulls [][]point, budget int64) (choice []point, bytes int64, bound float64) {
	type rise struct {
		gain        float64
		group, rung int32
	}
	rises, value := make([]rise, 0, 4*len(hulls)), 0.0
	for g, h := range hulls {
		choice, bytes, value = append(choice, h[0]), bytes+h[0].bytes, value+h[0].value
		for r := 1; r < len(h); r++ {
			rises = append(rises, rise{gain(h[r-1], h[r]), int32(g), int32(r)})
		}
	}
	slices.SortFunc(rises, func(a, b rise) int {
		if a.gain != b.gain {
			return cmp.Compare(b.gain, a.gain)
		}
		return cmp.Or(cmp.Compare(a.group, b.group), cmp.Compare(a.rung, b.rung))
	})
	bound, divided := value, bytes > budget
	for _, r := range rises {
		from, to := hulls[r.group][r.rung-1], hulls[r.group][r.rung]
		if choice[r.group] != from {
			continue // a lower rung did not fit
		}
		if room := budget - bytes; to.bytes-from.bytes > room {
			if !divided {
				bound, divided = value+float64(r.gain*float64(room)), true
			}
			continue
		}
		choice[r.group], bytes, value = to, bytes+to.bytes-from.bytes, value+(to.value-from.value)
	}
	if !divided {
		bound = value
	}
	return choice, bytes, bound
}
