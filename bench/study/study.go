// Package study holds what the studies beside the product share: which of them run, and their tables.
package study

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/rackweave/rackweave/bench/report"
)

// Config selects what runs, and how often.
type Config struct {
	Only []string  // names of studies. If empty, all
	Runs int       // of each kind
	Log  io.Writer // shows the progress. It may be nil
}

// maxRuns bounds a configuration: more is a mistake.
const maxRuns = 1000

// Check returns an error if the configuration cannot be run. names lists all studies, and runs names the things that Runs counts.
func (c *Config) Check(runs string, names []string) error {
	if c.Runs < 1 || c.Runs > maxRuns {
		return fmt.Errorf("%d %s: use 1 to %d", c.Runs, runs, maxRuns)
	}
	for _, name := range c.Only {
		if !slices.Contains(names, name) {
			return fmt.Errorf("unknown study %q: use %s", name, strings.Join(names, ", "))
		}
	}
	return nil
}

// Has reports whether a study runs.
func (c *Config) Has(name string) bool { return len(c.Only) == 0 || slices.Contains(c.Only, name) }

// Bar returns the progress of a study of so many steps.
func (c *Config) Bar(name string, total int) *report.Progress {
	if c.Log == nil {
		return nil
	}
	return report.NewProgress(c.Log, name, total)
}

// Table is the result of a study.
type Table struct {
	Name, Title, Setting string
	Head                 []string
	Cells                [][]string
	Findings             []string // in words, what the cells show
}

// Find appends a finding.
func (t *Table) Find(format string, args ...any) {
	t.Findings = append(t.Findings, fmt.Sprintf(format, args...))
}

// Write prints tables below a heading.
func Write(w io.Writer, heading string, tables []Table) error {
	to := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(to, "# %s\n", strings.ReplaceAll(heading, "\n", "\n# "))
	for _, t := range tables {
		fmt.Fprintf(to, "\n# %s: %s\n# %s\n", t.Name, t.Title, t.Setting)
		for _, cells := range append([][]string{t.Head}, t.Cells...) {
			fmt.Fprintln(to, strings.Join(cells, "\t"))
		}
		for _, f := range t.Findings {
			fmt.Fprintf(to, "# %s\n", f)
		}
	}
	return to.Flush()
}
