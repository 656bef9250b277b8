package report

import (
	"fmt"
	"io"
	"slices"
	"strings"
)

// WriteTable prints results of one benchmark as nccl-tests does: a row per result, comments behind '#'. A result that was not
// verified has N/A for its wrong elements.
func WriteTable(w io.Writer, results []Result) {
	first := &results[0]
	server := "embedded aggregator"
	if first.Server != "" {
		server = "aggregator " + first.Server
	}
	header(w, first.Machine, first.Note, "provider %s, %s, %s, optimizer %s, chunks of %s", first.Provider, server, first.DType,
		first.Optimizer, Size(uint64(first.ChunkBytes)))
	fmt.Fprintln(w, "#")
	const heads = "#%13s %7s %10s %8s %8s %8s %10s %10s %8s %7s  %-16s %s"
	line(w, heads, "size", "workers", "time", "algbw", "busbw", "#wrong", "p50", "p99", "p99/mean", "share", "of roofline", "model")
	line(w, heads, "(B)", "", "(us)", "(GB/s)", "(GB/s)", "", "(us)", "(us)", "", "", "(GB/s)", "")
	for i := range results {
		writeRow(w, &results[i])
	}
	if slices.ContainsFunc(results, func(r Result) bool { return r.Roofline.Share > 1 }) {
		fmt.Fprintln(w, "# a share over 100%: the machine had more to do while the roofline was measured; run it again when it is idle")
	}
}

func writeRow(w io.Writer, r *Result) {
	wrong, share, roof := "N/A", "N/A", ""
	if r.Verified {
		wrong = fmt.Sprint(r.Wrong)
	}
	if r.Roofline.GBs > 0 {
		share = fmt.Sprintf("%.1f%%", 100*r.Roofline.Share)
		digits := 1
		if r.Roofline.GBs < 1 {
			digits = 3
		}
		roof = fmt.Sprintf("%s %.*f", r.Roofline.Name, digits, r.Roofline.GBs)
	}
	line(w, " %13d %7d %10s %8.2f %8.2f %8s %10s %10s %8.2f %7s  %-16s %s",
		r.Bytes, r.Workers, us(r.TimeUS.Mean), r.AlgBW, r.BusBW, wrong, us(r.TimeUS.P50), us(r.TimeUS.P99),
		r.P99OverMean, share, roof, r.Model)
}

// header prints the machine, what was measured there, and the note if there is one.
func header(w io.Writer, m Machine, note, format string, what ...any) {
	fmt.Fprintf(w, "# %s\n# "+format+"\n", append([]any{m}, what...)...)
	if note != "" {
		fmt.Fprintf(w, "# %s\n", note)
	}
}

// line prints one line without the blanks that empty last columns leave.
func line(w io.Writer, format string, columns ...any) {
	fmt.Fprintln(w, strings.TrimRight(fmt.Sprintf(format, columns...), " "))
}

// us prints microseconds with as many decimals as four digits leave room for, as nccl-tests does.
func us(v float64) string {
	switch {
	case v >= 1e4:
		return fmt.Sprintf("%.0f", v)
	case v >= 100:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.2f", v)
}
