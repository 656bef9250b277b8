package report

import (
	"encoding/json"
	"math"
	"slices"
	"testing"
)

func TestBandwidthsAreThoseOfNCCLTests(t *testing.T) {
	for _, c := range []struct {
		bytes   uint64
		us      float64
		workers int
		alg     float64
		bus     float64
	}{
		{100_000_000, 20_000, 4, 5, 7.5},
		{100_000_000, 20_000, 8, 5, 8.75},
		{100_000_000, 20_000, 2, 5, 5},
		{100_000_000, 20_000, 1, 5, 0},
		{1000, 1, 2, 1, 1},
		{1000, 0, 2, 0, 0},
	} {
		alg := AlgBW(c.bytes, c.us)
		bus := BusBW(alg, c.workers)
		if math.Abs(alg-c.alg) > 1e-12 || math.Abs(bus-c.bus) > 1e-12 {
			t.Errorf("%d bytes in %v us, %d workers: algbw %v busbw %v, want %v %v", c.bytes, c.us, c.workers, alg, bus, c.alg, c.bus)
		}
	}
}

func TestSetTimesAndRooflineFillInWhatFollowsFromThem(t *testing.T) {
	r := Result{Workers: 2, Bytes: 1_000_000}
	r.SetTimes(TimeUS{Min: 900, Mean: 1000, P50: 990, P99: 1200, Max: 1300}, []float64{1000, 800})
	r.SetRoofline(Roofline{Name: "memory", GBs: 8})
	if r.AlgBW != 1 || r.BusBW != 1 || r.P99OverMean != 1.2 {
		t.Errorf("algbw %v busbw %v p99/mean %v, want 1 1 1.2", r.AlgBW, r.BusBW, r.P99OverMean)
	}
	if want := []float64{2, 2.5}; !slices.Equal(r.Goodput, want) {
		t.Errorf("goodput %v, want %v", r.Goodput, want)
	}
	if want := (Roofline{"memory", 8, 0.5}); r.Roofline != want {
		t.Errorf("roofline %+v, want %+v: 4 MB moved in 1 ms are 4 GB/s", r.Roofline, want)
	}
}

func TestSetTimesOfOtherWorkersPanics(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("no panic for one worker's time in a result of two")
		}
	}()
	r := Result{Workers: 2, Bytes: 8}
	r.SetTimes(TimeUS{}, []float64{1})
}

func TestOnlySoftwareProvidersCarryTheNote(t *testing.T) {
	for provider, want := range map[string]string{"shm": SoftwareNote, "tcp": SoftwareNote, "ibv": ""} {
		if got := NoteFor(provider); got != want {
			t.Errorf("NoteFor(%q) = %q, want %q", provider, got, want)
		}
	}
}

// The names are what users' scripts read: they do not change.
func TestResultJSONKeys(t *testing.T) {
	data, err := json.Marshal(Result{Server: "s", Note: "n", Verdict: Verdict{Reference: "r"}})
	if err != nil {
		t.Fatal(err)
	}
	var got map[string]any
	if err := json.Unmarshal(data, &got); err != nil {
		t.Fatal(err)
	}
	want := map[string][]string{
		"machine":  {"cpu", "cores", "memory", "kernel", "go", "caches"},
		"time_us":  {"min", "mean", "p50", "p99", "max"},
		"roofline": {"name", "gbs", "share"},
	}
	for _, key := range []string{"machine", "provider", "server", "workers", "model", "bytes", "dtype", "optimizer", "chunk_bytes",
		"iterations", "warmup", "time_us", "p99_over_mean", "algbw_gbs", "busbw_gbs", "goodput_gbs", "roofline", "wrong", "verified",
		"checksum", "reference_checksum", "lanes", "memory", "note"} {
		value, ok := got[key]
		if !ok {
			t.Errorf("no key %q", key)
		}
		for _, inner := range want[key] {
			if _, ok := value.(map[string]any)[inner]; !ok {
				t.Errorf("no key %q in %q", inner, key)
			}
		}
		delete(got, key)
	}
	for key := range got {
		t.Errorf("key %q is not tested", key)
	}
}
