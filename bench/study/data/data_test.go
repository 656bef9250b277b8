package data

import (
	"context"
	"math"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rackweave/rackweave/bench/study"
	"github.com/rackweave/rackweave/bench/study/task"
)

// oneGoroutine skips a test under -short, with which the race detector runs: it trains in one goroutine, which cannot race.
func oneGoroutine(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("-short is set: this test computes in one goroutine, which cannot race, and takes ten times as long under -race")
	}
}

func TestImbalancedProblemHasFewRowsOfThreeClassesAndTheSameTest(t *testing.T) {
	full, few := newProblem(false), newProblem(true)
	if len(full.train) != 1198 || len(full.test) != 599 || !reflect.DeepEqual(full.test, few.test) {
		t.Errorf("%d to train, %d to test; tests are equal: %v", len(full.train), len(full.test), reflect.DeepEqual(full.test, few.test))
	}
	all, _ := byDigit(full, 0)
	left, _ := byDigit(few, 0)
	for c := range task.Classes {
		want := len(all[c])
		if c >= 7 {
			want = 6
		}
		if len(left[c]) != want {
			t.Errorf("class %d has %d rows of %d, want %d", c, len(left[c]), len(all[c]), want)
		}
	}
}

// TestRowsAreDealtAsTheWaySays counts how often each row is applied in synchronous training.
func TestRowsAreDealtAsTheWaySays(t *testing.T) {
	p := newProblem(true)
	for i := range ways {
		w := &ways[i]
		s, err := w.open(p, condition{synchronous: true}, 7)
		if err != nil {
			t.Fatal(err)
		}
		counts, rows := make([]int, len(p.train)), 0
		var own [workers]map[int]bool
		for rows < epochs*len(p.train) {
			for worker := range workers {
				batch, err := s.Next(worker)
				if err != nil || s.Done(worker, 1) != nil {
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
			if i%5 > 0 && os.Getenv("RACKWEAVE_LONG") == "" { // the others are shards, clusters and a queue
				continue
			}
			a, err := ways[i].train(t.Context(), p, c, 5)
			if err != nil {
				t.Fatal(err)
			}
			if b, err := ways[i].train(t.Context(), p, c, 5); err != nil || !reflect.DeepEqual(a, b) {
				t.Errorf("%s: %+v and %+v, %v", ways[i].name, a, b, err)
			}
			if b, err := ways[i].train(t.Context(), p, c, 6); err != nil || reflect.DeepEqual(a, b) {
				t.Errorf("%s: two seeds are one training, %+v, %v", ways[i].name, b, err)
			}
		}
	}
}

func TestWhatMustShowShowsWithFewSeeds(t *testing.T) {
	oneGoroutine(t)
	run := func(p study.Plan, seeds int) *study.Study {
		s, err := p.Run(t.Context(), &study.Config{Seeds: seeds})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	p, digits := study.Plan{}, newProblem(true)
	p.Rows = func(context.Context, *study.Config) (rows []study.Row, err error) {
		for _, name := range []string{"random", "label-skewed", "sbatch"} {
			rows = append(rows, find(name).row(name, digits, condition{slow: 3}))
		}
		return rows, nil
	}
	s := run(p, 8)
	random, skewed, sbatch := &s.Rows[0], &s.Rows[1], &s.Rows[2]
	if ratio := math.Pow(random.Of(study.Accuracy).SD()/sbatch.Of(study.Accuracy).SD(), 2); ratio < 1.5 {
		t.Errorf("random's variance is %.2f of sbatch's, want 1.5 or more", ratio)
	}
	if over := skewed.Above(random, study.Accuracy).Mean(); over > -5 {
		t.Errorf("label-skewed shards lose %.1f points, want 5 or more", -over)
	}
	s = run(speed(), 1)
	took := func(way string) float64 { return s.Row("", way).Of(study.Time).Mean() }
	if r := took("1:3, asynchronous, random") / took("1:3, asynchronous, queue"); r < 2.3 {
		t.Errorf("shards take %.2f of the queue's time, want 2.3 or more", r)
	}
	if r := took("1:3, in step, sizes by speed, queue") / took("1:1, in step, queue"); r > 1.1 {
		t.Errorf("sizes by speed take %.2f of even workers' time in step, want at most 1.1", r)
	}
}

func TestTablesHaveARowForEachWay(t *testing.T) {
	oneGoroutine(t)
	var out strings.Builder
	g := study.Group{Plans: []study.Plan{compare("rare", "Rare classes", true, condition{synchronous: true, slow: 1})}}
	s, err := g.Run(t.Context(), study.Config{Seeds: 2}, &out)
	if err != nil || len(s) != 1 || len(s[0].Rows) != len(ways) {
		t.Fatalf("%v, %d studies", err, len(s))
	}
	for i := range ways {
		if !strings.Contains(out.String(), "\n"+ways[i].name+" ") || len(s[0].Rows[i].Runs) != 2 {
			t.Errorf("no row for %s in\n%s", ways[i].name, out.String())
		}
	}
}

func TestTrainingGoesThroughAnAggregatorThatDealsTheRows(t *testing.T) {
	p := through(20*time.Microsecond, 2)
	s, err := p.Run(t.Context(), &study.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if len(s.Rows) != 6 || len(s.Findings) != 2 || !strings.Contains(s.Findings[0], "the same model, to the bit") {
		t.Errorf("%d rows, %q", len(s.Rows), s.Findings)
	}
	for _, r := range s.Rows {
		if o := r.Runs[0]; o.Time <= 0 || o.Accuracy < 80 { // how fast, a busy machine decides
			t.Errorf("%+v", r)
		}
	}
}
