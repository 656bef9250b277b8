package learn

import (
	"context"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/rackweave/rackweave/bench/study/samples"
	"github.com/rackweave/rackweave/policy"
)

func TestDigitsAreAllThere(t *testing.T) {
	// As scikit-learn's documentation counts them.
	want := [classes]int{178, 182, 177, 183, 181, 182, 181, 179, 174, 180}
	var got [classes]int
	for _, x := range samples.Digits() {
		got[x.Digit]++
	}
	if got != want {
		t.Errorf("images by digit: %v, want %v", got, want)
	}
	for fold := range Folds {
		train, test := split(fold)
		if len(train) != images-testImages || len(test) != testImages {
			t.Errorf("fold %d has %d images to train with and %d to test with", fold, len(train), len(test))
		}
	}
}

func TestGradientIsTheSlopeOfTheLoss(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 7))
	n := newNetwork(r)
	train, _ := split(0)
	batch := []*image{&train[0], &train[1], &train[2]}
	loss := func() float64 {
		sum := 0.0
		var a activations
		for _, x := range batch {
			sum += n.forward(x, &a)
		}
		return sum / float64(len(batch))
	}
	var g network
	n.gradient(&g, batch)
	const step = 1e-2
	for range 200 {
		i := r.IntN(parameters)
		was := n[i]
		n[i] = was + step
		up := loss()
		n[i] = was - step
		down := loss()
		n[i] = was
		if slope := (up - down) / (2 * step); math.Abs(slope-float64(g[i])) > 2e-3 {
			t.Errorf("parameter %d: slope %g, gradient %g", i, slope, g[i])
		}
	}
}

// oneGoroutine skips a test that trains in one goroutine under -short, as the race detector runs, which finds races between many.
func oneGoroutine(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("-short is set: this test computes in one goroutine, which cannot race, and takes ten times as long under -race")
	}
}

// long reports whether tests may take minutes.
func long() bool { return os.Getenv("RACKWEAVE_LONG") != "" }

func run(t *testing.T, spec string, s Setting) Outcome {
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
	s := Setting{LR: learningRate, Batch: batchSize, Epochs: 4, Seed: 3}
	for _, spec := range []string{"bsp", loose, "k-batch-bsp:k=3"} {
		if a, b := run(t, spec, s), run(t, spec, s); !reflect.DeepEqual(a, b) {
			t.Errorf("%s: two runs of a seed differ", spec)
		}
	}
}

func TestDegeneratePoliciesLearnTheSame(t *testing.T) {
	oneGoroutine(t)
	s := Setting{LR: learningRate, Momentum: 0.5, Batch: batchSize, Epochs: 3, Seed: 1}
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
		s := Setting{Cluster: c.cluster, Batch: batchSize, Epochs: 1, Blind: 3000, Seed: 1}
		bsp, o := run(t, "bsp", s), run(t, c.policy, s)
		if ratio := float64(o.Pushes) / float64(bsp.Pushes); ratio < c.low || ratio > c.high {
			t.Errorf("%s on %s: %.3fx bsp's pushes, want %g to %g", c.policy, c.cluster, ratio, c.low, c.high)
		}
	}
}

func TestLooseLagTunerIsAsFastAsASPAndStrictIsNot(t *testing.T) {
	oneGoroutine(t)
	p, seeds := plans[slices.Index(Names(false), "lagtuner")], 5
	if !long() {
		p.clusters, p.ways, p.tell, seeds = []Cluster{two, even}, []string{"ssp:s=3", strict, loose, "asp"}, nil, 1
	}
	if err := p.run(t.Context(), &Config{Seeds: seeds}); err != nil {
		t.Fatal(err)
	}
	for _, c := range p.clusters[:len(p.clusters)-1] {
		if c.String() == slowOne.String() {
			continue
		}
		time := func(way string) float64 { return p.row(c, way).Time.Median }
		if r := time(loose) / time("asp"); r > 1.1 {
			t.Errorf("on %s loose takes %.2f of asp's time, want at most 1.1", c, r)
		}
		for _, slow := range []string{"bsp", "ssp:s=3"} {
			if r := time(loose) / time(slow); r > 0.65 {
				t.Errorf("on %s loose takes %.2f of %s's time, want at most 0.65", c, r, slow)
			}
		}
		if lead := p.row(c, strict).MaxLead; lead > 15 {
			t.Errorf("on %s strict led by %d, above its bound", c, lead)
		}
	}
	if r := p.row(even, loose).OverBSP.Median; math.Abs(r-1) > 0.05 {
		t.Errorf("on even workers loose takes %.2f of bsp's time, want 0.95 to 1.05", r)
	}
}

func TestStrategySwitchIsAsFastAsItsFormula(t *testing.T) {
	oneGoroutine(t)
	s := Setting{LR: learningRate, Batch: batchSize, Epochs: 20, Seed: 2}
	bsp, asp := run(t, "bsp", s), run(t, "asp", s)
	steps := 20 * (images - testImages) / batchSize
	o := run(t, fmt.Sprintf("strategy-switch:at=0.3,steps=%d", steps), s)
	rate := func(o *Outcome) float64 { return float64(o.Pushes) / o.Time }
	f, x := o.Switched/20, rate(&asp)/rate(&bsp)
	if got, want := rate(&o)/rate(&bsp), 1/(f+(1-f)/x); math.Abs(f-0.3) > 0.01 || math.Abs(got/want-1) > 0.02 {
		t.Errorf("switched after %.2f of the epochs, %.3fx as fast; want 0.3 and %.3fx", f, got, want)
	}
}

func TestStudiesAreWrittenAsTables(t *testing.T) {
	p := plans[0]
	p.clusters, p.ways = []Cluster{{Steps: []float64{1, 2}}}, []string{"asp", "k-batch-asp:k=2"}
	if err := p.run(t.Context(), &Config{Seeds: 1}); err != nil {
		t.Fatal(err)
	}
	var table strings.Builder
	if err := p.write(&table); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"Time until the loss", "\n1,2      bsp ", "\n1,2      k-batch-asp:k=2 ", "time over bsp's"} {
		if !strings.Contains(table.String(), want) {
			t.Errorf("no %q in\n%s", want, table.String())
		}
	}
}

func TestWhatCannotBeStudiedIsRefused(t *testing.T) {
	for _, c := range []struct {
		cfg  Config
		want string
	}{
		{Config{Seeds: 0}, "0 seeds: use 1 to 1000"},
		{Config{Seeds: 1, Only: []string{"lag"}}, `unknown study "lag": use policies, lagtuner, momentum, switch, racks, real`},
	} {
		if _, err := Learn(t.Context(), c.cfg, io.Discard); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v, want %q", err, c.want)
		}
	}
	_, err := Run(context.Background(), Setting{Cluster: even, Policy: policy.Spec{}, Batch: 1, Epochs: 1})
	if err == nil {
		t.Error("a batch of less than a sample for each worker is accepted")
	}
}

func TestStudyEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := Learn(ctx, Config{Only: []string{"switch"}, Seeds: 1}, io.Discard); err == nil {
		t.Error("no error")
	}
}

func TestRealTrainingGoesThroughAnAggregator(t *testing.T) {
	p := plans[slices.Index(Names(false), "real")]
	p.base.Steps = 12
	if err := p.run(t.Context(), &Config{}); err != nil {
		t.Fatal(err)
	}
	if len(p.rows) != 9 {
		t.Fatalf("%d rows", len(p.rows))
	}
	for _, r := range p.rows {
		if r.RateRatio <= 0 || r.Predicted <= 0 { // how fast, a busy machine decides
			t.Errorf("%+v", r)
		}
	}
}
