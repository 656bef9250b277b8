package planner

import "slices"

// Drift detects that the steps of a running job have become longer for good. Then a link may have changed. Workers that compute for
// longer look the same.
type Drift struct {
	windows []float64 // step times of the latest windows, at most lasting of them
	usual   float64   // step time of the first windows, or 0 until they are over
}

// Steps have drifted if, in lasting windows in a row, a step was longer than usual by the fraction drifts.
const (
	drifts  = 0.15
	lasting = 3
)

// Window adds the mean time of the steps of a window, in seconds. Steps that become shorter are usual from then on, because warm-up
// makes the first steps longer.
func (d *Drift) Window(step float64) {
	if len(d.windows) == lasting {
		d.windows = slices.Delete(d.windows, 0, 1)
	}
	d.windows = append(d.windows, step)
	if len(d.windows) == lasting && (d.usual == 0 || slices.Max(d.windows) < (1-drifts)*d.usual) {
		slices.Sort(d.windows)
		d.usual, d.windows = d.windows[lasting/2], d.windows[:0] // the median, because a window may contain a pause
	}
}

// Longer returns the least time of a recent step and the usual time, and reports whether steps have drifted.
func (d *Drift) Longer() (now, usual float64, longer bool) {
	if len(d.windows) < lasting {
		return 0, d.usual, false
	}
	now = slices.Min(d.windows)
	return now, d.usual, now > (1+drifts)*d.usual
}
