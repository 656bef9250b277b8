package transfers

import (
	"fmt"
	"testing"

	"github.com/rackweave/rackweave/hierarchy"
	"github.com/rackweave/rackweave/hierarchy/planner"
)

const gbps = 1e9 / 8

func lab(racks, workers int, over float64) *planner.Cluster {
	return &planner.Cluster{
		Racks: racks, Workers: workers, WorkerNIC: 10 * gbps, AggregatorNIC: 10 * gbps * float64(workers),
		Uplink: 10 * gbps * float64(workers) / over, RackLatency: 5e-6, CoreLatency: 15e-6,
	}
}

// What the formula predicts is never less than the links allow, and close to what following every transfer gives. Where two links
// in series are equally tight their queues add up, which the formula leaves out: there it may be a quarter short.
func TestPredictionsAgreeWithTheSimulation(t *testing.T) {
	const chunk = 32 << 10
	for _, c := range []*planner.Cluster{lab(1, 4, 1), lab(2, 4, 1), lab(2, 4, 8), lab(4, 2, 4), lab(3, 3, 2)} {
		for _, spare := range []float64{1, 1.5} {
			c := *c
			c.AggregatorNIC *= spare
			low := 0.75
			if spare > 1 {
				low = 0.85
			}
			for _, s := range hierarchy.Shapes() {
				if c.Fits(s) != nil {
					continue
				}
				t.Run(fmt.Sprintf("%v, %d racks of %d, uplink %.0f, aggregator %.0f Gb/s", s, c.Racks, c.Workers,
					c.Uplink/gbps, c.AggregatorNIC/gbps), func(t *testing.T) {
					chunks := 100 * c.Racks
					p := c.Predict(s, float64(chunks)*chunk, chunk)
					got := Simulate(&c, s, chunks, chunk)
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

func TestTenThousandWorkersTakeWhatIsPredicted(t *testing.T) {
	const model, pieces = 100e6, 500
	c := lab(50, 200, 20)
	for _, s := range []hierarchy.Shape{hierarchy.Sharded, hierarchy.Flat} {
		p, got := c.Predict(s, model, model/pieces), Simulate(c, s, pieces, model/pieces)
		if r := p.Seconds / got; got < 0.999*p.Bound || r < 0.85 || r > 1.15 {
			t.Errorf("%v: predicted %g s, bound %g s, simulated %g s", s, p.Seconds, p.Bound, got)
		}
	}
}
