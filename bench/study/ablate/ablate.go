// Package ablate measures the design's kernels, each against its alternative on the same machine. What a flag of rackweave bench
// chooses, such as the chunk size, is compared with that.
package ablate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/rackweave/rackweave/bench/report"
)

// Ablations are the results of all studies.
type Ablations struct {
	Machine   report.Machine
	Rounds    int
	Ablations []Ablation
}

// Ablation is the result of one study. It has a value for each number of workers and each series.
type Ablation struct {
	Name, Title, Setting string

	Workers  []int // whose gradients are in a chunk's sum
	Series   []Series
	Findings []string // in words, what the values show
}

// Series holds, by number of workers, the median of an alternative's rounds, in GB/s of gradients.
type Series struct {
	Label  string
	Values []float64
}

// study is an ablation to run, with the memory that it works on.
type study struct {
	Ablation
	*workload
	// works returns the work of each series with that many workers.
	works func(workers int) []func() error
	find  func(a *Ablation) // works out the findings
}

// Config selects the studies.
type Config struct {
	Only   []string // names; if empty, all
	Rounds int
	quick  bool      // measures next to nothing, to see that everything works
	Log    io.Writer // shows the progress. It may be nil
}

// workerCounts are the numbers of gradients in a chunk's sum.
var workerCounts = []int{2, 4, 8}

// ablations lists the studies by name, each with a function that prepares it on a workload of the most workers.
var ablations = []struct {
	name    string
	prepare func(*workload) (*study, error)
}{{"fused", fusedAndTwoPasses}, {"order", rankAndArrivalOrder}}

// Names lists the ablations.
func Names() []string {
	var names []string
	for _, a := range ablations {
		names = append(names, a.name)
	}
	return names
}

// Check returns an error if the configuration cannot be measured.
func (c *Config) Check() error {
	if c.Rounds < 1 || c.Rounds > 1000 {
		return fmt.Errorf("%d rounds: use 1 to 1000", c.Rounds)
	}
	for _, name := range c.Only {
		if !slices.Contains(Names(), name) {
			return fmt.Errorf("unknown ablation %q: use %s", name, strings.Join(Names(), ", "))
		}
	}
	return nil
}

// Run measures the alternatives of one study after another.
func Run(ctx context.Context, cfg Config) (Ablations, error) {
	if err := cfg.Check(); err != nil {
		return Ablations{}, err
	}
	all := Ablations{Machine: report.ThisMachine(), Rounds: cfg.Rounds}
	for _, a := range ablations {
		if len(cfg.Only) > 0 && !slices.Contains(cfg.Only, a.name) {
			continue
		}
		done, err := run(ctx, a.name, a.prepare, &cfg)
		if err != nil {
			return all, fmt.Errorf("ablation %s: %w", a.name, err)
		}
		all.Ablations = append(all.Ablations, done)
	}
	return all, nil
}

func run(ctx context.Context, name string, prepare func(*workload) (*study, error), cfg *Config) (done Ablation, err error) {
	l, err := newWorkload(slices.Max(workerCounts), cfg.arrayBytes())
	if err != nil {
		return done, err
	}
	defer func() { err = errors.Join(err, l.close()) }()
	s, err := prepare(l)
	if err != nil {
		return done, err
	}
	s.Name, s.workload, s.Workers = name, l, workerCounts
	var bar *report.Progress
	if cfg.Log != nil {
		bar = report.NewProgress(cfg.Log, name, cfg.Rounds*len(s.Workers)*len(s.Series))
	}
	if err := s.measure(ctx, cfg.Rounds, bar); err != nil {
		return done, err
	}
	s.find(&s.Ablation)
	return s.Ablation, nil
}

// measure alternates between the works, in every second round in reverse, so that the machine's other work affects all of them.
func (s *study) measure(ctx context.Context, rounds int, bar *report.Progress) error {
	type cell struct {
		workers int
		work    func() error
		rates   []float64
	}
	var cells, order []*cell
	for _, workers := range s.Workers {
		for _, work := range s.works(workers) {
			cells = append(cells, &cell{workers: workers, work: work})
		}
	}
	order = slices.Clone(cells)
	for range rounds {
		for _, c := range order {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			rate, err := s.rate(c.workers, c.work)
			if err != nil {
				return fmt.Errorf("%d workers: %w", c.workers, err)
			}
			c.rates = append(c.rates, rate)
			bar.Add(1)
		}
		slices.Reverse(order)
	}
	for i, c := range cells {
		series := &s.Series[i%len(s.Series)]
		series.Values = append(series.Values, report.Median(c.rates))
	}
	return nil
}

// finding appends a finding.
func (a *Ablation) finding(format string, args ...any) {
	a.Findings = append(a.Findings, fmt.Sprintf(format, args...))
}

// WriteTable prints a table for each ablation, with its findings.
func (all *Ablations) WriteTable(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "# %s\n# medians of %d rounds in turn, in GB/s of gradients that are aggregated\n", all.Machine, all.Rounds)
	for _, a := range all.Ablations {
		fmt.Fprintf(t, "\n# %s: %s\n# %s\nworkers", a.Name, a.Title, a.Setting)
		for _, s := range a.Series {
			fmt.Fprintf(t, "\t%s", s.Label)
		}
		for i, workers := range a.Workers {
			fmt.Fprintf(t, "\n%d", workers)
			for _, s := range a.Series {
				fmt.Fprintf(t, "\t%.2f", s.Values[i])
			}
		}
		for _, f := range a.Findings {
			fmt.Fprintf(t, "\n# %s", f)
		}
		fmt.Fprintln(t)
	}
	return t.Flush()
}
