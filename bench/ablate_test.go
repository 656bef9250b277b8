package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/rackweave/rackweave/aggregate/optim"
	"github.com/rackweave/rackweave/bench/models"
	"github.com/rackweave/rackweave/bench/report"
	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/verbs"
)

// Every way to aggregate that is timed gives the parameters that plain Go gives, but adding on arrival.
func TestTheAlternativesDoTheSameWork(t *testing.T) {
	const workers = 5
	l, err := newWorkload(workers, mostChunk)
	if err != nil {
		t.Fatal(err)
	}
	defer l.close()
	l.threads = 3 // shares of chunks that are not equal
	var grads [][]float32
	for _, g := range l.grads {
		grads = append(grads, l.array(g))
	}
	want, momentum := slices.Clone(l.array(l.w)), make([]float32, l.bytes/4)
	optim.Update(optim.SGDMXNet, &l.scalars, want, [optim.MaxStates][]float32{momentum}, grads, nil)

	works := map[string]func() error{
		"two passes": func() error { return l.twoPasses(workers) },
		"rank order": func() error { return l.aggregate(workers, 1, false) },
		"one pass":   func() error { return l.onePass(workers) },
	}
	for _, size := range powersOfTwo(leastChunk, mostChunk) {
		works[fmt.Sprint("tall ", size)] = func() error { return l.tall(uint64(size)) }
		works[fmt.Sprint("wide ", size)] = func() error { return l.wide(uint64(size)) }
	}
	for name, work := range works {
		l.reset()
		if err := work(); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if wrong, where := compare([][]float32{want, momentum}, append(slices.Clone(l.array(l.w)), l.array(l.m)...)); wrong > 0 {
			t.Errorf("%s: %d elements wrong: %s", name, wrong, where)
		}
	}

	l.reset()
	if err := l.aggregate(workers, 1, true); err != nil {
		t.Fatal(err)
	}
	for i, v := range l.array(l.w) {
		if d := v - want[i]; d > 1e-5 || d < -1e-5 {
			t.Fatalf("added on arrival: parameter %d is %v, want about %v", i, v, want[i])
		}
	}
}

func TestOnlyAddingOnArrivalDependsOnTheOrder(t *testing.T) {
	l, err := newWorkload(4, 2<<20)
	if err != nil {
		t.Fatal(err)
	}
	defer l.close()
	if n, err := l.changed(4, false); err != nil || n != 0 {
		t.Errorf("rank order: %d parameters change, %v", n, err)
	}
	if n, err := l.changed(4, true); err != nil || n == 0 {
		t.Errorf("arrival order: %d parameters change, %v", n, err)
	}
}

func quickAblation(t *testing.T) AblateConfig {
	t.Helper()
	model, err := models.FromBytes("256KiB", chunk.F32)
	if err != nil {
		t.Fatal(err)
	}
	return AblateConfig{Rounds: 1, Quick: true, Spec: Spec{
		Workers: 2, Provider: verbs.ProviderSHM, Model: model, DType: chunk.F32, Optimizer: "sgd_mxnet",
		Hyper: map[string]float64{"momentum": 0.9}, Iters: 1,
	}}
}

func TestEveryAblationIsMeasuredTabledAndPlotted(t *testing.T) {
	cfg := quickAblation(t)
	all, err := testRunner(t).Ablate(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, a := range all.Ablations {
		names = append(names, a.Name)
		if a.Title == "" || a.Setting == "" || a.Quantity == "" || a.Measure == "" || len(a.Findings) == 0 || len(a.Categories) < 2 {
			t.Errorf("%s is not described: %+v", a.Name, a)
		}
		for _, s := range a.Series {
			if len(s.Values) != len(a.Categories) || len(s.Min) != len(s.Values) || len(s.Max) != len(s.Values) {
				t.Errorf("%s, %s: %d categories, %d values, %d least, %d most", a.Name, s.Label, len(a.Categories), len(s.Values), len(s.Min),
					len(s.Max))
				continue
			}
			for i, v := range s.Values {
				if v <= 0 || s.Min[i] > v || s.Max[i] < v {
					t.Errorf("%s, %s, %s: %v of %v to %v", a.Name, s.Label, a.Categories[i], v, s.Min[i], s.Max[i])
				}
			}
		}
		if exchanges := a.Name == "chunk-size" || a.Name == "pinned"; exchanges &&
			(a.Provider != verbs.ProviderSHM || !strings.HasPrefix(a.Note, report.SoftwareNote)) {
			t.Errorf("%s: provider %q, note %q", a.Name, a.Provider, a.Note)
		}
		if !strings.HasSuffix(a.Note, quickNote) {
			t.Errorf("%s: note %q does not say that it was quick", a.Name, a.Note)
		}
	}
	if !slices.Equal(names, AblationNames()) {
		t.Errorf("measured %v, want %v", names, AblationNames())
	}

	text, err := json.Marshal(&all)
	if err != nil {
		t.Fatal(err)
	}
	var back Ablations
	if err := json.Unmarshal(text, &back); err != nil || len(back.Ablations) != len(names) || back.Machine.Cores == 0 {
		t.Errorf("JSON does not come back: %v\n%s", err, text)
	}
	var table strings.Builder
	if err := all.WriteTable(&table); err != nil {
		t.Fatal(err)
	}
	files, err := all.WriteSVGs(t.TempDir() + "/figures")
	if err != nil || len(files) != len(names) {
		t.Fatalf("figures %v: %v", files, err)
	}
	for i, a := range all.Ablations {
		svg, err := os.ReadFile(files[i])
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range append([]string{a.Title, all.Machine.String()}, a.Categories...) {
			if !strings.Contains(string(svg), want) {
				t.Errorf("%s does not show %q", files[i], want)
			}
		}
		for _, want := range append([]string{a.Title, a.Setting, a.Note, a.Measure}, a.Findings...) {
			if !strings.Contains(table.String(), want) {
				t.Errorf("the table lacks %q:\n%s", want, table.String())
			}
		}
	}
}

func TestAnAblationThatCannotBeDoneIsNamed(t *testing.T) {
	for _, tc := range []struct {
		change func(*AblateConfig)
		wants  []string
	}{
		{func(c *AblateConfig) { c.Only = []string{"fused", "fuse"} }, []string{`"fuse"`, "chunk-size, tall-wide, fused, order, pinned"}},
		{func(c *AblateConfig) { c.Rounds = 0 }, []string{"0 rounds", "1 to 1000"}},
		{func(c *AblateConfig) { c.Spec.Workers = 0 }, []string{"workers is 0"}},
		{func(c *AblateConfig) { c.Only, c.Spec.Procs = []string{"pinned"}, true },
			[]string{"ablation pinned: loops pinned: the aggregator: exit status 1"}},
	} {
		cfg := quickAblation(t)
		tc.change(&cfg)
		r := testRunner(t)
		r.Serve = []string{"/bin/false"}
		_, err := r.Ablate(t.Context(), cfg)
		if err == nil {
			t.Errorf("%+v is no error", cfg)
			continue
		}
		mentions(t, err.Error(), tc.wants...)
	}
}

func TestACancelledAblationEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	cfg := quickAblation(t)
	cfg.Only = []string{"fused"}
	if _, err := testRunner(t).Ablate(ctx, cfg); err == nil || !strings.Contains(err.Error(), "cancel") {
		t.Errorf("error %v, want one of cancellation", err)
	}
}
