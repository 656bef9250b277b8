package learn

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// Spread is the median and the quartiles of runs.
type Spread struct{ Median, Low, High float64 }

// Interval is a mean with the half width of its 95 % interval.
type Interval struct{ Mean, Half float64 }

// Row has the figures of a policy, or of racks that meet in a way, on a cluster, over all runs. Times are in steps of the fastest
// worker.
type Row struct {
	Cluster, Way string
	Runs         int
	// Missed counts the runs that did not reach the target; the times are of the others.
	Missed    int
	Time      Spread
	OverBSP   Spread   // time, by run, over BSP's of the same seed
	Accuracy  Interval // percent
	Gain      Interval // points of accuracy above BSP's of the same seed and fold
	RateRatio float64  // pushes in a time, over BSP's
	MaxLead   uint64
	Predicted float64 // RateRatio by the formula of Strategy-Switch, or by the simulation
	Crossed   Spread  // models that crossed the core, from each rack
	Switched  Spread  // epoch of the switch, of the runs that had one
	Switches  int     // runs that had one

	// Of ways to shorten gradients: the learning rate, bits for an element of a gradient and of an answer, the loss at the end, the
	// bytes to the target over those of no codec with the same seed, and the means on the way. Time is in steps.
	Rate     float64
	Up, Down float64
	Loss     Interval
	Over     Interval // points of accuracy above the way that the study compares with
	Cost     Spread
	Curve    []Point
}

func spread(values []float64) Spread {
	if len(values) == 0 {
		return Spread{}
	}
	sorted := slices.Sorted(slices.Values(values))
	at := func(q float64) float64 {
		i := q * float64(len(sorted)-1)
		low := int(i)
		high := min(low+1, len(sorted)-1)
		return sorted[low] + (i-float64(low))*(sorted[high]-sorted[low])
	}
	return Spread{at(0.5), at(0.25), at(0.75)}
}

func interval(values []float64) Interval {
	n := float64(len(values))
	if n == 0 {
		return Interval{}
	}
	mean, squares := 0.0, 0.0
	for _, v := range values {
		mean += v / n
	}
	for _, v := range values {
		squares += (v - mean) * (v - mean)
	}
	if n < 2 {
		return Interval{Mean: mean}
	}
	return Interval{mean, 1.96 * math.Sqrt(squares/(n-1)/n)}
}

// summarise makes a row of the outcomes of one variant, beside BSP's of the same seeds.
func summarise(s Setting, outcomes, bsp []Outcome) Row {
	row := Row{Cluster: s.Cluster.String(), Way: s.way(), Rate: s.LR, Runs: len(outcomes), Curve: slices.Clone(outcomes[0].Curve)}
	clear(row.Curve)
	var times, ratios, accuracy, loss, cost, switched, crossed []float64
	n := float64(len(outcomes))
	for i, o := range outcomes {
		accuracy, loss = append(accuracy, 100*o.Accuracy), append(loss, o.Loss)
		row.Up, row.Down = row.Up+o.Up/n, row.Down+o.Down/n
		for k, p := range o.Curve {
			to := &row.Curve[k]
			to.Step, to.Bytes, to.Loss, to.Accuracy = p.Step, to.Bytes+p.Bytes/n, to.Loss+p.Loss/n, to.Accuracy+p.Accuracy/n
		}
		row.RateRatio += float64(o.Pushes) / o.Time * bsp[i].Time / float64(bsp[i].Pushes) / n
		row.MaxLead = max(row.MaxLead, o.MaxLead)
		crossed = append(crossed, o.Crossed)
		if o.Switched > 0 {
			switched = append(switched, o.Switched)
		}
		time, his := o.Time, bsp[i].Time
		if s.Target > 0 {
			time, his = o.ToTarget, bsp[i].ToTarget
		}
		if time == 0 {
			row.Missed++
			continue
		}
		times = append(times, time)
		if his > 0 {
			ratios = append(ratios, time/his)
		}
		if o.Bytes*bsp[i].Bytes > 0 {
			cost = append(cost, o.Bytes/bsp[i].Bytes)
		}
	}
	row.Time, row.OverBSP, row.Cost = spread(times), spread(ratios), spread(cost)
	row.Accuracy, row.Gain, row.Loss = interval(accuracy), over(outcomes, bsp), interval(loss)
	row.Crossed, row.Switched, row.Switches = spread(crossed), spread(switched), len(switched)
	return row
}

// over returns the points of accuracy by which trainings end above others of the same seeds.
func over(outcomes, others []Outcome) Interval {
	var points []float64
	for i, o := range outcomes {
		points = append(points, 100*(o.Accuracy-others[i].Accuracy))
	}
	return interval(points)
}

// column is a figure of a row.
type column struct {
	head string
	text func(*Row) string
}

var (
	timeTo = column{"time", func(r *Row) string {
		text := r.Time.text("%.0f")
		if r.Missed > 0 {
			text += fmt.Sprintf(" %d missed", r.Missed)
		}
		return text
	}}
	overBSP    = column{"time over bsp's", func(r *Row) string { return dashUnless(r.Missed < r.Runs, r.OverBSP.text("%.2f")) }}
	accuracy   = column{"accuracy %", func(r *Row) string { return fmt.Sprintf("%.2f ± %.2f", r.Accuracy.Mean, r.Accuracy.Half) }}
	gain       = column{"points over bsp", func(r *Row) string { return fmt.Sprintf("%+.2f ± %.2f", r.Gain.Mean, r.Gain.Half) }}
	rateRatio  = column{"pushes/s over bsp's", func(r *Row) string { return fmt.Sprintf("%.2f", r.RateRatio) }}
	predicted  = column{"predicted", func(r *Row) string { return dashUnless(r.Predicted > 0, fmt.Sprintf("%.2f", r.Predicted)) }}
	switchedAt = column{"switched at epoch", func(r *Row) string { return dashUnless(r.Switches > 0, r.Switched.text("%.1f")) }}
	maxLead    = column{"max lead", func(r *Row) string { return fmt.Sprint(r.MaxLead) }}
	crossed    = column{"models across the core", func(r *Row) string { return r.Crossed.text("%.1f") }}
)

func (s *Spread) text(format string) string {
	return fmt.Sprintf(strings.ReplaceAll("V (V-V)", "V", format), s.Median, s.Low, s.High)
}

func dashUnless(has bool, text string) string {
	if !has {
		return "-"
	}
	return text
}
