package learn

import (
	"math"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/rackweave/rackweave/bench/study"
)

// oneGoroutine skips a test under -short, with which the race detector runs: it trains in one goroutine, which cannot race.
func oneGoroutine(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("-short is set: this test computes in one goroutine, which cannot race, and takes ten times as long under -race")
	}
}

// long reports whether tests may take minutes.
func long() bool { return os.Getenv("RACKWEAVE_LONG") != "" }

// find returns a question of a name.
func find(name string) question {
	all := questions()
	return all[slices.IndexFunc(all, func(q question) bool { return q.name == name })]
}

// answer answers it.
func answer(t *testing.T, q question, seeds int) *study.Study {
	t.Helper()
	p := q.plan()
	s, err := p.Run(t.Context(), &study.Config{Seeds: seeds})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestLooseLagTunerIsAsFastAsASPAndStrictIsNot(t *testing.T) {
	oneGoroutine(t)
	q, seeds := find("lagtuner"), 5
	if !long() {
		q.clusters, q.ways, q.tell, seeds = []cluster{two, even}, []string{"ssp:s=3", strict, loose, "asp"}, nil, 1
	}
	s := answer(t, q, seeds)
	for _, c := range q.clusters {
		if c.Steps[len(c.Steps)/2] == 1 {
			continue // at most one worker is slow
		}
		time := func(way string) float64 { return s.Row(c.String(), way).Had(toTarget).Median() }
		if r := time(loose) / time("asp"); r > 1.1 {
			t.Errorf("on %s loose takes %.2f of asp's time, want at most 1.1", c, r)
		}
		for _, slow := range []string{"bsp", "ssp:s=3"} {
			if r := time(loose) / time(slow); r > 0.65 {
				t.Errorf("on %s loose takes %.2f of %s's time, want at most 0.65", c, r, slow)
			}
		}
		if lead := lead(s.Row(c.String(), strict)); lead > 15 {
			t.Errorf("on %s strict led by %g, above its bound", c, lead)
		}
	}
	if r := s.Row(even.String(), loose).Over(toTarget).Median(); math.Abs(r-1) > 0.05 {
		t.Errorf("on even workers loose takes %.2f of bsp's time, want 0.95 to 1.05", r)
	}
}

func TestRacksThatMeetSeldomLearnSoonerOverASlowCore(t *testing.T) {
	oneGoroutine(t)
	q, seeds := find("racks"), 2
	if !long() {
		q.clusters, q.ways, q.tell, seeds = []cluster{even, four}, []string{seldom, "every=16,rule=sgd"}, nil, 1
	}
	s := answer(t, q, seeds)
	for _, c := range []cluster{even, four} {
		bsp := s.Row(c.String(), "bsp").Of(crossing).Median()
		for _, way := range []string{seldom, "every=16,fragments=1,rule=sgd,lr=1,momentum=0"} {
			r := s.Row(c.String(), way)
			missed, over, across := len(r.Runs)-len(r.Had(toTarget)), r.Over(toTarget).Median(), r.Of(crossing).Median()
			if missed > 0 || over > 0.7 || across > bsp/8 {
				t.Errorf("on %s %s: %d missed, %.2f of bsp's time, %.1f models across the core, bsp %.1f", c, way, missed, over, across, bsp)
			}
		}
	}
}

func TestStudiesAreWrittenAsTables(t *testing.T) {
	q := find("policies")
	q.clusters, q.ways = []cluster{{Steps: []float64{1, 2}}}, []string{"asp", "k-batch-asp:k=2"}
	var table strings.Builder
	g := study.Group{Plans: []study.Plan{q.plan()}}
	if _, err := g.Run(t.Context(), study.Config{Seeds: 1}, &table); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"Time until the loss", "\n1,2      bsp ", "\n1,2      k-batch-asp:k=2 ", "time over bsp's"} {
		if !strings.Contains(table.String(), want) {
			t.Errorf("no %q in\n%s", want, table.String())
		}
	}
}

func TestRealTrainingGoesThroughAnAggregator(t *testing.T) {
	q := find("real")
	q.realSteps = 12
	s := answer(t, q, 1)
	if len(s.Rows) != 9 {
		t.Fatalf("%d rows", len(s.Rows))
	}
	for i := range s.Rows {
		if r := &s.Rows[i]; ratio(r) <= 0 || r.Over(expected).Mean() <= 0 { // how fast, a busy machine decides
			t.Errorf("%+v", r)
		}
	}
}

// Strategy-Switch that never switches takes bsp's time, and one that does at once takes asp's.
func TestFormulaOfStrategySwitch(t *testing.T) {
	oneGoroutine(t)
	q := find("switch")
	q.base.Epochs, q.folds, q.tell = 2, 1, nil
	s := answer(t, q, 1)
	if got := predict(s.Row(four.String(), "strategy-switch")); math.Abs(got-1) > 1e-9 {
		t.Errorf("without a switch the formula predicts %g", got)
	}
	if asp := s.Row(four.String(), "asp"); predict(asp) != 0 || ratio(asp) < 1.5 {
		t.Errorf("asp: %g times bsp's pushes, predicted %g", ratio(asp), predict(asp))
	}
}
