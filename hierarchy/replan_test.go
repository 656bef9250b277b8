package hierarchy

import (
	"slices"
	"testing"
)

func TestLinksAreMeasuredOnceStepsHaveDriftedForGood(t *testing.T) {
	const usual = 0.1
	many := func(n int, step float64) []float64 { return slices.Repeat([]float64{step}, n) }
	for _, tc := range []struct {
		name    string
		windows []float64 // after the first, in which steps take what is usual
		shorter bool
		at      int // the window after which links are measured; -1: they are not
	}{
		{"steady", many(100, usual), true, -1},
		{"longer by too little", many(100, 1.14*usual), true, -1},
		{"longer for too short a time", slices.Concat(many(lasting-1, 3*usual), many(9, usual)), true, -1},
		{"longer now and then", slices.Repeat([]float64{3 * usual, 3 * usual, usual}, 30), true, -1},
		{"longer for good", slices.Concat(many(7, usual), many(9, 1.2*usual)), false, 7 + lasting - 1},
		{"slowly longer", []float64{0.103, 0.107, 0.111, 0.114, 0.117, 0.12, 0.123}, false, 6},
		{"shorter, and that says nothing", many(100, usual/2), false, -1},
		{"longer than once they had become shorter", slices.Concat(many(4, usual/2), many(9, 0.6*usual)), false, 4 + lasting - 1},
		{"shorter, and that says something", slices.Concat(many(2, usual), many(9, usual/2)), true, 2 + lasting - 1},
		{"longer and shorter by turns", slices.Repeat([]float64{usual / 2, 2 * usual}, 30), true, -1},
	} {
		var d Drift
		for i := range lasting {
			if d.Window(float64(i), []float64{usual, 20 * usual, usual}[i], true) { // one with a pause
				t.Errorf("%s: links are measured before it is known what is usual", tc.name)
			}
		}
		at := slices.IndexFunc(tc.windows, func(step float64) bool { return d.Window(100, step, tc.shorter) })
		if at != tc.at {
			t.Errorf("%s: links are measured after window %d, want %d", tc.name, at, tc.at)
		}
	}
}

// Whatever steps do, a job is held up by measurements for a small part of its time, and the less the more of them were in vain.
func TestMeasurementsOfLinksAreFarApart(t *testing.T) {
	for _, tc := range []struct {
		name  string
		after func(d *Drift, now float64)
		waits []float64 // from each measurement to the next
	}{
		{"in vain", func(d *Drift, now float64) { d.Measured(now, false) }, []float64{300, 600, 1200, 2400, 3600, 3600}},
		{"with a change", func(d *Drift, now float64) { d.Measured(now, true) }, []float64{300, 300, 300}},
		{"failed", func(d *Drift, now float64) { d.Failed(now) }, []float64{30, 60, 120, 240, 480, 960, 1920, 3600, 3600}},
	} {
		var d Drift
		step, last := 1.0, -1.0
		var waits []float64
		for now := 1.0; len(waits) < len(tc.waits) && now < 1e5; now++ {
			if int(now)%10 == 0 {
				step *= 1.5
			}
			if !d.Window(now, step, true) {
				continue
			}
			if last >= 0 {
				waits = append(waits, now-last)
			}
			last = now
			tc.after(&d, now)
			step = min(step, 1e100)
		}
		for i, want := range tc.waits {
			if i >= len(waits) || waits[i] < want || waits[i] > want+30 {
				t.Errorf("%s: from one to the next %v s pass, want %v and little more", tc.name, waits, tc.waits)
				break
			}
		}
	}
}

func TestAJobGoesOverOnlyToShapesWithItsOwners(t *testing.T) {
	for _, tc := range []struct {
		racks, pods int
		now         Shape
		want        []Shape
	}{
		{4, 2, Sharded, []Shape{Sharded, Pods}},
		{4, 2, Pods, []Shape{Sharded, Pods}},
		{4, 2, Root, []Shape{Root}},
		{3, 1, Sharded, []Shape{Sharded}},
		{3, 1, Chain, []Shape{Chain}},
	} {
		top := Topology{Shape: tc.now, Racks: tc.racks, Pods: tc.pods}
		if got := top.Ways(tc.now); !slices.Equal(got, tc.want) {
			t.Errorf("%d racks in %d pods, %v: %v, want %v", tc.racks, tc.pods, tc.now, got, tc.want)
		}
	}
}
