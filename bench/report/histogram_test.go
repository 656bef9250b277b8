package report

import (
	"math"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestHistogramOfNothingIsZero(t *testing.T) {
	h := NewHistogram()
	if got := h.Summary(); got != (TimeUS{}) {
		t.Errorf("Summary of an empty histogram = %+v, want zeros", got)
	}
	if got := h.Quantile(0.5); got != 0 {
		t.Errorf("Quantile of an empty histogram = %v, want 0", got)
	}
}

func TestHistogramOfOneLatencyIsThatLatency(t *testing.T) {
	h := NewHistogram()
	h.Record(123456789 * time.Nanosecond)
	if got, want := h.Summary(), (TimeUS{123456.789, 123456.789, 123456.789, 123456.789, 123456.789}); got != want {
		t.Errorf("Summary = %+v, want %+v", got, want)
	}
}

func TestHistogramTakesLatenciesOutOfItsRange(t *testing.T) {
	h := NewHistogram()
	h.Record(-5 * time.Nanosecond) // a clock that stepped
	h.Record(0)
	h.Record(48 * time.Hour)
	got := h.Summary()
	if got.Min != -0.005 || got.Max != 48*3600e6 {
		t.Errorf("Summary = %+v, want min -0.005 and max %v", got, 48*3600e6)
	}
}

// A sorted slice is the oracle: minimum, mean and maximum are exact, percentiles within the histogram's precision.
func TestHistogramAgreesWithSortedLatencies(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ns := rapid.SliceOfN(rapid.Int64Range(1, int64(time.Hour)), 1, 300).Draw(t, "ns")
		h := NewHistogram()
		sum := 0.0
		for _, v := range ns {
			h.Record(time.Duration(v))
			sum += float64(v)
		}
		slices.Sort(ns)
		got := h.Summary()
		if h.Count() != int64(len(ns)) {
			t.Fatalf("Count = %d, want %d", h.Count(), len(ns))
		}
		if want := float64(ns[0]) / 1e3; got.Min != want {
			t.Errorf("Min = %v, want %v", got.Min, want)
		}
		if want := float64(ns[len(ns)-1]) / 1e3; got.Max != want {
			t.Errorf("Max = %v, want %v", got.Max, want)
		}
		if want := sum / float64(len(ns)) / 1e3; math.Abs(got.Mean-want) > 0.001+1e-12*want {
			t.Errorf("Mean = %v, want %v", got.Mean, want)
		}
		for q, value := range map[float64]float64{0.5: got.P50, 0.99: got.P99} {
			rank := max(int(math.Ceil(q*float64(len(ns)))), 1)
			if want := float64(ns[rank-1]) / 1e3; math.Abs(value-want) > 0.001*want+0.001 {
				t.Errorf("p%g = %v, want %v within 0.1 %%", 100*q, value, want)
			}
		}
	})
}

func TestRecordDoesNotAllocate(t *testing.T) {
	h := NewHistogram()
	d := time.Duration(1)
	if n := testing.AllocsPerRun(1000, func() { d += 977; h.Record(d) }); n != 0 {
		t.Errorf("Record allocates %v times", n)
	}
}
