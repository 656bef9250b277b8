package ratecontrol

import (
	"cmp"
	"math"
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

// rise is a step up a group's hull.
type rise struct {
	key         uint64 // falls with the gain
	group, rung int32
}

// knapsack solves a multiple-choice knapsack: one point for each group, of the largest value within a budget of bytes. It keeps its
// memory between solutions.
type knapsack struct {
	points []point
	first  []int32 // of each group's hull in points, and the end
	rises  []rise
	at     []int32 // each group's rung
}

func (k *knapsack) reset() { k.points, k.first = k.points[:0], append(k.first[:0], 0) }

// add adds the hull of the next group's points.
func (k *knapsack) add(points []point) {
	k.points = append(k.points, hull(points)...)
	k.first = append(k.first, int32(len(k.points)))
}

// solve climbs the hulls from their lowest rungs, by falling gain and then by group, and passes over groups whose next rung does
// not fit. It returns the bytes and the value of its choice, and the value that no choice within the budget exceeds: the optimum
// if rungs could be divided. If the lowest rungs alone exceed the budget, they are the choice, and the bound is their value.
func (k *knapsack) solve(budget int64) (bytes int64, value, bound float64) {
	groups := len(k.first) - 1
	k.at, k.rises = append(k.at[:0], make([]int32, groups)...), k.rises[:0]
	for g := range groups {
		h := k.points[k.first[g]:k.first[g+1]]
		bytes, value = bytes+h[0].bytes, value+h[0].value
		for r := 1; r < len(h); r++ {
			// Of positive numbers, bits compare as the numbers do.
			k.rises = append(k.rises, rise{^math.Float64bits(gain(h[r-1], h[r])), int32(g), int32(r)})
		}
	}
	slices.SortFunc(k.rises, func(a, b rise) int {
		if a.key != b.key {
			return cmp.Compare(a.key, b.key)
		}
		return cmp.Or(cmp.Compare(a.group, b.group), cmp.Compare(a.rung, b.rung))
	})
	bound, divided := value, bytes > budget
	for _, r := range k.rises {
		if k.at[r.group] != r.rung-1 {
			continue // a lower rung did not fit
		}
		from, to := k.points[k.first[r.group]+r.rung-1], k.points[k.first[r.group]+r.rung]
		if room := budget - bytes; to.bytes-from.bytes > room {
			if !divided {
				bound, divided = value+float64(gain(from, to)*float64(room)), true
			}
			continue
		}
		k.at[r.group], bytes, value = r.rung, bytes+to.bytes-from.bytes, value+(to.value-from.value)
	}
	if !divided {
		bound = value
	}
	return bytes, value, bound
}

// codec returns the choice for a group.
func (k *knapsack) codec(g int) uint8 { return k.points[k.first[g]+k.at[g]].codec }
