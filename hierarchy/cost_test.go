package hierarchy

import (
	"fmt"
	"math"
	"testing"
)

const gbps = 1e9 / 8

func lab(racks, workers int, over float64) *Cluster {
	return &Cluster{
		Racks: racks, Workers: workers, WorkerNIC: 10 * gbps, AggregatorNIC: 10 * gbps * float64(workers),
		Uplink: 10 * gbps * float64(workers) / over, RackLatency: 5e-6, CoreLatency: 15e-6, SpineNIC: 40 * gbps,
	}
}

// simulateEach is [Cluster.Simulate] with each worker by itself.
func simulateEach(c *Cluster, s Shape, chunks int, chunk float64, window int) float64 {
	sim := newSimulation(c, chunk, window)
	sim.alike = 1
	for i := range chunks {
		sim.add(c, s, i)
	}
	return sim.run()
}

// What the formula predicts is never less than the links allow, and close to what following every transfer gives. Where two links
// in series are equally tight their queues add up, which the formula leaves out: there it may be a quarter short.
func TestPredictionsAgreeWithTheSimulation(t *testing.T) {
	const chunk = 32 << 10
	for _, c := range []*Cluster{lab(1, 4, 1), lab(2, 4, 1), lab(2, 4, 8), lab(4, 2, 4), lab(3, 3, 2)} {
		for _, spare := range []float64{1, 1.5} {
			c := *c
			c.AggregatorNIC *= spare
			low := 0.75
			if spare > 1 {
				low = 0.85
			}
			for _, s := range Shapes() {
				if s.Fits(&c) != nil {
					continue
				}
				t.Run(fmt.Sprintf("%v, %d racks of %d, uplink %.0f, aggregator %.0f Gb/s", s, c.Racks, c.Workers,
					c.Uplink/gbps, c.AggregatorNIC/gbps), func(t *testing.T) {
					chunks := 100 * c.Racks
					p := c.Predict(s, float64(chunks)*chunk, chunk)
					got := simulateEach(&c, s, chunks, chunk, 0)
					if got < p.Bound*0.999 {
						t.Errorf("simulated %.3g s, less than the bound of %.3g s", got, p.Bound)
					}
					if r := p.Seconds / got; r < low || r > 1.05 {
						t.Errorf("predicted %.4g s, simulated %.4g s: %.2f of it", p.Seconds, got, r)
					}
				})
			}
		}
	}
}

// Workers of a rack that are followed as one take as long as each followed alone.
func TestWorkersThatAreAlikeTakeAsLongAsEachAlone(t *testing.T) {
	const chunk = 32 << 10
	for _, c := range []*Cluster{lab(1, 8, 1), lab(2, 4, 8), lab(3, 3, 2), lab(8, 2, 4)} {
		c.FoldRate = 6e9
		if c.Racks == 8 {
			c.Pods, c.PodUplink = 2, c.Uplink*2
		}
		for _, s := range Shapes() {
			if s.Fits(c) != nil {
				continue
			}
			for _, window := range []int{0, 16} {
				each, one := simulateEach(c, s, 60*c.Racks, chunk, window), c.Simulate(s, 60*c.Racks, chunk, window)
				if r := one / each; r < 0.97 || r > 1.03 {
					t.Errorf("%v, %d racks of %d, window %d: %.3f of the time", s, c.Racks, c.Workers, window, r)
				}
			}
		}
	}
}

// A window that holds less than a round trip's bytes is what bounds a step, and one that holds more changes nothing.
func TestAWindowMustHoldARoundTrip(t *testing.T) {
	const chunk, chunks = 32 << 10, 1000
	c := lab(2, 4, 1)
	c.CoreLatency = 1e-3
	all := c.Simulate(Sharded, chunks, chunk, 0)
	if got := c.Simulate(Sharded, chunks, chunk, 500); got > 1.02*all {
		t.Errorf("%g s with a window of 500 chunks, %g without", got, all)
	}
	if got, least := c.Simulate(Sharded, chunks, chunk, 4), chunks/4*2*c.CoreLatency/2; got < least {
		t.Errorf("%g s with a window of 4 chunks, at least %g", got, least)
	}
}

func TestTenThousandWorkersTakeWhatIsPredicted(t *testing.T) {
	const model, pieces = 100e6, 500
	c := lab(50, 200, 20)
	for _, s := range []Shape{Sharded, Flat} {
		p, got := c.Predict(s, model, model/pieces), c.Simulate(s, pieces, model/pieces, 0)
		if r := p.Seconds / got; got < 0.999*p.Bound || r < 0.85 || r > 1.15 {
			t.Errorf("%v: predicted %g s, bound %g s, simulated %g s", s, p.Seconds, p.Bound, got)
		}
	}
}

func TestOversubscriptionDecidesBetweenFlatAndSharded(t *testing.T) {
	const model, chunk = 100e6, 32 << 10
	for _, tc := range []struct {
		over float64
		best Shape
	}{{8, Sharded}, {4, Sharded}, {0.25, Flat}} {
		c := lab(2, 4, tc.over)
		c.SpineNIC = 0
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
	if r := c.Predict(Flat, model, chunk).Bound / c.Predict(Sharded, model, chunk).Bound; math.Abs(r-4) > 1e-9 {
		t.Errorf("flat takes %g times sharded's bound, not 4", r)
	}
}

func TestBadClustersAreRefused(t *testing.T) {
	good := lab(4, 2, 4)
	for name, spoil := range map[string]func(*Cluster){
		"no racks": func(c *Cluster) { c.Racks = 0 }, "pods that do not divide": func(c *Cluster) { c.Pods = 3 },
		"no uplink": func(c *Cluster) { c.Uplink = 0 }, "NaN": func(c *Cluster) { c.WorkerNIC = math.NaN() },
		"negative latency": func(c *Cluster) { c.CoreLatency = -1 },
	} {
		c := *good
		spoil(&c)
		if _, err := c.Choose(1e8, 1<<15); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	if _, err := good.Choose(10, 100); err == nil {
		t.Error("accepted a chunk larger than the model")
	}
}

func TestTable1ComesOutOfOneUnknownPerRow(t *testing.T) {
	for _, r := range Table1() {
		u, ok := r.Unit()
		if !ok {
			t.Errorf("%s: no unit gives its four cells", r.Network)
			continue
		}
		for p := CC; p <= NCS; p++ {
			if got := math.Round(u * p.Busiest(TableWorkers)); got != r.Paper[p] {
				t.Errorf("%s, %v: %g, the paper prints %g", r.Network, p, got, r.Paper[p])
			}
		}
	}
}

// The paper's 120 workers (section VII.B): 90 GB/s of PCIe to memory, in and out, ResNet-50 of 102.2 MB.
func TestWorkersOfOneAggregator(t *testing.T) {
	limits := Limits{Memory: 90e9}
	for _, tc := range []struct {
		step float64
		want int
	}{{0.161, 70}, {0.348, 153}, {0.273, 120}} {
		got, err := limits.Capacity(102.2e6, tc.step, 2)
		if err != nil || got.Workers != tc.want || got.Binding != "memory" {
			t.Errorf("a step of %g s: %+v, %v; expected %d", tc.step, got, err, tc.want)
		}
	}
}
