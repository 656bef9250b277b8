package learn

import (
	"context"
	"math"
	"testing"
	"time"

	"github.com/rackweave/rackweave/hierarchy"
)

// Racks that add gradients in every step learn what workers under bsp learn, but for rounding.
func TestRacksThatMeetInEveryStepLearnAsUnderBSP(t *testing.T) {
	s := Setting{LR: learningRate, Batch: batchSize, Epochs: 5, Seed: 1, Target: 1e-9}
	bsp := run(t, "bsp", s)
	s.Core = coreTime
	racks := run(t, "bsp", s)
	if racks.Crossed != float64(racks.Updates) || len(bsp.Curve) < 40 || len(racks.Curve) < len(bsp.Curve) {
		t.Fatalf("%v models crossed the core in %d updates, losses after %d and %d", racks.Crossed, racks.Updates, len(racks.Curve),
			len(bsp.Curve))
	}
	for i, p := range bsp.Curve {
		if math.Abs(racks.Curve[i].Loss-p.Loss) > 1e-3 {
			t.Errorf("loss %v after %d updates, under bsp %v", racks.Curve[i].Loss, i+1, p.Loss)
		}
	}
}

func TestRacksThatMeetSeldomLearnSoonerOverASlowCore(t *testing.T) {
	if testing.Short() {
		t.Skip("trains for minutes under the race detector; run without -short")
	}
	all, err := Learn(context.Background(), Config{Only: []string{"racks"}, Seeds: 2})
	if err != nil {
		t.Fatal(err)
	}
	s := &all.Studies[0]
	for _, c := range []string{even, four} {
		bsp := s.row(c, "bsp")
		for _, text := range []string{
			"every=16,fragments=4,rule=nesterov,lr=0.7,momentum=0.9", "every=16,fragments=1,rule=sgd,lr=1,momentum=0",
		} {
			r := s.row(c, text)
			if r.Missed > 0 || r.OverBSP.Median > 0.7 || r.Crossed.Median > bsp.Crossed.Median/8 {
				t.Errorf("on %s %s: %d missed, %.2f of bsp's time, %.1f models across the core, bsp %.1f", c, text, r.Missed, r.OverBSP.Median,
					r.Crossed.Median, bsp.Crossed.Median)
			}
		}
	}
}

// Racks that need not wait for one that is three times as slow are sooner at the loss; where all are alike, they miss little and
// lose no time.
func TestAQuorumOfRacksDoesNotWaitForASlowOne(t *testing.T) {
	if testing.Short() {
		t.Skip("trains for minutes under the race detector; run without -short")
	}
	for _, c := range []struct {
		cluster string
		most    float64 // of the time of racks that wait
	}{{slowOne, 0.6}, {even, 1.1}} {
		s := problem
		s.Core, s.Cluster, s.Seed = coreTime, mustCluster(c.cluster)[0], 1
		times := map[int]float64{}
		for _, quorum := range []int{0, 3} {
			s.Outer = hierarchy.Outer{Every: 16, Fragments: 4, Rule: hierarchy.OuterNesterov, LR: 0.7, Momentum: 0.9, Quorum: quorum}
			if quorum > 0 {
				s.Outer.Grace = 2 * time.Millisecond
			}
			o, err := Run(context.Background(), s)
			if err != nil {
				t.Fatal(err)
			}
			times[quorum] = o.ToTarget
			if c.cluster == slowOne && (o.Dropped > 0) != (quorum > 0) {
				t.Errorf("a quorum of %d: %d meetings were missed", quorum, o.Dropped)
			}
		}
		if times[3] == 0 || times[3] > c.most*times[0] {
			t.Errorf("on %s a quorum reaches the loss at %.0f, racks that wait at %.0f", c.cluster, times[3], times[0])
		}
	}
}

// Fragments cross at steps of their own: no step carries more than its share, and as much crosses in all.
func TestFragmentsShareTheCore(t *testing.T) {
	s := Setting{LR: learningRate, Batch: batchSize, Epochs: 10, Seed: 1, Core: coreTime, Cluster: mustCluster(even)[0]}
	for _, fragments := range []int{1, 4} {
		s.Outer = hierarchy.Outer{Every: 8, Fragments: fragments, Rule: hierarchy.OuterSGD, LR: 1}
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
