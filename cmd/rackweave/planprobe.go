package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/rackweave/rackweave/bench/report"
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
	InRack *measuredLink    `json:"in_rack,omitempty"`
	Shapes []planShape      `json:"shapes"`
}

// measuredLink is what is printed of this host's link to an aggregator.
type measuredLink struct {
	Server      string  `json:"server"`
	Provider    string  `json:"provider"`
	Note        string  `json:"note,omitempty"`
	Up          float64 `json:"up_bytes_per_second"`
	Down        float64 `json:"down_bytes_per_second"`
	UpLatency   float64 `json:"up_latency_seconds"` // one way, as Down's
	DownLatency float64 `json:"down_latency_seconds"`
	Seconds     float64 `json:"probe_seconds"` // that measuring took
}

// measure measures this host's link to the aggregator, by which steps are then predicted.
func (f *planFlags) measure(ctx context.Context) (*measuredLink, error) {
	cfg := f.server
	cfg.Provider = f.provider
	l, err := client.MeasureLink(ctx, cfg)
	if err != nil {
		return nil, err
	}
	f.measured = l
	return &measuredLink{Server: cfg.Server, Provider: l.Provider, Note: report.NoteFor(l.Provider), Up: l.Up.Rate, Down: l.Down.Rate,
		UpLatency: l.Up.Latency.Seconds(), DownLatency: l.Down.Latency.Seconds(), Seconds: l.Took.Seconds()}, nil
}

func (l *measuredLink) print(w io.Writer) error {
	fmt.Fprintf(w, "link of this host to %s as measured over %s in %.1f s:\n\n", l.Server, l.Provider, l.Seconds)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "direction\trate\tlatency\nup\t%s\t%s\ndown\t%s\t%s\n", rate(l.Up), seconds(l.UpLatency), rate(l.Down),
		seconds(l.DownLatency))
	if l.Note != "" {
		fmt.Fprintln(t, "# "+l.Note)
	}
	fmt.Fprintln(t)
	return t.Flush()
}

// alone measures this host's link to an aggregator of no cluster, and predicts every shape of the flags' racks by it.
func (f *planFlags) alone(ctx context.Context, w io.Writer) error {
	link, err := f.measure(ctx)
	if err != nil {
		return err
	}
	r, err := f.plan()
	if err != nil {
		return err
	}
	if r.InRack = link; f.asJSON {
		return writeJSON(w, r)
	}
	if err := link.print(w); err != nil {
		return err
	}
	return f.print(w, r)
}

// rack predicts what a step takes within a rack, by a worker's measured link.
func (f *planFlags) rack(bytes float64) (hierarchy.Prediction, error) {
	one := *f
	one.racks, one.pods = 1, 0
	c, err := one.cluster()
	if err != nil {
		return hierarchy.Prediction{}, err
	}
	return c.Predict(hierarchy.Sharded, bytes, min(float64(f.chunkBytes), bytes)), nil
}

// probed has links measured, between a cluster's racks or to an aggregator that is alone, and predicts every shape by them.
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
	if len(answer.Racks) == 0 {
		return f.alone(ctx, w)
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
	if f.inRack {
		if out.InRack, err = f.measure(ctx); err != nil {
			return err
		}
		rack, err := f.rack(bytes)
		if err != nil {
			return err
		}
		all = hierarchy.Beside(all, rack)
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
	l, what := p.Links, "time across the core"
	if p.InRack != nil {
		what = "time"
		if err := p.InRack.print(w); err != nil {
			return err
		}
	}
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
	fmt.Fprintf(t, "\nshape\t%s\tbound by\n", what)
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
