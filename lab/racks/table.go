package racks

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/rackweave/rackweave/bench/report"
)

// Void reports why a row shows the machine rather than its links; "": it does not.
func (r *Row) Void() string {
	switch {
	case r.CPU > 0.7:
		return fmt.Sprintf("cores %.0f%% busy", 100*r.CPU)
	case r.Losses > 1000:
		return fmt.Sprintf("%d segments lost", r.Losses)
	}
	return ""
}

// WriteTable prints rows. Ratios are to the first row of the same links and model.
func WriteTable(w io.Writer, machine report.Machine, rows []Row) error {
	fmt.Fprintf(w, `# %s
# Emulated links: network namespaces and tbf on one machine. Seconds of a step are medians; the bound is the bytes on the tightest
# link over its rate. Uplink: models per step in the busier direction of a rack's uplink, as "ip -s link" counts, with headers.
`, machine)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "links\tmodel\texchange\tstep\tbound\tof bound\tpredicted\tratio\tuplink\tremarks")
	first := map[string]float64{}
	for i := range rows {
		r := &rows[i]
		fmt.Fprintf(t, "%s\t%s\t%s\t", r.Links, r.Model, r.Name)
		if r.Error != "" {
			fmt.Fprintf(t, "-\t\t\t\t\t\t%s\n", strings.ReplaceAll(r.Error, "\n", " "))
			continue
		}
		key := r.Links + r.Model
		if first[key] == 0 {
			first[key] = r.Seconds
		}
		var remarks []string
		for _, remark := range []string{r.Note, r.Void()} {
			if remark != "" {
				remarks = append(remarks, remark)
			}
		}
		predicted, uplink := "", ""
		if r.Predicted > 0 {
			predicted = fmt.Sprintf("%.2f s", r.Predicted)
		}
		if r.Bytes > 0 {
			uplink = fmt.Sprintf("%.3f", r.Uplinks/r.Bytes)
		}
		fmt.Fprintf(t, "%.2f s\t%.2f s\t%.2f\t%s\t%.2f\t%s\t%s\n", r.Seconds, r.Bound, r.Seconds/r.Bound, predicted, r.Seconds/first[key],
			uplink, strings.Join(remarks, "; "))
	}
	return t.Flush()
}

// Chart plots the step times of the rows of one kind of links.
func Chart(title string, machine report.Machine, rows []Row) *report.Chart {
	c := &report.Chart{
		Title: title, YLabel: "step (s)", Caption: []string{
			machine.String(), "emulated links: network namespaces and tbf; lower is better",
		},
	}
	at := map[string]int{}
	var names []string
	for _, r := range rows {
		if _, ok := at[r.Model]; !ok {
			at[r.Model] = len(c.Categories)
			c.Categories = append(c.Categories, r.Model)
		}
	}
	values := map[string][]float64{}
	add := func(name, model string, v float64) {
		if values[name] == nil {
			names = append(names, name)
			values[name] = make([]float64, len(c.Categories))
		}
		values[name][at[model]] = v
	}
	for _, r := range rows {
		if r.Error == "" {
			if r.Name == rows[0].Name {
				add("bound", r.Model, r.Bound)
			}
			add(r.Name, r.Model, r.Seconds)
		}
	}
	for _, name := range names {
		c.Series = append(c.Series, report.Series{Label: name, Values: values[name]})
	}
	return c
}
