package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/rackweave/rackweave/client"
	"github.com/rackweave/rackweave/hierarchy"
	"github.com/rackweave/rackweave/service/api"
)

// probedPlan is what `rackweave plan --probe --json` prints.
type probedPlan struct {
	Model  string           `json:"model"`
	Bytes  float64          `json:"bytes"`
	Core   string           `json:"core"`
	Best   string           `json:"best"`
	Links  *hierarchy.Links `json:"links"`
	Shapes []planShape      `json:"shapes"`
}

// probed has a cluster's aggregators measure their links, and predicts every shape by them.
func (f *planFlags) probed(ctx context.Context, w io.Writer) error {
	name, bytes, err := f.wireBytes()
	if err != nil {
		return err
	}
	if f.clusterFile != "" {
		first, err := firstAggregator(f.clusterFile)
		if err != nil {
			return err
		}
		f.server.Server, f.server.CA = first.URL, cmp.Or(f.server.CA, first.CA)
	}
	answer, err := client.Links(ctx, f.server, f.provider)
	if err != nil {
		return err
	}
	links, err := measuredLinks(answer)
	if err != nil {
		return err
	}
	out := probedPlan{Model: name, Bytes: bytes, Core: answer.Core, Links: links}
	chunkBytes, rounds := float64(f.chunkBytes), answer.Core != "f32"
	if rounds && f.dtype == "f32" {
		out.Bytes, chunkBytes = bytes/2, chunkBytes/2
	}
	all, err := links.Choose(out.Bytes, chunkBytes, rounds)
	if err != nil {
		return err
	}
	out.Best = hierarchy.Prefer(all, hierarchy.Sharded).String()
	for _, p := range all {
		s := planShape{Prediction: p}
		if p.Unfit != nil {
			s.Unfit = p.Unfit.Error()
		}
		out.Shapes = append(out.Shapes, s)
	}
	if f.asJSON {
		return writeJSON(w, out)
	}
	return out.print(w)
}

// measuredLinks reads what an aggregator answers.
func measuredLinks(r *api.LinksResponse) (*hierarchy.Links, error) {
	n := len(r.Racks)
	l := &hierarchy.Links{Names: r.Racks, Pods: int(r.Pods), Seconds: r.Seconds, By: r.Provider}
	for range n {
		l.Rate, l.Latency = append(l.Rate, make([]float64, n)), append(l.Latency, make([]float64, n))
	}
	for _, k := range r.Links {
		if int(k.From) >= n || int(k.To) >= n {
			return nil, fmt.Errorf("a link from rack %d to rack %d of %d: run one version here and at the aggregators", k.From, k.To, n)
		}
		l.Rate[k.From][k.To], l.Latency[k.From][k.To] = k.BytesPerSecond, k.LatencySeconds
	}
	return l, l.Check()
}

func (p *probedPlan) print(w io.Writer) error {
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
	fmt.Fprint(t, "\nshape\ttime across the core\tbound by\n")
	for _, s := range p.Shapes {
		if s.Unfit != "" {
			fmt.Fprintf(t, "%s\t-\t%s\n", s.Name, s.Unfit)
			continue
		}
		fmt.Fprintf(t, "%s\t%s\t%s\n", s.Name, seconds(s.Seconds), s.Binding)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "\nshape auto takes: %s (sharded, unless another gains more than %.0f%%)\n", p.Best, 100*hierarchy.Worthwhile)
	return err
}
