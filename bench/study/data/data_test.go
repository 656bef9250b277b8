package data

import (
	"context"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"gonum.org/v1/gonum/stat"

	"github.com/rackweave/rackweave/bench/study/samples"
)

// oneGoroutine skips a test that trains in one goroutine under -short, as the race detector runs, which finds races between many.
func oneGoroutine(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("-short is set: this test computes in one goroutine, which cannot race, and takes ten times as long under -race")
	}
}

func TestStatisticsAreThoseOfSciPy(t *testing.T) {
	// The example of scipy.stats.levene's documentation, with center="median", and stats.f, in SciPy 1.10.
	a := []float64{8.88, 9.12, 9.04, 8.98, 9.00, 9.08, 9.01, 8.85, 9.06, 8.99}
	b := []float64{8.88, 8.95, 9.29, 9.44, 9.15, 9.58, 8.36, 9.18, 8.67, 9.05}
	c := []float64{8.95, 9.12, 8.95, 8.85, 9.03, 8.84, 9.07, 8.98, 8.86, 8.98}
	near := func(what string, got, want float64) {
		if math.Abs(got-want) > 1e-9*max(1, math.Abs(want)) {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
	f, p := brownForsythe(a, b, c)
	near("statistic", f, 7.584952754501659)
	near("p", p, 0.002431505967249681)
	f, p = brownForsythe(a, b[:9]) // an odd number of values
	near("statistic", f, 8.363001652617658)
	near("p", p, 0.010135331897805392)
	mean, half := paired([]float64{2, 4, 7}, []float64{1, 2, 4})
	near("difference", mean, 2)
	near("interval", half, 1.96/math.Sqrt(3))
	if f, p := brownForsythe([]float64{1, 1}, []float64{2, 2}); f != 0 || p != 1 {
		t.Errorf("samples without variance: %v, %v", f, p)
	}
}

func TestImbalancedProblemHasFewRowsOfThreeClassesAndTheSameTest(t *testing.T) {
	full, few := newProblem(false), newProblem(true)
	if len(full.train) != 1198 || len(full.test) != 599 || !reflect.DeepEqual(full.test, few.test) {
		t.Errorf("%d to train, %d to test; tests are equal: %v", len(full.train), len(full.test), reflect.DeepEqual(full.test, few.test))
	}
	all, left := full.classes(), few.classes()
	for c := range samples.Classes {
		want := len(all[c])
		if c >= 7 {
			want = 6
		}
		if len(left[c]) != want {
			t.Errorf("class %d has %d rows of %d, want %d", c, len(left[c]), len(all[c]), want)
		}
	}
}

func TestGradientIsTheSlopeOfTheLoss(t *testing.T) {
	x := &newProblem(false).train[3]
	var m, g softmax
	chance := rand.New(rand.NewPCG(1, 1))
	for i := range m {
		m[i] = float32(chance.NormFloat64())
	}
	g.add(&m, x, 1)
	var p perClass
	const step = 1e-2
	for i, was := range m {
		m[i] = was + step
		up := m.forward(x, &p)
		m[i] = was - step
		down := m.forward(x, &p)
		m[i] = was
		if slope := (up - down) / (2 * step); math.Abs(slope-float64(g[i])) > 2e-3 {
			t.Errorf("weight %d: slope %g, gradient %g", i, slope, g[i])
		}
	}
}

// TestRowsAreDealtAsTheWaySays counts how often each row is applied in synchronous training.
func TestRowsAreDealtAsTheWaySays(t *testing.T) {
	p := newProblem(true)
	for i := range ways {
		w := &ways[i]
		s, err := w.open(p, true, 7)
		if err != nil {
			t.Fatal(err)
		}
		counts, rows := make([]int, len(p.train)), 0
		var own [workers]map[int]bool
		for rows < epochs*len(p.train) {
			for worker := range workers {
				batch, err := s.take(worker, batch)
				if err != nil || s.applied(worker) != nil {
					t.Fatal(err)
				}
				rows += len(batch)
				for _, row := range batch {
					if counts[row]++; own[worker] == nil {
						own[worker] = map[int]bool{}
					}
					own[worker][row] = true
				}
			}
		}
		if least, most := slices.Min(counts), slices.Max(counts); w.divide == nil && (least != epochs || most != epochs) {
			t.Errorf("%s: rows were dealt %d to %d times in %d epochs", w.name, least, most, epochs)
		} else if least < epochs-5 || most > epochs+5 { // steps are whole, and shards are not equal
			t.Errorf("%s: rows were dealt %d to %d times in about %d epochs", w.name, least, most, epochs)
		}
		for row := range counts {
			holders := 0
			for worker := range own {
				if own[worker][row] {
					holders++
				}
			}
			if w.divide != nil && holders != 1 {
				t.Errorf("%s: row %d is in %d shards", w.name, row, holders)
			}
		}
	}
}

func TestSameSeedIsTheSameTraining(t *testing.T) {
	oneGoroutine(t)
	p := newProblem(true)
	for _, c := range []condition{{synchronous: true, slow: 3, balanced: true}, {slow: 3}} {
		for i := range ways {
			if i%3 > 0 && os.Getenv("RACKWEAVE_LONG") == "" { // shards, clusters and queues are among the others
				continue
			}
			a, err := train(t.Context(), p, &ways[i], c, 5)
			if err != nil {
				t.Fatal(err)
			}
			if b, err := train(t.Context(), p, &ways[i], c, 5); err != nil || a != b {
				t.Errorf("%s: %+v and %+v, %v", ways[i].name, a, b, err)
			}
			if b, err := train(t.Context(), p, &ways[i], c, 6); err != nil || a == b {
				t.Errorf("%s: two seeds are one training, %+v, %v", ways[i].name, b, err)
			}
		}
	}
}

func TestWhatMustShowShowsWithFewSeeds(t *testing.T) {
	oneGoroutine(t)
	var trials []trial
	for _, name := range []string{"random", "label-skewed", "sbatch"} {
		trials = append(trials, trial{name, find(name), condition{slow: 3}})
	}
	rows, err := runAll(t.Context(), "", trials, true, 12, nil)
	if err != nil {
		t.Fatal(err)
	}
	if v := compareTo(rows[0].Accuracy, rows[2].Accuracy); v.ratio < 1.5 {
		t.Errorf("random's variance is %.2f of sbatch's, want 1.5 or more", v.ratio)
	}
	if v := compareTo(rows[0].Accuracy, rows[1].Accuracy); v.over > -5 {
		t.Errorf("label-skewed shards lose %.1f points, want 5 or more", -v.over)
	}
	var out strings.Builder
	s, err := speed(t.Context(), &plan{}, &Config{Seeds: 1}, &out)
	if err != nil {
		t.Fatal(err)
	}
	took := func(way string) float64 { return stat.Mean(row(&s, way).Time, nil) }
	if r := took("1:3, asynchronous, random") / took("1:3, asynchronous, queue"); r < 2.3 {
		t.Errorf("shards take %.2f of the queue's time, want 2.3 or more", r)
	}
	if r := took("1:3, in step, sizes by speed, queue") / took("1:1, in step, queue") / 1.2; r > 1.1 {
		t.Errorf("sizes by speed take %.2f of the least time in step, want at most 1.1", r)
	}
	if !strings.Contains(out.String(), "time over ideal") {
		t.Errorf("no table:\n%s", out.String())
	}
}

// row finds a row.
func row(s *Study, way string) *Row {
	return &s.Rows[slices.IndexFunc(s.Rows, func(r Row) bool { return r.Way == way })]
}

func TestTablesHaveARowForEachWay(t *testing.T) {
	oneGoroutine(t)
	var out strings.Builder
	s, err := Run(t.Context(), Config{Only: []string{"imbalanced-sync"}, Seeds: 3}, &out)
	if err != nil || len(s) != 1 || len(s[0].Rows) != len(ways) {
		t.Fatalf("%v, %d studies", err, len(s))
	}
	for i := range ways {
		if !strings.Contains(out.String(), "\n"+ways[i].name+" ") || len(s[0].Rows[i].Accuracy) != 3 {
			t.Errorf("no row for %s in\n%s", ways[i].name, out.String())
		}
	}
}

func TestTrainingGoesThroughAnAggregatorThatDealsTheRows(t *testing.T) {
	var out strings.Builder
	s, err := through(20*time.Microsecond, 2)(t.Context(), &plan{}, &Config{}, &out)
	if err != nil {
		t.Fatal(err)
	}
	if len(s.Rows) != 6 || len(s.Findings) != 2 || !strings.Contains(s.Findings[0], "the same model, to the bit") {
		t.Errorf("%d rows, %q", len(s.Rows), s.Findings)
	}
	for _, r := range s.Rows {
		if len(r.Time) != 2 || r.Accuracy[0] < 80 { // how fast, a busy machine decides
			t.Errorf("%+v", r)
		}
	}
}

func TestWhatCannotBeStudiedIsRefused(t *testing.T) {
	for _, c := range []struct {
		cfg  Config
		want string
	}{
		{Config{Seeds: 2}, "2 seeds: use 3 to 1000"},
		{Config{Seeds: 1001}, "1001 seeds: use 3 to 1000"},
		{Config{Seeds: 3, Only: []string{"full"}}, `unknown study "full": use full-sync, full-async`},
	} {
		if _, err := Run(t.Context(), c.cfg, io.Discard); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v, want %q", err, c.want)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Run(ctx, Config{Seeds: 3}, io.Discard); err == nil {
		t.Error("a study goes on after its context has ended")
	}
}
