package report

import (
	"math"
	"slices"
	"time"
)

// TimeUS is a distribution of latencies in microseconds. It is zero if nothing was measured.
type TimeUS struct {
	Min  float64 `json:"min"`
	Mean float64 `json:"mean"`
	P50  float64 `json:"p50"`
	P99  float64 `json:"p99"`
	Max  float64 `json:"max"`
}

// Distribution returns the distribution of latencies. A percentile is the latency that so many do not exceed.
func Distribution(times []time.Duration) TimeUS {
	n := float64(len(times))
	if n == 0 {
		return TimeUS{}
	}
	sorted := slices.Sorted(slices.Values(times))
	sum := 0.0
	for _, d := range sorted {
		sum += float64(d)
	}
	quantile := func(q float64) float64 { return microseconds(float64(sorted[int(math.Ceil(q*n))-1])) }
	return TimeUS{
		Min: microseconds(float64(sorted[0])), Mean: microseconds(sum / n), P50: quantile(0.50), P99: quantile(0.99),
		Max: microseconds(float64(sorted[len(sorted)-1])),
	}
}

// microseconds converts from nanoseconds, rounded to a whole nanosecond so that JSON stays readable.
func microseconds(ns float64) float64 { return math.Round(ns) / 1e3 }
