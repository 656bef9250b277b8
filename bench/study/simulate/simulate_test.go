package simulate

import (
	"context"
	"fmt"
	"math"
	"reflect"
	"testing"

	"github.com/rackweave/rackweave/bench/study"
	"github.com/rackweave/rackweave/bench/study/task"
	"github.com/rackweave/rackweave/hierarchy/outer"
	"github.com/rackweave/rackweave/policy"
)

const (
	strict = "lagtuner:sl=3,su=15"
	loose  = "lagtuner:sl=3,su=15,reading=loose"
)

var (
	four = Cluster{Steps: []float64{1, 1, 3, 3}}
	even = Cluster{Steps: []float64{1, 1, 1, 1}}
)

// usual returns a setting of so many epochs.
func usual(epochs int, seed uint64) Setting {
	return Setting{Task: digits, LR: 0.8, Batch: 128, Epochs: epochs, Seed: seed, Wire: Wire}
}

func digits(fold int) task.Task {
	train, test := task.Split(fold, 540)
	return task.NewDigits(train, test, 32)
}

// oneGoroutine skips a test under -short, with which the race detector runs: it trains in one goroutine, which cannot race.
func oneGoroutine(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("-short is set: this test computes in one goroutine, which cannot race, and takes ten times as long under -race")
	}
}

func run(t *testing.T, spec string, s Setting) study.Outcome {
	t.Helper()
	var err error
	if s.Policy, err = policy.Parse(spec); err != nil {
		t.Fatal(err)
	}
	if s.Cluster.Steps == nil {
		s.Cluster = four
	}
	o, err := Run(context.Background(), s)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func TestSameSeedIsTheSameRun(t *testing.T) {
	oneGoroutine(t)
	s := usual(4, 3)
	for _, spec := range []string{"bsp", loose, "k-batch-bsp:k=3"} {
		if a, b := run(t, spec, s), run(t, spec, s); !reflect.DeepEqual(a, b) {
			t.Errorf("%s: two runs of a seed differ", spec)
		}
	}
}

func TestDegeneratePoliciesLearnTheSame(t *testing.T) {
	oneGoroutine(t)
	s := usual(3, 1)
	s.Momentum = 0.5
	for _, pair := range [][2]string{
		{"bsp", "k-bsp:k=4"}, {"bsp", "backup:b=0"}, {"bsp", "k-asp:k=4"}, {"asp", "ssp:s=none"}, {"asp", "k-asp:k=1"},
		{"asp", "softsync:m=4,factor=off"}, {"ssp:s=2", "lagtuner:sl=2,su=2"}, {"k-batch-asp:k=2", "softsync:m=2,factor=off"},
	} {
		if a, b := run(t, pair[0], s), run(t, pair[1], s); !reflect.DeepEqual(a, b) {
			t.Errorf("%s and %s differ: %v and %v after %v and %v", pair[0], pair[1], a.Loss, b.Loss, a.Time, b.Time)
		}
	}
}

func TestPushesInATimeAreAsTheyMustBe(t *testing.T) {
	oneGoroutine(t)
	slower := Cluster{Steps: []float64{1, 3.1}}
	for _, c := range []struct {
		cluster   Cluster
		policy    string
		low, high float64
	}{
		{slower, "ssp:s=15", 0.99, 1.03}, {slower, strict, 0.99, 1.03}, {slower, loose, 1.95, 2.1}, {slower, "asp", 1.95, 2.1},
		{four, "ssp:s=15", 1, 1.1}, {four, strict, 1, 1.12}, {four, loose, 2, 2.15}, {four, "asp", 2, 2.15},
		{even, loose, 1, 1.15}, {even, "asp", 1, 1.15},
	} {
		s := usual(1, 1)
		s.Cluster, s.Blind = c.cluster, 3000
		bsp, o := run(t, "bsp", s), run(t, c.policy, s)
		if ratio := o.Pushes / bsp.Pushes; ratio < c.low || ratio > c.high {
			t.Errorf("%s on %s: %.3fx bsp's pushes, want %g to %g", c.policy, c.cluster, ratio, c.low, c.high)
		}
	}
}

func TestStrategySwitchIsAsFastAsItsFormula(t *testing.T) {
	oneGoroutine(t)
	s := usual(20, 2)
	bsp, asp := run(t, "bsp", s), run(t, "asp", s)
	steps := 20 * (task.Images - 540) / 128
	o := run(t, fmt.Sprintf("strategy-switch:at=0.3,steps=%d", steps), s)
	rate := func(o *study.Outcome) float64 { return o.Pushes / o.Time }
	f, x := o.Switched/20, rate(&asp)/rate(&bsp)
	if got, want := rate(&o)/rate(&bsp), 1/(f+(1-f)/x); math.Abs(f-0.3) > 0.01 || math.Abs(got/want-1) > 0.02 {
		t.Errorf("switched after %.2f of the epochs, %.3fx as fast; want 0.3 and %.3fx", f, got, want)
	}
}

// Racks that add gradients in every step learn what workers under bsp learn, but for rounding.
func TestRacksThatMeetInEveryStepLearnAsUnderBSP(t *testing.T) {
	oneGoroutine(t)
	s := usual(5, 1)
	s.Target = 1e-9
	bsp := run(t, "bsp", s)
	s.Core = 4
	racks := run(t, "bsp", s)
	if racks.Crossed != racks.Updates || len(bsp.Losses) < 40 || len(racks.Losses) < len(bsp.Losses) {
		t.Fatalf("%v models crossed the core in %v updates, losses after %d and %d", racks.Crossed, racks.Updates, len(racks.Losses),
			len(bsp.Losses))
	}
	for i, loss := range bsp.Losses {
		if math.Abs(racks.Losses[i]-loss) > 1e-3 {
			t.Errorf("loss %v after %d updates, under bsp %v", racks.Losses[i], i+1, loss)
		}
	}
}

// Fragments cross at steps of their own: no step carries more than its share, and as much crosses in all.
func TestFragmentsShareTheCore(t *testing.T) {
	oneGoroutine(t)
	s := usual(10, 1)
	s.Core, s.Cluster = 4, even
	for _, fragments := range []int{1, 4} {
		s.Outer = outer.Optimizer{Every: 8, Fragments: fragments, Rule: outer.SGD, LR: 1}
		o, err := Run(context.Background(), s)
		if err != nil {
			t.Fatal(err)
		}
		steps := o.Pushes / 4
		if each := o.Crossed / o.Updates; math.Abs(each*float64(fragments)-1) > 0.05 || o.Crossed < math.Floor(steps/8)-1 ||
			o.Crossed > steps/8+1 {
			t.Errorf("%d fragments: %v models in %v meetings of %v steps", fragments, o.Crossed, o.Updates, steps)
		}
	}
}

func TestTrainingWithoutABatchForEachWorkerIsRefused(t *testing.T) {
	for _, batch := range []int{0, 3} {
		if _, err := Run(t.Context(), Setting{Cluster: even, Task: digits, Batch: batch, Epochs: 1}); err == nil {
			t.Errorf("%d samples for 4 workers are accepted", batch)
		}
	}
}

// scarce deals batches of 4 and 2 samples by turns to worker 0, and of none to worker 1.
type scarce struct{ turn int }

func (s *scarce) Next(worker int) ([]int, error) {
	if worker > 0 {
		return nil, nil
	}
	s.turn++
	return []int{1, 2, 3, 4}[:4-2*(1-s.turn%2)], nil
}

func (s *scarce) Done(int, float64) error { return nil }

// A step takes as long as its samples: three of worker 0 take 2.5 of the usual time.
func TestAWorkerWithoutSamplesWaitsUnlessItIsInStep(t *testing.T) {
	for policy, pushes := range map[string]float64{"bsp": 6, "asp": 3} {
		s, left := usual(1, 1), pushes
		s.Cluster, s.Rows, s.Batch = Cluster{Steps: []float64{1, 1}}, &scarce{}, 8
		s.Over = func() bool { left--; return left < 0 }
		if o := run(t, policy, s); o.Pushes != pushes || o.Updates != 3 || math.Abs(o.Time-2.5) > 0.6 {
			t.Errorf("%s: %g pushes, %g updates in %.2f, want %g, 3 and 2.5", policy, o.Pushes, o.Updates, o.Time, pushes)
		}
	}
}
