package learn

import (
	"context"
	"math"
	"slices"
	"testing"

	"github.com/rackweave/rackweave/hierarchy/outer"
)

// Racks that add gradients in every step learn what workers under bsp learn, but for rounding.
func TestRacksThatMeetInEveryStepLearnAsUnderBSP(t *testing.T) {
	s := Setting{LR: learningRate, Batch: batchSize, Epochs: 5, Seed: 1, Target: 1e-9}
	bsp := run(t, "bsp", s)
	s.Core = coreTime
	racks := run(t, "bsp", s)
	if racks.Crossed != float64(racks.Updates) || len(bsp.Losses) < 40 || len(racks.Losses) < len(bsp.Losses) {
		t.Fatalf("%v models crossed the core in %d updates, losses after %d and %d", racks.Crossed, racks.Updates, len(racks.Losses),
			len(bsp.Losses))
	}
	for i, loss := range bsp.Losses {
		if math.Abs(racks.Losses[i]-loss) > 1e-3 {
			t.Errorf("loss %v after %d updates, under bsp %v", racks.Losses[i], i+1, loss)
		}
	}
}

func TestRacksThatMeetSeldomLearnSoonerOverASlowCore(t *testing.T) {
	oneGoroutine(t)
	p, seeds := plans[slices.Index(Names(false), "racks")], 2
	if !long() {
		p.clusters, p.ways, p.tell, seeds = []Cluster{even, four}, []string{seldom, "every=16,rule=sgd"}, nil, 1
	}
	if err := p.run(t.Context(), &Config{Seeds: seeds}); err != nil {
		t.Fatal(err)
	}
	for _, c := range []Cluster{even, four} {
		bsp := p.row(c, "bsp")
		for _, text := range []string{
			seldom, "every=16,fragments=1,rule=sgd,lr=1,momentum=0",
		} {
			r := p.row(c, text)
			if r.Missed > 0 || r.OverBSP.Median > 0.7 || r.Crossed.Median > bsp.Crossed.Median/8 {
				t.Errorf("on %s %s: %d missed, %.2f of bsp's time, %.1f models across the core, bsp %.1f", c, text, r.Missed, r.OverBSP.Median,
					r.Crossed.Median, bsp.Crossed.Median)
			}
		}
	}
}

// Fragments cross at steps of their own: no step carries more than its share, and as much crosses in all.
func TestFragmentsShareTheCore(t *testing.T) {
	s := Setting{LR: learningRate, Batch: batchSize, Epochs: 10, Seed: 1, Core: coreTime, Cluster: even}
	for _, fragments := range []int{1, 4} {
		s.Outer = outer.Optimizer{Every: 8, Fragments: fragments, Rule: outer.SGD, LR: 1}
		o, err := Run(context.Background(), s)
		if err != nil {
			t.Fatal(err)
		}
		steps := float64(o.Pushes) / 4
		if each := o.Crossed / float64(o.Updates); math.Abs(each*float64(fragments)-1) > 0.05 || o.Crossed < math.Floor(steps/8)-1 ||
			o.Crossed > steps/8+1 {
			t.Errorf("%d fragments: %v models in %d meetings of %v steps", fragments, o.Crossed, o.Updates, steps)
		}
	}
}
