package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/client"
	"github.com/rackweave/rackweave/codec"
	"github.com/rackweave/rackweave/hierarchy"
	"github.com/rackweave/rackweave/hierarchy/planner"
	"github.com/rackweave/rackweave/service/api"
)

// probeFlags choose the links to measure, and what to predict by them.
type probeFlags struct {
	modelFlags
	server      client.Config
	clusterFile string
}

func probeCommand() *cobra.Command {
	var f probeFlags
	cmd := printing(&cobra.Command{
		Use:   "probe",
		Short: "Measure the links of a cluster that runs, and predict by them which shape of reduction is fastest",
		Long: `Measure the links of a cluster that runs, and predict by them which shape of reduction is fastest.

The aggregators measure the links between their racks, which slows jobs on these links down for some seconds. The prediction is the
time of crossing the core by these links.`,
		Example: `  rackweave probe --cluster cluster.yaml --token-file admin --model bert-large`,
	}, func(cmd *cobra.Command, _ []string) (any, func(io.Writer), error) {
		if cmd.Flags().Changed("server") && f.clusterFile != "" {
			return nil, nil, fmt.Errorf("--server %q and --cluster %q: give one of them", f.server.Server, f.clusterFile)
		}
		p, err := f.probe(cmd.Context())
		return p, p.print, err
	})
	fl := cmd.Flags()
	aggregatorFlags(cmd, &f.server, "the aggregator's admin token", adminsToken)
	fl.StringVar(&f.clusterFile, "cluster", "", "instead of --server: the cluster's file, whose first aggregator is asked")
	fl.DurationVar(&f.server.Timeout, "timeout", time.Minute, "how long to wait")
	fl.StringVar(&f.server.Provider, "provider", "", "transport to measure (default: the fastest that leads to other hosts)")
	f.modelFlags.add(fl, "model", "resnet50")
	return cmd
}

// probed is the output of `rackweave probe --json`.
type probed struct {
	Model  string               `json:"model"`
	Bytes  float64              `json:"bytes"`
	Core   string               `json:"core"`
	Best   string               `json:"best"`
	Links  *planner.Links       `json:"links"`
	Shapes []planner.Prediction `json:"shapes"`
}

// probe measures the links between a cluster's racks, and predicts by them.
func (f *probeFlags) probe(ctx context.Context) (*probed, error) {
	m, d, err := f.read()
	if err != nil {
		return nil, err
	}
	if f.clusterFile != "" {
		first, err := firstAggregator(f.clusterFile)
		if err != nil {
			return nil, err
		}
		f.server.Server, f.server.CA = first.URL, cmp.Or(f.server.CA, first.CA)
	}
	answer, err := client.Links(ctx, f.server, f.server.Provider)
	if err != nil {
		return nil, err
	}
	out := &probed{Model: m.Name, Bytes: float64(m.Params()) * float64(d.Size()), Core: answer.Core}
	if out.Links, err = measuredLinks(answer); err != nil {
		return nil, err
	}
	chunkBytes, rounds := float64(chunk.DefaultChunkBytes), answer.Core == "bf16"
	if rounds && d == chunk.F32 {
		out.Bytes, chunkBytes = out.Bytes/2, chunkBytes/2
	}
	if codecs, err := codec.ParsePair(answer.Core, true); err == nil && d == chunk.F32 {
		out.Bytes, chunkBytes = out.Bytes*codecs.Share(), chunkBytes*codecs.Share()
	}
	if out.Shapes, err = out.Links.Choose(out.Bytes, chunkBytes, rounds); err != nil {
		return nil, err
	}
	out.Best = planner.Prefer(out.Shapes, hierarchy.Sharded).String()
	return out, nil
}

// measuredLinks reads what an aggregator answers.
func measuredLinks(r *api.LinksResponse) (*planner.Links, error) {
	n := len(r.Racks)
	l := planner.NewLinks(r.Racks, int(r.Pods), r.Provider)
	l.Seconds = r.Seconds
	for _, k := range r.Links {
		if int(k.From) >= n || int(k.To) >= n {
			return nil, fmt.Errorf("a link from rack %d to rack %d of %d: run one version here and at the aggregators", k.From, k.To, n)
		}
		l.Rate[k.From][k.To], l.Latency[k.From][k.To] = k.BytesPerSecond, k.LatencySeconds
	}
	return l, l.Check()
}

func (p *probed) print(w io.Writer) {
	l := p.Links
	fmt.Fprintf(w, "%s, %.1f MB of sums in %s; links of %d racks as measured over %s in %.1f s:\n\n", p.Model,
		p.Bytes/1e6, p.Core, len(l.Names), l.By, l.Seconds)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "from\tto\trate\tlatency")
	for i, from := range l.Names {
		for j, to := range l.Names {
			if i != j {
				fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", from, to, rate(l.Rate[i][j]), seconds(l.Latency[i][j]))
			}
		}
	}
	fmt.Fprintf(t, "\nshape\ttime across the core\tbound by\n")
	for _, s := range p.Shapes {
		if s.Unfit != "" {
			fmt.Fprintf(t, "%v\t-\t%s\n", s.Shape, s.Unfit)
			continue
		}
		fmt.Fprintf(t, "%v\t%s\t%s\n", s.Shape, seconds(s.Seconds), s.Binding)
	}
	t.Flush()
	fmt.Fprintf(w, "\nshape auto takes: %s (sharded, unless another gains more than %.0f%%)\n", p.Best, 100*planner.Worthwhile)
}
