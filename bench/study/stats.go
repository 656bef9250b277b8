package study

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"gonum.org/v1/gonum/stat"
	"gonum.org/v1/gonum/stat/distuv"
)

// Figure is a number of an outcome.
type Figure func(*Outcome) float64

// Figures of every training.
var (
	Accuracy Figure = func(o *Outcome) float64 { return o.Accuracy }
	Loss     Figure = func(o *Outcome) float64 { return o.Loss }
	Time     Figure = func(o *Outcome) float64 { return o.Time }
)

// Values are figures of several trainings.
type Values []float64

// Of returns a figure of each run.
func (r *Row) Of(f Figure) Values {
	v := make(Values, len(r.Runs))
	for i := range r.Runs {
		v[i] = f(&r.Runs[i])
	}
	return v
}

// Had returns a figure of the runs that have it.
func (r *Row) Had(f Figure) Values {
	return slices.DeleteFunc(r.Of(f), func(x float64) bool { return x == 0 })
}

// Over returns a figure, divided by that of the same run of the row to compare with, of the runs that have it in both.
func (r *Row) Over(f Figure) (v Values) {
	base := r.Base.Of(f)
	for i, x := range r.Of(f) {
		if x != 0 && base[i] != 0 {
			v = append(v, x/base[i])
		}
	}
	return v
}

// Above returns a figure less that of the same run of another row.
func (r *Row) Above(other *Row, f Figure) Values {
	v := r.Of(f)
	for i, x := range other.Of(f) {
		v[i] -= x
	}
	return v
}

// Mean returns the mean.
func (v Values) Mean() float64 { return stat.Mean(v, nil) }

// SD returns the standard deviation.
func (v Values) SD() float64 { return stat.StdDev(v, nil) }

// Half returns half the width of the 95 % interval around the mean.
func (v Values) Half() float64 {
	if len(v) < 2 {
		return 0
	}
	return 1.96 * stat.StdErr(v.SD(), float64(len(v)))
}

// Interval prints the mean and its 95 % interval by a format for each.
func (v Values) Interval(mean, half string) string {
	return fmt.Sprintf(mean+" ± "+half, v.Mean(), v.Half())
}

// Quantile returns the value that a share of the values lies below, between two of them if need be. Without values it is 0.
func (v Values) Quantile(share float64) float64 {
	if len(v) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(v))
	at, rest := math.Modf(share * float64(len(sorted)-1))
	low, high := sorted[int(at)], sorted[min(int(at)+1, len(sorted)-1)]
	return low + rest*(high-low)
}

// Median returns the median.
func (v Values) Median() float64 { return v.Quantile(0.5) }

// Quartiles prints the median and the quartiles by a format for each.
func (v Values) Quartiles(format string) string {
	if len(v) == 0 {
		return "-"
	}
	return fmt.Sprintf(strings.ReplaceAll("V (V-V)", "V", format), v.Median(), v.Quantile(0.25), v.Quantile(0.75))
}

// BrownForsythe tests samples for equal variances: it returns the statistic, an analysis of variance of the distances from each
// sample's median, and the probability of one as large if they are equal. The samples must have two values or more.
func BrownForsythe(samples ...Values) (f, p float64) {
	var all []float64
	within := 0.0
	for _, s := range samples {
		distances := make([]float64, len(s))
		for i, x := range s {
			distances[i] = math.Abs(x - s.Median())
		}
		within += float64(len(s)-1) * stat.Variance(distances, nil)
		all = append(all, distances...)
	}
	d1, d2 := float64(len(samples)-1), float64(len(all)-len(samples))
	between := float64(len(all)-1)*stat.Variance(all, nil) - within
	if between <= 0 {
		return 0, 1
	}
	f = between / d1 / (within / d2)
	return f, distuv.F{D1: d1, D2: d2}.Survival(f)
}
