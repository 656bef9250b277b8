package racks

import (
	"fmt"
	"io"
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
