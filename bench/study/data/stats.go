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
	var all, means []float64
	within := 0.0
	for _, s := range samples {
		sorted := slices.Sorted(slices.Values(s))
		median := (sorted[(len(s)-1)/2] + sorted[len(s)/2]) / 2
		distances := make([]float64, len(s))
		for i, x := range s {
			distances[i] = math.Abs(x - median)
		}
		mean := stat.Mean(distances, nil)
		for _, d := range distances {
			within += (d - mean) * (d - mean)
			means = append(means, mean)
		}
		all = append(all, distances...)
	}
	grand, between := stat.Mean(all, nil), 0.0
	for _, m := range means {
		between += (m - grand) * (m - grand)
	}
	d1, d2 := float64(len(samples)-1), float64(len(all)-len(samples))
	if between == 0 {
		return 0, 1
	}
	f = between / d1 / (within / d2)
	return f, distuv.F{D1: d1, D2: d2}.Survival(f)
}

// variances returns the F statistic of two sample variances of n values each, x's over y's, and the probability of a ratio as far
// from 1 on either side, if the values are normal with equal variances.
func variances(x, y float64, n int) (f, p float64) {
	d := distuv.F{D1: float64(n - 1), D2: float64(n - 1)}
	f = x / y
	return f, 2 * min(d.CDF(f), d.Survival(f))
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
