package racks

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/rackweave/rackweave/bench/report"
)

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
		fmt.Fprintf(t, "%s\t%s\t%s\t", r.Fabric.Links(), r.Model, r.Name)
		if r.Error != "" {
			fmt.Fprintf(t, "-\t\t\t\t\t\t%s\n", strings.ReplaceAll(r.Error, "\n", " "))
			continue
		}
		key := r.Fabric.Links() + r.Model
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
		if r.Fabric.Racks > 1 {
			uplink = fmt.Sprintf("%.3f", r.Uplinks/r.Bytes)
		}
		fmt.Fprintf(t, "%.2f s\t%.2f s\t%.2f\t%s\t%.2f\t%s\t%s\n", r.Seconds, r.Bound, r.Seconds/r.Bound, predicted, r.Seconds/first[key],
			uplink, strings.Join(remarks, "; "))
	}
	return t.Flush()
}

// Chart plots the step times of rows with the same links, each beside its bound.
func Chart(title string, machine report.Machine, rows []Row) *report.Chart {
	c := &report.Chart{
		Title: title, YLabel: "step (s)", Caption: []string{
			machine.String(), "emulated links: network namespaces and tbf; lower is better; a bound is bytes over the tightest link's rate",
		},
	}
	place := func(of []string, name string) ([]string, int) {
		if i := slices.Index(of, name); i >= 0 {
			return of, i
		}
		return append(of, name), len(of)
	}
	var models []string
	for _, r := range rows {
		c.Categories, _ = place(c.Categories, r.Name)
		models, _ = place(models, r.Model)
	}
	for _, model := range models {
		step, bound, predicted := missing(len(c.Categories)), missing(len(c.Categories)), missing(len(c.Categories))
		for _, r := range rows {
			if _, i := place(c.Categories, r.Name); r.Model == model && r.Error == "" {
				step[i], bound[i] = r.Seconds, r.Bound
				if r.Predicted > 0 {
					predicted[i] = r.Predicted
				}
			}
		}
		c.Series = append(c.Series, report.Series{Label: model, Values: step}, report.Series{Label: model + ", bound", Values: bound},
			report.Series{Label: model + ", predicted", Values: predicted})
	}
	return c
}

// missing returns the values of a series that has none yet.
func missing(n int) []float64 {
	values := make([]float64, n)
	for i := range values {
		values[i] = math.NaN()
	}
	return values
}
