package learn

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// column is a figure of a row.
type column struct {
	head string
	text func(*Row) string
}

var (
	timeTo = column{"time", func(r *Row) string {
		text := r.Time.text("%.0f")
		if r.Missed > 0 {
			text += fmt.Sprintf(" %d missed", r.Missed)
		}
		return text
	}}
	overBSP    = column{"time over bsp's", func(r *Row) string { return dashUnless(r.Missed < r.Runs, r.OverBSP.text("%.2f")) }}
	accuracy   = column{"accuracy %", func(r *Row) string { return fmt.Sprintf("%.2f ± %.2f", r.Accuracy.Mean, r.Accuracy.Half) }}
	gain       = column{"points over bsp", func(r *Row) string { return fmt.Sprintf("%+.2f ± %.2f", r.Gain.Mean, r.Gain.Half) }}
	rateRatio  = column{"pushes/s over bsp's", func(r *Row) string { return fmt.Sprintf("%.2f", r.RateRatio) }}
	predicted  = column{"predicted", func(r *Row) string { return dashUnless(r.Predicted > 0, fmt.Sprintf("%.2f", r.Predicted)) }}
	switchedAt = column{"switched at epoch", func(r *Row) string { return dashUnless(r.Switches > 0, r.Switched.text("%.1f")) }}
	maxLead    = column{"max lead", func(r *Row) string { return fmt.Sprint(r.MaxLead) }}
	crossed    = column{"models across the core", func(r *Row) string { return r.Crossed.text("%.1f") }}
)

func (s *Spread) text(format string) string {
	return fmt.Sprintf(strings.ReplaceAll("V (V-V)", "V", format), s.Median, s.Low, s.High)
}

func dashUnless(has bool, text string) string {
	if !has {
		return "-"
	}
	return text
}

// WriteTable prints a table for each study, with its findings.
func (all *Studies) WriteTable(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "# virtual time (but in study real), in steps of the fastest worker; medians and quartiles, means ± 95%%, "+
		"of %d seeds\n", all.Seeds)
	for i := range all.Studies {
		s := &all.Studies[i]
		fmt.Fprintf(t, "\n# %s: %s\n# %s\ncluster\tpolicy", s.Name, s.Title, s.Setting)
		for _, c := range s.columns {
			fmt.Fprintf(t, "\t%s", c.head)
		}
		for k := range s.Rows {
			fmt.Fprintf(t, "\n%s\t%s", s.Rows[k].Cluster, s.Rows[k].Policy)
			for _, c := range s.columns {
				fmt.Fprintf(t, "\t%s", c.text(&s.Rows[k]))
			}
		}
		for _, f := range s.Findings {
			fmt.Fprintf(t, "\n# %s", f)
		}
		fmt.Fprintln(t)
	}
	return t.Flush()
}
