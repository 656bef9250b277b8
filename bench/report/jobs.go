package report

import (
	"fmt"
	"io"
)

// Jobs has the rates of several jobs side by side, and of one of them alone.
type Jobs struct {
	Machine  Machine `json:"machine"`
	Provider string  `json:"provider"`
	Model    string  `json:"model"`
	Workers  int     `json:"workers"` // of each job
	Alone    Job     `json:"alone"`
	Jobs     []Job   `json:"jobs"`
	// TotalOverAlone is the rate of all jobs together over the rate of the one alone.
	TotalOverAlone float64 `json:"total_over_alone"`
	Note           string  `json:"note,omitempty"`
}

// Job is one of several jobs.
type Job struct {
	Bytes  uint64 `json:"bytes"` // of the model on the wire
	Weight int    `json:"weight,omitempty"`
	Floods bool   `json:"floods,omitempty"`
	TimeUS TimeUS `json:"time_us,omitzero"` // of whole exchanges
	// GBs is the rate at which its workers sent and received while all jobs ran.
	GBs float64 `json:"gbs"`
	// Share is that, over what the job has a right to: its weight's part of what all moved, or what it moves alone if that is less.
	Share float64 `json:"share,omitempty"`
	// P99OverAlone is the time of its worst exchanges over that alone.
	P99OverAlone float64 `json:"p99_over_alone,omitempty"`
	// Apart are the times while the flood was at another aggregator of this machine, and P99OverApart is the time of its
	// worst exchanges over that: the cost of sharing the aggregator, without that of sharing the machine's processors.
	Apart        TimeUS  `json:"apart_us,omitzero"`
	P99OverApart float64 `json:"p99_over_apart,omitempty"`
}

// Share fills in what follows from the rates and times.
func (r *Jobs) Share() {
	total, weights := 0.0, 0
	for _, j := range r.Jobs {
		total, weights = total+j.GBs, weights+j.Weight
	}
	for i := range r.Jobs {
		j := &r.Jobs[i]
		right := total * float64(j.Weight) / float64(weights)
		if !j.Floods {
			right = min(right, r.Alone.GBs)
			j.P99OverAlone = j.TimeUS.P99 / r.Alone.TimeUS.P99
			if j.Apart.P99 > 0 {
				j.P99OverApart = j.TimeUS.P99 / j.Apart.P99
			}
		}
		j.Share = j.GBs / right
	}
	r.TotalOverAlone = total / r.Alone.GBs
}

// WriteJobs prints a row for each job.
func WriteJobs(w io.Writer, r *Jobs) {
	header(w, r.Machine, r.Note, "provider %s, model %s, %d workers each", r.Provider, r.Model, r.Workers)
	const heads, row = "#%5s %14s %7s %9s %7s %10s %10s %10s %10s", "%6s %14d %7d %9.3f %7s %10s %10s %10s %10s"
	line(w, heads, "job", "size", "weight", "rate", "share", "p50", "p99", "p99/alone", "p99/apart")
	line(w, heads, "", "(B)", "", "(GB/s)", "", "(us)", "(us)", "", "")
	line(w, row, "alone", r.Alone.Bytes, 1, r.Alone.GBs, "", us(r.Alone.TimeUS.P50), us(r.Alone.TimeUS.P99), "", "")
	apart := false
	for i, j := range r.Jobs {
		name, ratio, shared := fmt.Sprint(i), fmt.Sprintf("%.2f", j.P99OverAlone), ""
		if j.Floods {
			name, ratio = "flood", ""
		}
		if j.P99OverApart > 0 {
			apart, shared = true, fmt.Sprintf("%.2f", j.P99OverApart)
		}
		line(w, row, name, j.Bytes, j.Weight, j.GBs, fmt.Sprintf("%.0f%%", 100*j.Share), us(j.TimeUS.P50), us(j.TimeUS.P99),
			ratio, shared)
	}
	if apart {
		fmt.Fprintf(w, "# apart: the flood is at another aggregator of this machine, and takes its processors, but not the job's lanes;\n"+
			"#   job 0 takes p50 %s us, p99 %s us then, %.2f of alone\n", us(r.Jobs[0].Apart.P50), us(r.Jobs[0].Apart.P99),
			r.Jobs[0].Apart.P99/r.Alone.TimeUS.P99)
	}
	fmt.Fprintf(w, "# all jobs together move %.2f of what one moves alone\n", r.TotalOverAlone)
}
