package hierarchy

import "slices"

// Ways returns the shapes, of those that Choose chooses between, that chunks can go over to which travel in shape now; now is one.
func (t Topology) Ways(now Shape) (ways []Shape) {
	for _, s := range chosen {
		t.Shape = s
		if s == now || t.Follows(now) == nil {
			ways = append(ways, s)
		}
	}
	return ways
}

// Drift notices that the steps of a running job take longer for good, or shorter. Then a link may have changed; but workers that
// compute longer look the same, so only measuring the links tells. Times are in seconds, of any one clock.
type Drift struct {
	windows []float64 // what a step took in the latest windows; at most lasting
	usual   float64   // what it took in the first; 0: these are not over
	next    float64   // nothing is measured before
	wait    float64   // from the last measurement until then
}

const (
	// drifts is the part by which a step's time must have changed, in as many windows in a row as lasting.
	drifts  = 0.15
	lasting = 3
	// Measuring holds a job up for seconds. From one measurement to the next it is at least apart, after one that failed retry, and
	// twice as long as the last time if no change of shape came of it, up to rarely.
	apart  = 5 * 60
	retry  = 30
	rarely = 60 * 60
)

// Window is told what a step took in a window of several, and returns whether to measure the links. That steps take shorter counts
// only where shorter says so, else it is what is usual from now on: workers that have warmed up look like that, too.
func (d *Drift) Window(now, step float64, shorter bool) (measure bool) {
	if len(d.windows) == lasting {
		d.windows = slices.Delete(d.windows, 0, 1)
	}
	if d.windows = append(d.windows, step); len(d.windows) < lasting {
		return false
	}
	switch {
	case d.usual == 0:
		d.settle()
	case slices.Min(d.windows) > (1+drifts)*d.usual:
		return now >= d.next
	case slices.Max(d.windows) < (1-drifts)*d.usual:
		if shorter {
			return now >= d.next
		}
		d.settle()
	}
	return false
}

// settle takes the latest windows for what is usual: their median, as one of them may have had a pause.
func (d *Drift) settle() {
	slices.Sort(d.windows)
	d.usual, d.windows = d.windows[len(d.windows)/2], d.windows[:0]
}

// Measured is told that the links were measured, and whether the job's shape was changed. What is usual is learned anew.
func (d *Drift) Measured(now float64, changed bool) {
	wait := min(max(2*d.wait, apart), rarely)
	if changed {
		wait = apart
	}
	*d = Drift{wait: wait, next: now + wait}
}

// Failed is told that the links could not be measured.
func (d *Drift) Failed(now float64) {
	d.wait = min(max(2*d.wait, retry), rarely)
	d.next = now + d.wait
}
