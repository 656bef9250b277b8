package racks

import (
	"context"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/rackweave/rackweave/bench/models"
	"github.com/rackweave/rackweave/bench/report"
	"github.com/rackweave/rackweave/hierarchy"
)

// Codecs are exchanges of one model with several codecs on the same links, by turns.
type Codecs struct {
	Machine report.Machine  `json:"machine"`
	Fabric  Config          `json:"fabric"`
	Model   string          `json:"model"`
	Bytes   float64         `json:"bytes"`
	Rows    []CodecExchange `json:"codecs"`
}

// CodecExchange is the exchange with one pair of codecs.
type CodecExchange struct {
	Codecs string         `json:"codecs"`
	Rounds []Measured     `json:"rounds"`
	Moved  *report.Codecs `json:"moved,omitempty"` // nil without codecs
	// Seconds is the median of the rounds' steps. Faster is the median of the first codecs' step over this one's, round by round.
	Seconds float64 `json:"seconds"`
	Faster  float64 `json:"faster"`
}

// ByCodecs measures a model's exchange with each of the codecs, in so many rounds: between workers and aggregator in one rack, or
// between the aggregators of several.
func (l *Lab) ByCodecs(ctx context.Context, m models.Model, codecs []string, rounds int, progress func(string)) (*Codecs, error) {
	c := &Codecs{Machine: report.ThisMachine(), Fabric: l.Config, Model: m.Name, Bytes: bytesOf(m)}
	c.Rows = make([]CodecExchange, len(codecs))
	for round := range rounds {
		for i, name := range codecs {
			of, row := *l, &c.Rows[i]
			row.Codecs = name
			var got Measured
			var err error
			if l.Racks > 1 {
				if of.Between = name; name == "none" {
					of.Between = ""
				}
				got, err = of.Across(ctx, m, hierarchy.Sharded)
			} else {
				of.Compress = name
				got, err = of.One(ctx, m, false)
			}
			if err != nil {
				return nil, fmt.Errorf("codecs %s: %w", name, err)
			}
			row.Moved = got.Codecs
			row.Rounds = append(row.Rounds, got)
			progress(fmt.Sprintf("round %d of %d, %s: %.3f s a step", round+1, rounds, name, got.Seconds))
		}
	}
	for i := range c.Rows {
		var seconds, faster []float64
		for round, got := range c.Rows[i].Rounds {
			seconds = append(seconds, got.Seconds)
			faster = append(faster, c.Rows[0].Rounds[round].Seconds/got.Seconds)
		}
		c.Rows[i].Seconds, c.Rows[i].Faster = report.Median(seconds), report.Median(faster)
	}
	return c, nil
}

// WriteTable prints the exchanges.
func (c *Codecs) WriteTable(w io.Writer) error {
	fmt.Fprintf(w, `# %s
# %s, %.1f MB, on emulated links: %s, %.4g Mb/s each. Steps are medians of %d rounds by turns.
# Sent and received are bytes of payload with the headers of codecs, over those without codecs.
`, c.Machine, c.Model, c.Bytes/1e6, c.Fabric.Links(), c.Fabric.Rate/1e6, len(c.Rows[0].Rounds))
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "codecs\tstep\tof the first\tsent\treceived\tcores busy\tsegments again")
	for _, r := range c.Rows {
		sent, received, losses, busy := 1.0, 1.0, uint64(0), 0.0
		if r.Moved != nil {
			sent, received = r.Moved.Gradients.Ratio(), r.Moved.Answers.Ratio()
		}
		for _, m := range r.Rounds {
			losses, busy = losses+m.Losses, max(busy, m.CPU)
		}
		fmt.Fprintf(t, "%s\t%.1f ms\t%.2fx\t%.4f\t%.4f\t%.0f%%\t%d\n", r.Codecs, 1e3*r.Seconds, r.Faster, sent, received, 100*busy,
			losses)
	}
	return t.Flush()
}
