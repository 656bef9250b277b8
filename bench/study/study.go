// Package study measures what choices of the product do to learning: conditions, ways and seeds make trainings, whose figures make
// the rows of a table. Packages learn and data have the studies, package task what their trainings learn, package simulate
// trainings in virtual time, and package local trainings through an aggregator.
package study

import (
	"context"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"

	"golang.org/x/sync/errgroup"

	"github.com/rackweave/rackweave/bench/report"
)

// Config selects what runs, and how often.
type Config struct {
	Only  []string  // names of studies. If empty, all
	Seeds int       // trainings of each kind
	Log   io.Writer // shows the progress. It may be nil
}

// Group is studies with the same bounds for the number of seeds.
type Group struct {
	Head    string // in words, what all tables have in common
	Fewest  int    // seeds
	Because string // it has such a bound
	Plans   []Plan
}

// Plan is a question, and how trainings answer it.
type Plan struct {
	Name, Title, Setting string
	Heads                string // of what tells rows apart, between tabs
	Columns              []Column
	Runs                 func(seeds int) int // of each row. If nil, one for each seed
	Alone                bool                // the clock measures the trainings: one at a time
	// Rows returns the rows without their runs.
	Rows func(ctx context.Context, cfg *Config) ([]Row, error)
	// Tell adds findings. It may be nil.
	Tell func(*Study)
}

// Study is an answer.
type Study struct {
	Name, Title, Setting string
	Rows                 []Row
	Findings             []string // in words, what the rows show
}

// Column is a figure of rows.
type Column struct {
	Head string
	Text func(*Row) string
}

// Row is trainings that differ by their seed only.
type Row struct {
	Cluster string `json:",omitempty"` // or another condition
	Way     string
	Runs    []Outcome
	Figures map[string]string // by the heads of the columns
	// Train makes a run. The runs of a number are pairs in all rows.
	Train func(ctx context.Context, run int) (Outcome, error) `json:"-"`
	Base  *Row                                                `json:"-"` // to compare with
	of    *Study
}

// Outcome is the result of a training. Figures that it does not have are 0.
type Outcome struct {
	Accuracy float64   // percent
	Loss     float64   // at the end
	Time     float64   // in steps of the fastest worker; in studies of data, of an epoch, over the least that speeds allow
	ToTarget float64   `json:",omitempty"` // the time until the loss reached the target
	Pushes   float64   `json:",omitempty"`
	Updates  float64   `json:",omitempty"`
	MaxLead  float64   `json:",omitempty"` // steps by which a worker began ahead of another
	Crossed  float64   `json:",omitempty"` // models that crossed the core, from each rack
	Switched float64   `json:",omitempty"` // the epoch at which Strategy-Switch switched
	Expected float64   `json:",omitempty"` // pushes in a time, by the simulation
	Paced    float64   `json:",omitempty"` // of data by the clock: as Time, for the speeds that workers had, who sleep too long
	Rate     float64   `json:",omitempty"` // of learning
	Up, Down float64   // bits for an element of a gradient and of an answer
	Bytes    float64   `json:",omitempty"` // that a worker sent and received until the target
	Curve    []Point   `json:",omitempty"`
	Losses   []float64 `json:"-"` // after each update, until the target
	Note     string    `json:",omitempty"`
}

// Point is a moment of a training.
type Point struct {
	Step           int
	Bytes          float64 // that a worker sent and received until then
	Loss, Accuracy float64
}

// most bounds the seeds: more are a mistake.
const most = 1000

// Names lists the studies.
func (g *Group) Names() (names []string) {
	for _, p := range g.Plans {
		names = append(names, p.Name)
	}
	return names
}

// Run answers the questions, prints a table for each, and returns them.
func (g *Group) Run(ctx context.Context, cfg Config, out io.Writer) (studies []Study, err error) {
	if cfg.Seeds < g.Fewest || cfg.Seeds > most {
		return nil, fmt.Errorf("%d seeds: use %d to %d%s", cfg.Seeds, g.Fewest, most, g.Because)
	}
	for _, name := range cfg.Only {
		if names := g.Names(); !slices.Contains(names, name) {
			return nil, fmt.Errorf("unknown study %q: use %s", name, strings.Join(names, ", "))
		}
	}
	fmt.Fprintf(out, "# %s; %d seeds\n", g.Head, cfg.Seeds)
	for i := range g.Plans {
		p := &g.Plans[i]
		if len(cfg.Only) > 0 && !slices.Contains(cfg.Only, p.Name) {
			continue
		}
		s, err := p.Run(ctx, &cfg)
		if err == nil {
			err = p.write(out, s)
		}
		if err != nil {
			return nil, fmt.Errorf("study %s: %w", p.Name, err)
		}
		studies = append(studies, *s)
	}
	return studies, nil
}

// Run makes the trainings, and finds their answer.
func (p *Plan) Run(ctx context.Context, cfg *Config) (*Study, error) {
	rows, err := p.Rows(ctx, cfg)
	if err != nil {
		return nil, err
	}
	runs, abreast := cfg.Seeds, runtime.GOMAXPROCS(0)
	if p.Runs != nil {
		runs = p.Runs(runs)
	}
	if p.Alone {
		abreast = 1
	}
	for i := range rows {
		rows[i].Runs = make([]Outcome, runs)
	}
	bar := report.NewProgress(cfg.Log, p.Name, len(rows)*runs)
	err = Each(ctx, bar, len(rows)*runs, abreast, func(ctx context.Context, i int) (err error) {
		r := &rows[i/runs]
		if r.Runs[i%runs], err = r.Train(ctx, i%runs); err != nil {
			return fmt.Errorf("%s: %w", strings.TrimSpace(r.Way+" "+r.Cluster), err)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	s := &Study{Name: p.Name, Title: p.Title, Setting: p.Setting, Rows: rows}
	for i := range rows {
		r := &rows[i]
		r.of, r.Figures = s, make(map[string]string, len(p.Columns))
		for _, c := range p.Columns {
			r.Figures[c.Head] = c.Text(r)
		}
		for _, o := range r.Runs {
			if o.Note != "" {
				s.Find("%s: %s", r.Way, o.Note)
			}
		}
	}
	if p.Tell != nil {
		p.Tell(s)
	}
	return s, nil
}

// Each calls f with 0 to n-1, so many calls abreast. It returns the first error.
func Each(ctx context.Context, bar *report.Progress, n, abreast int, f func(ctx context.Context, i int) error) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(abreast)
	for i := range n {
		g.Go(func() error {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			defer bar.Add(1)
			return f(ctx, i)
		})
	}
	return g.Wait()
}

// write prints an answer.
func (p *Plan) write(out io.Writer, s *Study) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "\n# %s: %s\n# %s\n%s", s.Name, s.Title, s.Setting, p.Heads)
	for _, c := range p.Columns {
		fmt.Fprint(w, "\t", c.Head)
	}
	for _, r := range s.Rows {
		fmt.Fprintln(w)
		if strings.Contains(p.Heads, "\t") {
			fmt.Fprint(w, r.Cluster, "\t")
		}
		fmt.Fprint(w, r.Way)
		for _, c := range p.Columns {
			fmt.Fprint(w, "\t", r.Figures[c.Head])
		}
	}
	fmt.Fprintln(w)
	for _, f := range s.Findings {
		fmt.Fprintf(w, "# %s\n", f)
	}
	return w.Flush()
}

// Find adds a finding.
func (s *Study) Find(format string, args ...any) {
	s.Findings = append(s.Findings, fmt.Sprintf(format, args...))
}

// Row returns the row of a way on a cluster. It must exist.
func (s *Study) Row(cluster, way string) *Row {
	i := slices.IndexFunc(s.Rows, func(r Row) bool { return r.Cluster == cluster && r.Way == way })
	if i < 0 {
		panic(fmt.Sprintf("study: %s has no row for %s %s", s.Name, cluster, way))
	}
	return &s.Rows[i]
}

// Beside returns the row of another way on the same cluster.
func (r *Row) Beside(way string) *Row { return r.of.Row(r.Cluster, way) }
