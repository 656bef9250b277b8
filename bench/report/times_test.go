package report

import (
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestDistributionOfNothingIsZero(t *testing.T) {
	if got := Distribution(nil); got != (TimeUS{}) {
		t.Errorf("distribution of nothing = %+v, want zeros", got)
	}
}

func TestDistributionOfOneLatencyIsThatLatency(t *testing.T) {
	got := Distribution([]time.Duration{123456789})
	if want := (TimeUS{123456.789, 123456.789, 123456.789, 123456.789, 123456.789}); got != want {
		t.Errorf("distribution = %+v, want %+v", got, want)
	}
}

func TestDistributionTakesClocksThatStepAndLongTimes(t *testing.T) {
	got := Distribution([]time.Duration{0, 48 * time.Hour, -5})
	if got.Min != -0.005 || got.P50 != 0 || got.Max != 48*3600e6 {
		t.Errorf("distribution = %+v, want -0.005, 0 and %v", got, 48*3600e6)
	}
}

// A percentile is one of the latencies: so many do not exceed it, and fewer do not exceed any smaller one.
func TestDistributionCountsLatencies(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ns := rapid.SliceOfN(rapid.Int64Range(1, int64(time.Hour)), 1, 300).Draw(t, "ns")
		times, sum, least, most := make([]time.Duration, len(ns)), 0.0, ns[0], ns[0]
		for i, v := range ns {
			times[i] = time.Duration(v)
			sum += float64(v)
			least, most = min(least, v), max(most, v)
		}
		got := Distribution(times)
		if got.Min != float64(least)/1e3 || got.Max != float64(most)/1e3 {
			t.Errorf("least %v and most %v, want %d and %d ns", got.Min, got.Max, least, most)
		}
		if want := sum / float64(len(ns)) / 1e3; math.Abs(got.Mean-want) > 0.001+1e-12*want {
			t.Errorf("mean = %v, want %v", got.Mean, want)
		}
		for q, value := range map[float64]float64{0.5: got.P50, 0.99: got.P99} {
			within, below, found := 0, 0, false
			for _, v := range ns {
				switch us := float64(v) / 1e3; {
				case us < value:
					below++
					within++
				case us == value:
					within++
					found = true
				}
			}
			if share := q * float64(len(ns)); !found || float64(within) < share || float64(below) >= share {
				t.Errorf("p%g = %v: %d of %d are below, %d do not exceed it", 100*q, value, below, len(ns), within)
			}
		}
	})
}
