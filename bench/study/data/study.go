package data

import (
	"context"
	"fmt"
	"io"
	"math"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"

	"golang.org/x/sync/errgroup"
	"gonum.org/v1/gonum/stat"

	"github.com/rackweave/rackweave/bench/report"
)

// Config selects what runs, and how often.
type Config struct {
	Only  []string  // names of studies. If empty, all
	Seeds int       // trainings in each way; of balanced digits half as many
	Log   io.Writer // shows the progress. It may be nil
}

// Study is the answer to a question.
type Study struct {
	Name, Title string
	Rows        []Row
	Findings    []string // in words, what the rows show
}

// Row is a way to deal rows, with the results of its trainings by their seeds.
type Row struct {
	Way      string
	Accuracy []float64 // percent, of the images to test with
	Loss     []float64
	Time     []float64 // of an epoch, in those of a fast worker's batch; of study real, seconds
}

// Bounds of a configuration: more seeds are a mistake.
const (
	fewestSeeds = 3
	maxSeeds    = 1000
)

// plan is a question.
type plan struct {
	name, title string
	imbalanced  bool
	condition
	// answer runs it. If nil, all ways train under the condition.
	answer func(ctx context.Context, p *plan, cfg *Config, out io.Writer) (Study, error)
}

var plans = []plan{
	{name: "full-sync", title: "all digits, workers in step", condition: condition{synchronous: true, slow: 1}},
	{name: "full-async", title: "all digits, asynchronous", condition: condition{slow: 1}},
	{name: "full-slow", title: "all digits, asynchronous, one worker three times slower", condition: condition{slow: 3}},
	{name: "imbalanced-sync", title: "three rare classes, workers in step", imbalanced: true,
		condition: condition{synchronous: true, slow: 1}},
	{name: "imbalanced-async", title: "three rare classes, asynchronous", imbalanced: true, condition: condition{slow: 1}},
	{name: "imbalanced-slow", title: "three rare classes, asynchronous, one worker three times slower", imbalanced: true,
		condition: condition{slow: 3}},
	{name: "speed", title: "time of an epoch in which every row counts, over the least possible", answer: speed},
	{name: "real", title: "the same by the clock, through an aggregator that deals the rows of a manifest", answer: through(realRow, realEpochs)},
}

// Names lists the studies.
func Names() (names []string) {
	for _, p := range plans {
		names = append(names, p.name)
	}
	return names
}

// Run runs studies, prints their tables, and returns them.
func Run(ctx context.Context, cfg Config, out io.Writer) (studies []Study, err error) {
	if cfg.Seeds < fewestSeeds || cfg.Seeds > maxSeeds {
		return nil, fmt.Errorf("%d seeds: use %d to %d, because variances are compared", cfg.Seeds, fewestSeeds, maxSeeds)
	}
	for _, name := range cfg.Only {
		if names := Names(); !slices.Contains(names, name) {
			return nil, fmt.Errorf("unknown study %q: use %s", name, strings.Join(names, ", "))
		}
	}
	fmt.Fprintf(out, "# softmax regression of digits, SGD lr %g, %d workers with batches of %d, %d epochs; means and standard deviations of "+
		"%d seeds, %d of balanced digits; differences of pairs ± 95%%\n", rate, workers, batch, epochs, cfg.Seeds, max(fewestSeeds, cfg.Seeds/2))
	for _, p := range plans {
		if len(cfg.Only) > 0 && !slices.Contains(cfg.Only, p.name) {
			continue
		}
		answer := p.answer
		if answer == nil {
			answer = compare
		}
		fmt.Fprintf(out, "\n# %s: %s\n", p.name, p.title)
		s, err := answer(ctx, &p, &cfg, out)
		if err != nil {
			return nil, fmt.Errorf("study %s: %w", p.name, err)
		}
		for _, f := range s.Findings {
			fmt.Fprintf(out, "# %s\n", f)
		}
		studies = append(studies, s)
	}
	return studies, nil
}

// trial is a way under a condition.
type trial struct {
	name string
	way  *way
	condition
}

// runAll runs trials with all seeds on all processors.
func runAll(ctx context.Context, label string, trials []trial, imbalanced bool, seeds int, log io.Writer) ([]Row, error) {
	p, bar := newProblem(imbalanced), report.NewProgress(log, label, len(trials)*seeds)
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(runtime.GOMAXPROCS(0))
	rows := make([]Row, len(trials))
	for i, t := range trials {
		r := &rows[i]
		*r = Row{t.name, make([]float64, seeds), make([]float64, seeds), make([]float64, seeds)}
		for seed := range seeds {
			g.Go(func() error {
				o, err := train(ctx, p, t.way, t.condition, uint64(seed+1))
				if err != nil {
					return fmt.Errorf("%s: %w", t.name, err)
				}
				r.Accuracy[seed], r.Loss[seed], r.Time[seed] = o.accuracy, o.loss, o.time
				bar.Add(1)
				return nil
			})
		}
	}
	return rows, g.Wait()
}

// compare trains in all ways under one condition.
func compare(ctx context.Context, p *plan, cfg *Config, out io.Writer) (s Study, err error) {
	var trials []trial
	for i := range ways {
		trials = append(trials, trial{ways[i].name, &ways[i], p.condition})
	}
	seeds := cfg.Seeds
	if !p.imbalanced {
		seeds = max(fewestSeeds, seeds/2)
	}
	s = Study{Name: p.name, Title: p.title}
	if s.Rows, err = runAll(ctx, p.name, trials, p.imbalanced, seeds, cfg.Log); err != nil {
		return s, err
	}
	random := &s.Rows[0]
	lines := [][]string{{"way", "accuracy %", "sd", "over random", "variance, random's over its", "p", "loss", "sd", "p"}}
	apart, unequal := 0, 0
	for i := range s.Rows {
		r := &s.Rows[i]
		accuracy, loss := compareTo(random.Accuracy, r.Accuracy), compareTo(random.Loss, r.Loss)
		line := []string{r.Way, fmt.Sprintf("%.2f", accuracy.mean), fmt.Sprintf("%.2f", accuracy.sd), "", "", "",
			fmt.Sprintf("%.4f", loss.mean), fmt.Sprintf("%.4f", loss.sd), ""}
		if i > 0 {
			line[3], line[4] = fmt.Sprintf("%+.2f ± %.2f", accuracy.over, accuracy.half), fmt.Sprintf("%.2f", accuracy.ratio)
			line[5], line[8] = probability(accuracy.p), probability(loss.p)
			if math.Abs(accuracy.over) > accuracy.half {
				apart++
			}
			if accuracy.p < 0.05 {
				unequal++
			}
		}
		lines = append(lines, line)
	}
	others := len(s.Rows) - 1
	s.Findings = append(s.Findings, fmt.Sprintf("of %d ways, %d have a mean apart from random's at 95%%, and %d an unequal variance at p < .05: "+
		"%.1f each are expected by chance", others, apart, unequal, 0.05*float64(others)))
	return s, table(out, lines)
}

// comparison compares values with the values of another way at the same seeds.
type comparison struct {
	mean, sd   float64
	over, half float64 // the mean difference, and half its 95 % interval
	ratio, p   float64 // the other variance over this one, and the probability of such a difference by chance
}

func compareTo(others, values []float64) (c comparison) {
	c.mean, c.sd = stat.MeanStdDev(values, nil)
	c.over, c.half = paired(values, others)
	c.ratio = stat.Variance(others, nil) / stat.Variance(values, nil)
	_, c.p = brownForsythe(values, others)
	return c
}

// probability writes one.
func probability(p float64) string {
	if p < 0.001 {
		return "<.001"
	}
	return strings.TrimPrefix(fmt.Sprintf("%.3f", p), "0")
}

// table prints lines of cells.
func table(out io.Writer, lines [][]string) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, cells := range lines {
		fmt.Fprintln(w, strings.Join(cells, "\t"))
	}
	return w.Flush()
}

// find returns the way of a name.
func find(name string) *way {
	return &ways[slices.IndexFunc(ways, func(w way) bool { return w.name == name })]
}

// speedSeeds is the number of seeds that times are measured with at most.
const speedSeeds = 20

// speed compares the times that shards and a queue take.
func speed(ctx context.Context, p *plan, cfg *Config, out io.Writer) (s Study, err error) {
	var trials []trial
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
				trials = append(trials, trial{fmt.Sprintf("1:%g, %s, %s", slow, mode.name, name), find(name), mode.condition})
			}
		}
	}
	s = Study{Name: p.name, Title: p.title}
	if s.Rows, err = runAll(ctx, p.name, trials, false, min(cfg.Seeds, speedSeeds), cfg.Log); err != nil {
		return s, err
	}
	lines, times := [][]string{{"workers, training, way", "time over ideal", "accuracy %"}}, map[string]float64{}
	for i, r := range s.Rows {
		ideal := float64(len(newProblem(false).train)) / batch / (workers - 1 + 1/trials[i].slow)
		times[r.Way] = stat.Mean(r.Time, nil)
		lines = append(lines, []string{r.Way, fmt.Sprintf("%.2f", times[r.Way]/ideal), fmt.Sprintf("%.2f", stat.Mean(r.Accuracy, nil))})
	}
	s.Findings = []string{
		fmt.Sprintf("with a slow worker, asynchronous shards take %.2f of a queue's time, and batches of one size in step %.2f of sizes by speed",
			times["1:3, asynchronous, random"]/times["1:3, asynchronous, queue"],
			times["1:3, in step, random"]/times["1:3, in step, sizes by speed, queue"]),
	}
	return s, table(out, lines)
}
