package roofline

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/rackweave/rackweave/bench/report"
	"github.com/rackweave/rackweave/cgo/fabric"
)

func TestMemoryMeasuresARate(t *testing.T) {
	got, err := Memory(2, 8<<20)
	if err != nil {
		t.Fatal(err)
	}
	// From a slow emulated machine to one with the fastest caches there are: outside, the arithmetic is wrong.
	if got.Name != "memory" || got.GBs < 0.05 || got.GBs > 5000 || got.Share != 0 {
		t.Errorf("roofline = %+v, want a rate in GB/s", got)
	}
	t.Logf("2 workers, 8 MiB: %.1f GB/s", got.GBs)
}

func TestArraysAreWithinBoundsAndWholeLines(t *testing.T) {
	for _, c := range []struct {
		workers int
		bytes   uint64
		want    uint64
	}{
		{1, 1, 4 << 20},
		{4, 100_000_000, 100_000_000 &^ 63},
		{8, 100_000_000, 64 << 20},
		{4, 100 << 30, 128 << 20},
		{1000, 100 << 30, 4 << 20},
	} {
		if got := arrayBytes(c.workers, c.bytes); got != c.want {
			t.Errorf("%d workers, %d bytes: arrays of %d, want %d", c.workers, c.bytes, got, c.want)
		}
	}
}

func TestTheSocketLoopIsAsTheExchangeWithinBounds(t *testing.T) {
	for _, c := range []struct {
		workers, lanes int
		bytes          uint64
		span           int
		total          int64
	}{
		{4, 2, 100_000_000, 32 << 20, 400_000_000},
		{4, 2, 10_000_000, 5_000_000, 40_000_000},
		{8, 1, 10 << 30, 32 << 20, 1 << 30},
		{2, 4, 1, 256 << 10, 16 << 20},
	} {
		got := socketLoop(c.workers, c.lanes, c.bytes)
		want := fabric.TCPRoofline{Connections: c.workers * c.lanes, Hubs: c.lanes, Peers: c.workers, Block: 256 << 10, Span: c.span,
			Bytes: c.total, Timeout: time.Minute}
		if got != want {
			t.Errorf("%d workers, %d lanes, %d bytes: %+v, want %+v", c.workers, c.lanes, c.bytes, got, want)
		}
	}
}

func TestTCPMeasuresARate(t *testing.T) {
	got, err := TCP(2, 2, 8<<20)
	if err != nil {
		t.Fatal(err)
	}
	if got.Name != "tcp" || got.GBs < 0.005 || got.GBs > 500 || got.Share != 0 {
		t.Errorf("roofline = %+v, want a rate in GB/s", got)
	}
	t.Logf("2 workers, 2 lanes, 8 MiB: %.2f GB/s", got.GBs)
}

func TestAMeasurementIsAMedianWithoutItsFirstRun(t *testing.T) {
	runs := 0
	gbs, err := measure(8_000_000, func() (time.Duration, error) {
		runs++
		if runs%3 == 1 { // the first, which does not count, and one of the others
			return 10 * time.Second, nil
		}
		return 100 * time.Millisecond, nil
	})
	if err != nil || gbs != 0.08 || runs != 1+leastRuns {
		t.Errorf("%v GB/s in %d runs, error %v; want 8 MB in 100 ms and %d runs", gbs, runs, err, 1+leastRuns)
	}
	broken := errors.New("broken")
	for _, at := range []int{1, 2} {
		runs = 0
		if _, err := measure(1, func() (time.Duration, error) {
			if runs++; runs == at {
				return 0, broken
			}
			return 1, nil
		}); !errors.Is(err, broken) {
			t.Errorf("run %d fails: error = %v, want its", at, err)
		}
	}
}

func TestWhatCannotBeMeasuredIsAnError(t *testing.T) {
	if _, err := TCP(2000, 1, 1); err == nil || !strings.Contains(err.Error(), "tcp roofline: ") {
		t.Errorf("2000 connections: error = %v, want the loop's", err)
	}
}

// BenchmarkRooflines are those of the exchanges that the project's targets are about: 100 MB of 4 and 8 workers, 2 lanes.
func BenchmarkRooflines(b *testing.B) {
	for _, workers := range []int{4, 8} {
		bench(b, fmt.Sprintf("memory/workers=%d", workers), workers,
			func() (report.Roofline, error) { return Memory(workers, 100_000_000) })
		bench(b, fmt.Sprintf("tcp/workers=%d", workers), workers, func() (report.Roofline, error) { return TCP(workers, 2, 100_000_000) })
	}
}

func bench(b *testing.B, name string, workers int, roofline func() (report.Roofline, error)) {
	b.Run(name, func(b *testing.B) {
		var rates []float64
		for b.Loop() {
			got, err := roofline()
			if err != nil {
				b.Fatal(err)
			}
			rates = append(rates, got.GBs)
		}
		b.ReportMetric(report.Median(rates), "GB/s")
		b.ReportMetric(2*float64(workers)*0.1/report.Median(rates)*1e3, "ms/exchange")
	})
}
