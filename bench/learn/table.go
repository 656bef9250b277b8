package learn

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/rackweave/rackweave/bench/report"
	"github.com/rackweave/rackweave/hierarchy"
)

// column is a figure of a row. Only those that are plotted have a value.
type column struct {
	head  string
	text  func(*Row) string
	value func(*Row) float64
}

func plain(format string, v func(*Row) float64) func(*Row) string {
	return func(r *Row) string { return fmt.Sprintf(format, v(r)) }
}

var (
	overBSP = column{"time over bsp's", func(r *Row) string {
		if r.Missed == r.Runs {
			return "-"
		}
		return fmt.Sprintf("%.2f (%.2f-%.2f)", r.OverBSP.Median, r.OverBSP.Low, r.OverBSP.High)
	}, func(r *Row) float64 { return r.OverBSP.Median }}
	timeTo = column{"time", func(r *Row) string {
		text := fmt.Sprintf("%.0f (%.0f-%.0f)", r.Time.Median, r.Time.Low, r.Time.High)
		if r.Missed > 0 {
			text += fmt.Sprintf(" %d missed", r.Missed)
		}
		return text
	}, nil}
	accuracy  = column{"accuracy %", func(r *Row) string { return fmt.Sprintf("%.2f ± %.2f", r.Accuracy.Mean, r.Accuracy.Half) }, nil}
	gain      = column{"points over bsp", func(r *Row) string { return fmt.Sprintf("%+.2f ± %.2f", r.Gain.Mean, r.Gain.Half) }, nil}
	rateRatio = column{"pushes/s over bsp's", plain("%.2f", func(r *Row) float64 { return r.RateRatio }),
		func(r *Row) float64 { return r.RateRatio }}
	predicted = column{"predicted", func(r *Row) string {
		if r.Predicted == 0 {
			return "-"
		}
		return fmt.Sprintf("%.2f", r.Predicted)
	}, nil}
	switchedAt = column{"switched at epoch", func(r *Row) string {
		if r.Switched == nil {
			return "-"
		}
		return fmt.Sprintf("%.1f (%.1f-%.1f)", r.Switched.Median, r.Switched.Low, r.Switched.High)
	}, nil}
	held    = column{"held %", plain("%.1f", func(r *Row) float64 { return 100 * r.Held }), nil}
	dropped = column{"dropped %", plain("%.1f", func(r *Row) float64 { return 100 * r.Dropped }), nil}
	slowest = column{"slowest's share %", plain("%.1f", func(r *Row) float64 { return 100 * r.Slowest }), nil}
	tauMean = column{"τ mean/p50/p99", func(r *Row) string { return fmt.Sprintf("%.1f/%d/%d", r.Tau.Mean, r.Tau.P50, r.Tau.P99) }, nil}
	tauMax  = column{"τ max", func(r *Row) string { return fmt.Sprint(r.Tau.Max) }, nil}
	maxLead = column{"max lead", func(r *Row) string { return fmt.Sprint(r.MaxLead) }, nil}
)

// WriteTable prints a table for each study, with its findings.
func (all *Studies) WriteTable(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "# virtual time (but in study real), in steps of the fastest worker; medians and quartiles, means ± 95%%, "+
		"of %d seeds\n", all.Seeds)
	for i := range all.Studies {
		all.Studies[i].write(&b)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func (s *Study) write(b *strings.Builder) {
	fmt.Fprintf(b, "\n# %s: %s\n# %s\n", s.Name, s.Title, s.Setting)
	lines := [][]string{{"cluster", "policy"}}
	for _, c := range s.columns {
		lines[0] = append(lines[0], c.head)
	}
	for i := range s.Rows {
		line := []string{s.Rows[i].Cluster, s.Rows[i].Policy}
		for _, c := range s.columns {
			line = append(line, c.text(&s.Rows[i]))
		}
		lines = append(lines, line)
	}
	width := make([]int, len(lines[0]))
	for _, line := range lines {
		for i, cell := range line {
			width[i] = max(width[i], len([]rune(cell)))
		}
	}
	for _, line := range lines {
		var text strings.Builder
		for i, cell := range line {
			pad := strings.Repeat(" ", width[i]-len([]rune(cell)))
			if i < 2 {
				text.WriteString(cell + pad + "  ")
			} else {
				text.WriteString(pad + cell + "  ")
			}
		}
		b.WriteString(strings.TrimRight(text.String(), " ") + "\n")
	}
	for _, f := range s.Findings {
		fmt.Fprintf(b, "# %s\n", f)
	}
}

// WriteSVGs plots each study into a directory, as NAME.svg, and returns the names of the files.
func (all *Studies) WriteSVGs(dir string) (files []string, err error) {
	for i := range all.Studies {
		s := &all.Studies[i]
		name := filepath.Join(dir, "learn-"+s.Name+".svg")
		f, openErr := os.Create(name)
		if openErr != nil {
			return files, errors.Join(err, openErr)
		}
		chart := s.chart()
		if err := errors.Join(chart.WriteSVG(f), f.Close()); err != nil {
			return files, err
		}
		files = append(files, name)
	}
	return files, err
}

// chart shows the study's main figure by policy, a colour for each cluster.
func (s *Study) chart() report.Chart {
	c := report.Chart{Title: s.Title, Kind: s.kind, XLabel: "policy", YLabel: s.plot.head, Caption: []string{s.Setting}}
	for i := range s.Rows {
		r := &s.Rows[i]
		label := short(r.Policy)
		if !slices.Contains(c.Categories, label) {
			c.Categories = append(c.Categories, label)
		}
		if len(c.Series) == 0 || c.Series[len(c.Series)-1].Label != r.Cluster {
			c.Series = append(c.Series, report.Series{Label: r.Cluster})
		}
		last := &c.Series[len(c.Series)-1]
		v := math.Round(100*s.plot.value(r)) / 100
		if v == 0 {
			v = math.NaN()
		}
		last.Values = append(last.Values, v)
	}
	return c
}

// short makes a policy's name fit under a bar.
func short(policy string) string {
	if o, err := hierarchy.ParseOuter(policy); err == nil {
		label := fmt.Sprintf("%d/%d\n%s", o.Every, o.Fragments, o.Rule)
		if o.Quorum > 0 {
			label += fmt.Sprintf(" %d", o.Quorum)
		}
		return label
	}
	name, parameters, _ := strings.Cut(policy, ":")
	switch name {
	case "lagtuner":
		_, reading, found := strings.Cut(parameters, "reading=")
		if !found {
			return "strict"
		}
		return reading
	case "strategy-switch":
		share, _, _ := strings.Cut(strings.TrimPrefix(parameters, "at="), ",")
		if share == "" {
			return "loss"
		}
		return share
	}
	if i := strings.LastIndexByte(name, '-'); i > 1 {
		name = name[:i+1] + "\n" + name[i+1:]
	}
	var values []string
	for p := range strings.SplitSeq(parameters, ",") {
		_, value, _ := strings.Cut(p, "=")
		values = append(values, value)
	}
	return strings.TrimSpace(name + "\n" + strings.Join(values, " "))
}
