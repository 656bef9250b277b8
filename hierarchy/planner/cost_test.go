package planner

import (
	"math"
	"testing"

	"github.com/rackweave/rackweave/hierarchy"
)

const gbps = 1e9 / 8

func lab(racks, workers int, over float64) *Cluster {
	return &Cluster{
		Racks: racks, Workers: workers, WorkerNIC: 10 * gbps, AggregatorNIC: 10 * gbps * float64(workers),
		Uplink: 10 * gbps * float64(workers) / over, RackLatency: 5e-6, CoreLatency: 15e-6,
	}
}

func TestOversubscriptionDecidesBetweenFlatAndSharded(t *testing.T) {
	const model, chunk = 100e6, 32 << 10
	for _, tc := range []struct {
		over float64
		best hierarchy.Shape
	}{{8, hierarchy.Sharded}, {4, hierarchy.Sharded}, {0.25, hierarchy.Flat}} {
		c := lab(2, 4, tc.over)
		all, err := c.Choose(model, chunk)
		if err != nil {
			t.Fatal(err)
		}
		if s := all[0].Shape; s != tc.best && all[0].Seconds < 0.999*c.Predict(tc.best, model, chunk).Seconds {
			t.Errorf("core %g:1: %v is best, expected %v", tc.over, s, tc.best)
		}
	}
	// Both bound by the core, flat takes W times as long.
	c := lab(2, 4, 8)
	if r := c.Predict(hierarchy.Flat, model, chunk).Bound / c.Predict(hierarchy.Sharded, model, chunk).Bound; math.Abs(r-4) > 1e-9 {
		t.Errorf("flat takes %g times sharded's bound, not 4", r)
	}
}

func TestBadClustersAreRefused(t *testing.T) {
	good := lab(4, 2, 4)
	for name, spoil := range map[string]func(*Cluster){
		"no racks": func(c *Cluster) { c.Racks = 0 }, "pods that do not divide": func(c *Cluster) { c.Pods = 3 },
		"no uplink": func(c *Cluster) { c.Uplink = 0 }, "NaN": func(c *Cluster) { c.WorkerNIC = math.NaN() },
		"more racks than can run": func(c *Cluster) { c.Racks = hierarchy.MaxRacks + 1 },
		"negative latency":        func(c *Cluster) { c.CoreLatency = -1 },
	} {
		c := *good
		spoil(&c)
		if _, err := c.Choose(1e8, 1<<15); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

// The paper's 120 workers (section VII.B): 90 GB/s of PCIe to memory, in and out, ResNet-50 of 102.2 MB.
func TestWorkersOfOneAggregator(t *testing.T) {
	c := Cluster{AggregatorNIC: 1e12, Memory: 90e9}
	for _, tc := range []struct {
		step float64
		want int
	}{{0.161, 70}, {0.348, 153}, {0.273, 120}} {
		if got, of := c.Capacity(102.2e6, tc.step); got != tc.want || of != "memory" {
			t.Errorf("a step of %g s: %d workers by %s; expected %d", tc.step, got, of, tc.want)
		}
	}
}
