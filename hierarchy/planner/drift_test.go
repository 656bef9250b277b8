package planner

import (
	"slices"
	"testing"
)

func TestStepsHaveDriftedWhenTheyTakeLongerForGood(t *testing.T) {
	const usual = 0.1
	many := func(n int, step float64) []float64 { return slices.Repeat([]float64{step}, n) }
	for _, tc := range []struct {
		name    string
		windows []float64 // after the first, in which steps take what is usual
		at      int       // the window after which they have drifted; -1: never
	}{
		{"steady", many(100, usual), -1},
		{"longer by too little", many(100, 1.14*usual), -1},
		{"longer for too short a time", slices.Concat(many(lasting-1, 3*usual), many(9, usual)), -1},
		{"longer now and then", slices.Repeat([]float64{3 * usual, 3 * usual, usual}, 30), -1},
		{"longer for good", slices.Concat(many(7, usual), many(9, 1.2*usual)), 7 + lasting - 1},
		{"slowly longer", []float64{0.103, 0.107, 0.111, 0.114, 0.117, 0.12, 0.123}, 6},
		{"shorter", many(100, usual/2), -1},
		{"longer than once they had become shorter", slices.Concat(many(4, usual/2), many(9, 0.6*usual)), 4 + lasting - 1},
		{"longer and shorter by turns", slices.Repeat([]float64{usual / 2, 2 * usual}, 30), -1},
	} {
		var d Drift
		drifted := func(step float64) bool {
			d.Window(step)
			_, _, longer := d.Longer()
			return longer
		}
		for _, step := range []float64{usual, 20 * usual, usual} { // one with a pause
			if drifted(step) {
				t.Errorf("%s: steps have drifted before it is known what is usual", tc.name)
			}
		}
		if at := slices.IndexFunc(tc.windows, drifted); at != tc.at {
			t.Errorf("%s: steps have drifted after window %d, want %d", tc.name, at, tc.at)
		}
	}
}

func TestStepsThatTakeAsLongAsAtFirstAgainHaveNotDrifted(t *testing.T) {
	var d Drift
	for i, step := range []float64{1, 1, 1, 2, 2, 2, 1} {
		d.Window(step)
		if now, usual, longer := d.Longer(); longer != (i == 5) || longer && (now != 2 || usual != 1) {
			t.Errorf("after window %d a step takes %v, usually %v; drifted: %v", i, now, usual, longer)
		}
	}
}
