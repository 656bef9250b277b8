package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/rackweave/rackweave/bench/report"
)

// Ablations are the claims of the design, each measured against its alternative on the same machine.
type Ablations struct {
	Machine   report.Machine `json:"machine"`
	Rounds    int            `json:"rounds"`
	Ablations []Ablation     `json:"ablations"`
}

// Ablation is one claim. It has a value for each category and series: the median of rounds in which the alternatives took turns.
type Ablation struct {
	Name       string           `json:"name"`
	Title      string           `json:"title"`
	Setting    string           `json:"setting"`
	Provider   string           `json:"provider,omitempty"` // of exchanges
	Note       string           `json:"note,omitempty"`
	Quantity   string           `json:"quantity"` // what the categories are steps or kinds of
	Measure    string           `json:"measure"`  // with its unit
	Categories []string         `json:"categories"`
	Series     []AblationSeries `json:"series"`
	// Findings say in words what the values show.
	Findings []string `json:"findings"`
	// Counts are further counts, by name.
	Counts map[string]uint64 `json:"counts,omitempty"`

	kind report.ChartKind
}

// AblationSeries is one alternative: by category the median, the least and the most of the rounds.
type AblationSeries struct {
	Label  string    `json:"label"`
	Values []float64 `json:"values"`
	Min    []float64 `json:"min"`
	Max    []float64 `json:"max"`
}

// measure runs one alternative once, in one category, and returns a value for each of its series.
type measure func(ctx context.Context) ([]float64, error)

// study is an ablation to run: a row for each category, with the alternatives that take turns.
type study struct {
	Ablation
	rows  [][]measure
	tell  func(a *Ablation) // works out the findings
	close func() error
}

// AblateConfig says what to measure.
type AblateConfig struct {
	Only   []string // names; empty: all
	Rounds int
	// Spec is the exchange that measures chunk sizes and pinning.
	Spec Spec
	// Quick measures next to nothing, to see that everything works.
	Quick bool
}

// quickNote marks results of [AblateConfig.Quick] in tables, figures and JSON.
const quickNote = "quick: next to nothing was measured, the numbers say little"

// ablation is a claim's name, and a function that prepares its study.
type ablation struct {
	name    string
	prepare func(r *Runner, cfg *AblateConfig) (*study, error)
}

var ablations = []ablation{
	{"chunk-size", chunkSizes},
	{"tall-wide", tallAndWide},
	{"fused", fusedAndTwoPasses},
	{"order", rankAndArrivalOrder},
	{"pinned", pinnedAndFloating},
}

// AblationNames lists the ablations.
func AblationNames() []string {
	var names []string
	for _, a := range ablations {
		names = append(names, a.name)
	}
	return names
}

// Check completes the configuration and reports what in it cannot be done.
func (c *AblateConfig) Check() error {
	if c.Rounds < 1 || c.Rounds > 1000 {
		return fmt.Errorf("%d rounds: use 1 to 1000", c.Rounds)
	}
	for _, name := range c.Only {
		if !slices.Contains(AblationNames(), name) {
			return fmt.Errorf("unknown ablation %q: use %s", name, strings.Join(AblationNames(), ", "))
		}
	}
	return c.Spec.Check()
}

// Ablate measures the claims one after another.
func (r *Runner) Ablate(ctx context.Context, cfg AblateConfig) (Ablations, error) {
	if err := cfg.Check(); err != nil {
		return Ablations{}, err
	}
	all := Ablations{Machine: report.ThisMachine(), Rounds: cfg.Rounds}
	for _, a := range ablations {
		if len(cfg.Only) > 0 && !slices.Contains(cfg.Only, a.name) {
			continue
		}
		done, err := r.ablate(ctx, a, &cfg)
		if err != nil {
			return all, fmt.Errorf("ablation %s: %w", a.name, err)
		}
		all.Ablations = append(all.Ablations, done)
	}
	return all, nil
}

func (r *Runner) ablate(ctx context.Context, a ablation, cfg *AblateConfig) (done Ablation, err error) {
	// The output of one exchange would be too much for many.
	quiet := *r
	quiet.Started, quiet.Progress = nil, nil
	s, err := a.prepare(&quiet, cfg)
	if err != nil {
		return done, err
	}
	if s.close != nil {
		defer func() { err = errors.Join(err, s.close()) }()
	}
	steps := 0
	for _, row := range s.rows {
		steps += cfg.Rounds * len(row)
	}
	bar := r.progress(a.name, steps)
	defer bar.Close()
	if err := s.measure(ctx, cfg.Rounds, bar); err != nil {
		return done, err
	}
	s.Name = a.name
	s.tell(&s.Ablation)
	if cfg.Quick {
		s.Note = strings.TrimPrefix(s.Note+"; "+quickNote, "; ")
	}
	return s.Ablation, nil
}

// measure runs the alternatives by turns, and every second round in reverse, so that the machine's other work affects all of them.
func (s *study) measure(ctx context.Context, rounds int, bar *report.Progress) error {
	type cell struct{ row, column int }
	var cells []cell
	samples := make([][][][]float64, len(s.rows)) // by row, column and series of that: the rounds' values
	for i, row := range s.rows {
		samples[i] = make([][][]float64, len(row))
		for k := range row {
			cells = append(cells, cell{i, k})
		}
	}
	for range rounds {
		for _, c := range cells {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			values, err := s.rows[c.row][c.column](ctx)
			if err != nil {
				return fmt.Errorf("%s %s: %w", s.Quantity, s.Categories[c.row], err)
			}
			to := &samples[c.row][c.column]
			if *to == nil {
				*to = make([][]float64, len(values))
			}
			for i, v := range values {
				(*to)[i] = append((*to)[i], v)
			}
			bar.Add(1)
		}
		slices.Reverse(cells)
	}
	for _, row := range samples {
		for i, of := range slices.Concat(row...) {
			series := &s.Series[i]
			series.Values = append(series.Values, report.Median(of))
			series.Min = append(series.Min, slices.Min(of))
			series.Max = append(series.Max, slices.Max(of))
		}
	}
	return nil
}

// series makes empty series.
func series(labels ...string) []AblationSeries {
	all := make([]AblationSeries, len(labels))
	for i, label := range labels {
		all[i].Label = label
	}
	return all
}

// find appends a finding.
func (a *Ablation) find(format string, args ...any) {
	a.Findings = append(a.Findings, fmt.Sprintf(format, args...))
}

// WriteTable prints a table for each ablation, with its findings.
func (all *Ablations) WriteTable(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "# %s\n# medians of %d rounds in turn\n", all.Machine, all.Rounds)
	for i := range all.Ablations {
		all.Ablations[i].writeTable(&b)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func (a *Ablation) writeTable(b *strings.Builder) {
	fmt.Fprintf(b, "\n# %s: %s\n# %s\n", a.Name, a.Title, a.Setting)
	if a.Note != "" {
		fmt.Fprintf(b, "# %s\n", a.Note)
	}
	first := len(a.Quantity)
	for _, c := range a.Categories {
		first = max(first, len(c))
	}
	fmt.Fprintf(b, "# %*s", first, a.Quantity)
	for _, s := range a.Series {
		fmt.Fprintf(b, "  %*s", len(s.Label), s.Label)
	}
	fmt.Fprintf(b, "   (%s)\n", a.Measure)
	for i, c := range a.Categories {
		fmt.Fprintf(b, "  %*s", first, c)
		for _, s := range a.Series {
			fmt.Fprintf(b, "  %*.2f", max(len(s.Label), 4), s.Values[i])
		}
		b.WriteByte('\n')
	}
	for _, f := range a.Findings {
		fmt.Fprintf(b, "# %s\n", f)
	}
}

// WriteSVGs makes a directory and draws a figure for each ablation there: NAME.svg.
func (all *Ablations) WriteSVGs(dir string) (files []string, err error) {
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return nil, err
	}
	for i := range all.Ablations {
		a := &all.Ablations[i]
		name := filepath.Join(dir, a.Name+".svg")
		f, err := os.Create(name)
		if err != nil {
			return files, err
		}
		chart := a.chart(all.Machine)
		if err := errors.Join(chart.WriteSVG(f), f.Close()); err != nil {
			return files, err
		}
		files = append(files, name)
	}
	return files, nil
}

func (a *Ablation) chart(m report.Machine) *report.Chart {
	caption := []string{a.Setting, m.String()}
	if a.Note != "" {
		caption = append(caption, a.Note)
	}
	c := &report.Chart{Title: a.Title, Kind: a.kind, XLabel: a.Quantity, YLabel: a.Measure, Categories: a.Categories, Caption: caption}
	for _, s := range a.Series {
		c.Series = append(c.Series, report.Series{Label: s.Label, Values: s.Values})
	}
	return c
}
