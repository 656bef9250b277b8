package report

import (
	"fmt"
	"io"
	"text/tabwriter"
)

// Replay divides a step's time, the mean of all workers and steps.
type Replay struct {
	ComputeUS     float64 `json:"compute_us"` // of the model's layers
	ComputeSource string  `json:"compute_source"`
	Batch         int     `json:"batch,omitempty"` // samples of a worker in a step
	// ExposedUS is when the forward pass waited for parameters. WaitUS is the part in which another worker had not computed the
	// gradient yet; the rest is communication that computation did not hide.
	ExposedUS float64 `json:"exposed_us"`
	WaitUS    float64 `json:"wait_us"`
}

// SamplesPerSecond returns the throughput of all workers; 0 where the batch is not known.
func (r *Result) SamplesPerSecond() float64 {
	if r.TimeUS.Mean == 0 {
		return 0
	}
	return float64(r.Workers*r.Replay.Batch) / r.TimeUS.Mean * 1e6
}

// overhead is time that is neither computation nor a wait: sleeps and calls that took longer than they should, for lack of a core.
func (r *Result) overhead() float64 {
	return max(r.TimeUS.Mean-r.Replay.ComputeUS-r.Replay.ExposedUS, 0)
}

// WriteReplay prints the breakdown of results that all have one.
func WriteReplay(w io.Writer, results []Result) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	for i := range results {
		r := &results[i]
		if i == 0 {
			header(w, r.Machine, r.Note, "provider %s, %s, optimizer %s", r.Provider, r.DType, r.Optimizer)
			fmt.Fprintf(w, "# computation is replayed: times from %s\n# mean milliseconds of a step; wait is for other workers, overhead "+
				"for this machine's cores\n", r.Replay.ComputeSource)
			fmt.Fprintln(t, "model\tworkers\tstep\tcompute\texposed\twait\toverhead\tsamples/s\tof compute alone\t")
		}
		samples := "N/A"
		if s := r.SamplesPerSecond(); s > 0 {
			samples = fmt.Sprintf("%.0f", s)
		}
		fmt.Fprintf(t, "%s\t%d\t%s\t%s\t%s\t%s\t%s\t%s\t%.1f%%\t\n", r.Model, r.Workers, ms(r.TimeUS.Mean), ms(r.Replay.ComputeUS),
			ms(r.Replay.ExposedUS-r.Replay.WaitUS), ms(r.Replay.WaitUS), ms(r.overhead()), samples,
			100*r.Replay.ComputeUS/r.TimeUS.Mean)
	}
	t.Flush()
}

// ms prints microseconds as milliseconds.
func ms(us float64) string { return fmt.Sprintf("%.2f", us/1e3) }
