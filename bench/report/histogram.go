package report

import (
	"math"
	"time"

	hdrhistogram "github.com/HdrHistogram/hdrhistogram-go"
)

// Percentiles are within 0.1 % of the recorded time, from a nanosecond to an hour.
const (
	histogramMax    = time.Hour
	histogramDigits = 3
)

// Histogram collects latencies. It does not allocate after NewHistogram, and is not safe for concurrent use: give each
// worker its own and merge.
type Histogram struct {
	hdr      *hdrhistogram.Histogram
	min, max time.Duration
	sum      float64 // ns; exact to 2^53, 104 days
}

// TimeUS is a distribution of latencies in microseconds. The zero value says that nothing was measured.
type TimeUS struct {
	Min  float64 `json:"min"`
	Mean float64 `json:"mean"`
	P50  float64 `json:"p50"`
	P99  float64 `json:"p99"`
	Max  float64 `json:"max"`
}

// NewHistogram returns an empty histogram.
func NewHistogram() *Histogram {
	return &Histogram{hdr: hdrhistogram.New(1, int64(histogramMax), histogramDigits)}
}

// Record adds one latency. Minimum, mean and maximum take it as it is; percentiles take less than a nanosecond as one, and
// more than an hour as an hour.
func (h *Histogram) Record(d time.Duration) {
	if h.hdr.TotalCount() == 0 {
		h.min, h.max = d, d
	}
	h.min = min(h.min, d)
	h.max = max(h.max, d)
	h.sum += float64(d)
	if err := h.hdr.RecordValue(int64(min(max(d, 1), histogramMax))); err != nil {
		panic("report: a clamped latency is out of the histogram's range: " + err.Error())
	}
}

// Count returns how many latencies were recorded.
func (h *Histogram) Count() int64 { return h.hdr.TotalCount() }

// Quantile returns the latency in microseconds that a share q (0 to 1) of the recorded ones does not exceed; 0 if there
// are none.
func (h *Histogram) Quantile(q float64) float64 {
	if h.Count() == 0 {
		return 0
	}
	// A bucket answers with its upper end: never more than was really seen.
	// The library rounds the rank to the nearest whole one, which can be one too low.
	n := float64(h.hdr.TotalCount())
	rank := math.Ceil(q * n)
	d := min(max(time.Duration(h.hdr.ValueAtQuantile(100*rank/n)), h.min), h.max)
	return microseconds(float64(d))
}

// Summary returns the distribution.
func (h *Histogram) Summary() TimeUS {
	if h.Count() == 0 {
		return TimeUS{}
	}
	return TimeUS{
		Min:  microseconds(float64(h.min)),
		Mean: microseconds(h.sum / float64(h.Count())),
		P50:  h.Quantile(0.50),
		P99:  h.Quantile(0.99),
		Max:  microseconds(float64(h.max)),
	}
}

// microseconds converts from nanoseconds, rounded to a whole nanosecond so that JSON stays readable.
func microseconds(ns float64) float64 { return math.Round(ns) / 1e3 }
