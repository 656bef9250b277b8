package data

import (
	"math"
	"slices"

	"gonum.org/v1/gonum/stat"
	"gonum.org/v1/gonum/stat/distuv"
)

// brownForsythe tests samples for equal variances: it returns the statistic, an analysis of variance of the distances from each
// sample's median, and the probability of one as large if they are equal. The samples must have two values or more.
func brownForsythe(samples ...[]float64) (f, p float64) {
	var all []float64
	within := 0.0
	for _, s := range samples {
		sorted := slices.Sorted(slices.Values(s))
		median := (sorted[(len(s)-1)/2] + sorted[len(s)/2]) / 2
		distances := make([]float64, len(s))
		for i, x := range s {
			distances[i] = math.Abs(x - median)
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

// paired returns the mean of the differences a - b of pairs, and half the width of its 95 % interval.
func paired(a, b []float64) (mean, half float64) {
	d := slices.Clone(a)
	for i := range d {
		d[i] -= b[i]
	}
	mean, sd := stat.MeanStdDev(d, nil)
	return mean, 1.96 * sd / math.Sqrt(float64(len(d)))
}
