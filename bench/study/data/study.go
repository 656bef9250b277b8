package data

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/rackweave/rackweave/bench/study"
	"github.com/rackweave/rackweave/bench/study/simulate"
	"github.com/rackweave/rackweave/bench/study/task"
	"github.com/rackweave/rackweave/policy"
)

const (
	rate   = 0.5 // of a gradient that is the mean of all workers' rows
	epochs = 30
	// An imbalanced problem has few images of the digits from rareFrom on. Its test is balanced.
	rareFrom, rareRows = 7, 6
	// fewestSeeds is the least number that variances are compared with, and speedSeeds the most that times are measured with.
	fewestSeeds, speedSeeds = 3, 20
)

// problem is the images to train and to test with.
type problem struct{ train, test []task.Image }

// newProblem divides the images into two thirds to train and a third to test with, in one way for all seeds.
func newProblem(imbalanced bool) *problem {
	train, test := task.Split(0, task.Images/3)
	var rows [task.Classes]int
	return &problem{test: test, train: slices.DeleteFunc(train, func(x task.Image) bool {
		rows[x.Digit]++
		return imbalanced && x.Digit >= rareFrom && rows[x.Digit] > rareRows
	})}
}

// task returns the task to learn the problem by softmax regression.
func (p *problem) task(int) task.Task { return task.NewDigits(p.train, p.test) }

// condition is the circumstances of a training.
type condition struct {
	synchronous bool
	// slow is the time of the last worker's batch over the others'.
	slow float64
	// balanced divides each step's rows by the workers' speeds. Otherwise all have batches of one size.
	balanced bool
	// cover trains until each row was applied as often as there are epochs. Otherwise the rows in all count.
	cover bool
}

// least returns the least time of an epoch that the workers' speeds allow, in those of a fast worker's row.
func (c condition) least(p *problem) float64 { return float64(len(p.train)) / (workers - 1 + 1/c.slow) }

// train trains in a way. Its time is that of an epoch over the least.
func (w *way) train(ctx context.Context, p *problem, c condition, seed uint64) (o study.Outcome, err error) {
	rows, err := w.open(p, c, seed)
	if err != nil {
		return o, err
	}
	s := simulate.Setting{
		Cluster: simulate.Cluster{Steps: []float64{1, 1, 1, c.slow}}, Task: p.task, LR: rate, Batch: workers * batch, Epochs: epochs,
		Seed: seed, Rows: rows,
	}
	var clocks [workers]*rand.Rand
	for w := range clocks {
		clocks[w] = rand.New(rand.NewPCG(seed, uint64(w)))
	}
	s.Length = func(w int) int64 {
		return int64(simulate.Unit * s.Cluster.Steps[w] * math.Exp(simulate.Jitter*clocks[w].NormFloat64()))
	}
	s.Over = func() bool {
		if c.synchronous && rows.pushes%workers > 0 { // in the middle of a step
			return false
		}
		return c.cover && rows.short == 0 || !c.cover && rows.rows >= epochs*len(p.train)
	}
	if !c.synchronous {
		if s.Policy, err = policy.Parse("asp"); err != nil {
			return o, err
		}
	}
	o, err = simulate.Run(ctx, s)
	o.Time *= batch / (epochs * c.least(p))
	return o, err
}

// Ways are the studies of ways to deal rows.
var Ways = study.Group{
	Head: fmt.Sprintf("softmax regression of digits, SGD lr %g, %d workers with batches of %d, %d epochs; means and standard deviations, "+
		"differences of pairs ± 95%%; balanced digits have half of the seeds", rate, workers, batch, epochs),
	Fewest: fewestSeeds, Because: ", because variances are compared",
	Plans: []study.Plan{
		compare("full-sync", "all digits, workers in step", false, condition{synchronous: true, slow: 1}),
		compare("full-async", "all digits, asynchronous", false, condition{slow: 1}),
		compare("full-slow", "all digits, asynchronous, one worker three times slower", false, condition{slow: 3}),
		compare("imbalanced-sync", "three rare classes, workers in step", true, condition{synchronous: true, slow: 1}),
		compare("imbalanced-async", "three rare classes, asynchronous", true, condition{slow: 1}),
		compare("imbalanced-slow", "three rare classes, asynchronous, one worker three times slower", true, condition{slow: 3}),
		speed(),
		through(realRow, realEpochs),
	},
}

// row returns a row of trainings in a way.
func (w *way) row(name string, p *problem, c condition) study.Row {
	return study.Row{Way: name, Train: func(ctx context.Context, run int) (study.Outcome, error) {
		return w.train(ctx, p, c, uint64(run+1))
	}}
}

// compare trains in all ways under one condition.
func compare(name, title string, imbalanced bool, c condition) study.Plan {
	p := study.Plan{Name: name, Title: title, Setting: "virtual time", Heads: "way", Columns: columns, Tell: tellApart}
	if !imbalanced {
		p.Runs = func(seeds int) int { return max(fewestSeeds, seeds/2) }
	}
	p.Rows = func(context.Context, *study.Config) ([]study.Row, error) {
		rows, digits := make([]study.Row, len(ways)), newProblem(imbalanced)
		for i := range ways {
			rows[i] = ways[i].row(ways[i].name, digits, c)
			rows[i].Base = &rows[0]
		}
		return rows, nil
	}
	return p
}

// beside returns a column of how a row compares with random shards.
func beside(head string, text func(own, random study.Values, r *study.Row) string, f study.Figure) study.Column {
	return study.Column{Head: head, Text: func(r *study.Row) string {
		if r == r.Base {
			return ""
		}
		return text(r.Of(f), r.Base.Of(f), r)
	}}
}

// of returns a column of a figure.
func of(head, format string, f study.Figure, statistic func(study.Values) float64) study.Column {
	return study.Column{Head: head, Text: func(r *study.Row) string { return fmt.Sprintf(format, statistic(r.Of(f))) }}
}

var columns = []study.Column{
	of("accuracy %", "%.2f", study.Accuracy, study.Values.Mean),
	of("sd", "%.2f", study.Accuracy, study.Values.SD),
	beside("over random", func(_, _ study.Values, r *study.Row) string {
		return r.Above(r.Base, study.Accuracy).Interval("%+.2f", "%.2f")
	}, study.Accuracy),
	beside("variance, random's over its", func(own, random study.Values, _ *study.Row) string {
		return fmt.Sprintf("%.2f", math.Pow(random.SD()/own.SD(), 2))
	}, study.Accuracy),
	beside("p", probability, study.Accuracy),
	of("loss", "%.4f", study.Loss, study.Values.Mean),
	of("loss's sd", "%.4f", study.Loss, study.Values.SD),
	beside("loss's p", probability, study.Loss),
}

// probability prints that of variances as different as these by chance.
func probability(own, random study.Values, _ *study.Row) string {
	_, p := study.BrownForsythe(own, random)
	if p < 0.001 {
		return "<.001"
	}
	return strings.TrimPrefix(fmt.Sprintf("%.3f", p), "0")
}

func tellApart(s *study.Study) {
	apart, unequal := 0, 0
	for i := range s.Rows[1:] {
		r := &s.Rows[i+1]
		if over := r.Above(r.Base, study.Accuracy); math.Abs(over.Mean()) > over.Half() {
			apart++
		}
		if _, p := study.BrownForsythe(r.Of(study.Accuracy), r.Base.Of(study.Accuracy)); p < 0.05 {
			unequal++
		}
	}
	others := len(s.Rows) - 1
	s.Find("of %d ways, %d have a mean apart from random's at 95%%, and %d an unequal variance at p < .05: %.1f each are expected by "+
		"chance", others, apart, unequal, 0.05*float64(others))
}

// timed returns a study of the time of an epoch in which every row counts.
func timed(name, setting string) study.Plan {
	return study.Plan{
		Name: name, Title: "time of an epoch in which every row counts, over the least that the workers' speeds allow", Setting: setting,
		Heads: "workers, training, way", Columns: []study.Column{
			of("over the least", "%.2f", study.Time, study.Values.Mean), of("accuracy %", "%.2f", study.Accuracy, study.Values.Mean),
		},
	}
}

// speed compares the times that shards and a queue take.
func speed() study.Plan {
	p := timed("speed", "virtual time")
	p.Runs = func(seeds int) int { return min(seeds, speedSeeds) }
	p.Rows = func(context.Context, *study.Config) (rows []study.Row, err error) {
		digits := newProblem(false)
		for _, slow := range []float64{1, 3} {
			for _, mode := range []struct {
				name string
				condition
				ways []string
			}{
				{"in step", condition{synchronous: true, slow: slow, cover: true}, []string{"random", "queue"}},
				{"in step, sizes by speed", condition{synchronous: true, slow: slow, cover: true, balanced: true}, []string{"queue", "sbatch"}},
				{"asynchronous", condition{slow: slow, cover: true}, []string{"random", "queue", "sbatch"}},
			} {
				for _, name := range mode.ways {
					rows = append(rows, find(name).row(fmt.Sprintf("1:%g, %s, %s", slow, mode.name, name), digits, mode.condition))
				}
			}
		}
		return rows, nil
	}
	p.Tell = func(s *study.Study) {
		time := func(way string) float64 { return s.Row("", way).Of(study.Time).Mean() }
		s.Find("with a slow worker, asynchronous shards take %.2f of a queue's time, and batches of one size in step %.2f of sizes by speed",
			time("1:3, asynchronous, random")/time("1:3, asynchronous, queue"),
			time("1:3, in step, random")/time("1:3, in step, sizes by speed, queue"))
	}
	return p
}

// find returns the way of a name.
func find(name string) *way {
	return &ways[slices.IndexFunc(ways, func(w way) bool { return w.name == name })]
}
