package learn

import (
	"fmt"

	"github.com/rackweave/rackweave/bench/study"
)

// figure formats the figure that a function returns of a row.
func figure(head, format string, of func(*study.Row) float64) study.Column {
	return study.Column{Head: head, Text: func(r *study.Row) string { return fmt.Sprintf(format, of(r)) }}
}

func toTarget(o *study.Outcome) float64 { return o.ToTarget }
func switched(o *study.Outcome) float64 { return o.Switched }
func crossing(o *study.Outcome) float64 { return o.Crossed }
func bytes(o *study.Outcome) float64    { return o.Bytes }
func pushRate(o *study.Outcome) float64 { return o.Pushes / o.Time }
func expected(o *study.Outcome) float64 { return o.Expected }

// ratio returns the pushes in a time over bsp's.
func ratio(r *study.Row) float64 { return r.Over(pushRate).Mean() }

// lead returns the most steps by which a worker began ahead of another.
func lead(r *study.Row) (most float64) {
	for _, o := range r.Runs {
		most = max(most, o.MaxLead)
	}
	return most
}

// above returns a column of the points of accuracy above another row's.
func above(head string, other func(*study.Row) *study.Row) study.Column {
	return study.Column{Head: head, Text: func(r *study.Row) string {
		return r.Above(other(r), study.Accuracy).Interval("%+.2f", "%.2f")
	}}
}

func base(r *study.Row) *study.Row { return r.Base }

var (
	timeTo    = study.Column{Head: "time", Text: reached}
	overBSP   = study.Column{Head: "time over bsp's", Text: func(r *study.Row) string { return r.Over(toTarget).Quartiles("%.2f") }}
	accuracy  = study.Column{Head: "accuracy %", Text: func(r *study.Row) string { return r.Of(study.Accuracy).Interval("%.2f", "%.2f") }}
	gain      = above("points over bsp", base)
	rateRatio = figure("pushes/s over bsp's", "%.2f", ratio)
	simulated = figure("predicted", "%.2f", func(r *study.Row) float64 { return r.Over(expected).Mean() })
	formula   = study.Column{Head: "predicted", Text: func(r *study.Row) string {
		if x := predict(r); x > 0 {
			return fmt.Sprintf("%.2f", x)
		}
		return "-"
	}}
	switchedAt = study.Column{Head: "switched at epoch", Text: func(r *study.Row) string { return r.Had(switched).Quartiles("%.1f") }}
	maxLead    = figure("max lead", "%.0f", lead)
	crossed    = study.Column{Head: "models across the core", Text: func(r *study.Row) string { return r.Of(crossing).Quartiles("%.1f") }}
)

// reached prints the times to the target, and how many runs missed it.
func reached(r *study.Row) string {
	times := r.Had(toTarget)
	text := times.Quartiles("%.0f")
	if missed := len(r.Runs) - len(times); missed > 0 {
		text += fmt.Sprintf(" %d missed", missed)
	}
	return text
}

// Columns of ways to shorten gradients.
var codedColumns = []study.Column{
	figure("lr", "%g", func(r *study.Row) float64 { return r.Runs[0].Rate }),
	figure("bits up", "%.2f", func(r *study.Row) float64 { return r.Of(func(o *study.Outcome) float64 { return o.Up }).Mean() }),
	figure("bits down", "%.2f", func(r *study.Row) float64 { return r.Of(func(o *study.Outcome) float64 { return o.Down }).Mean() }),
	accuracy,
	above("points over none", base),
	{Head: "loss", Text: func(r *study.Row) string { return r.Of(study.Loss).Interval("%.3f", "%.3f") }},
	{Head: "steps to the target", Text: reached},
	{Head: "bytes, of none's", Text: func(r *study.Row) string { return r.Over(bytes).Quartiles("%.3f") }},
}
