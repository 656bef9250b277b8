package main

import (
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/rackweave/rackweave/bench/models"
	"github.com/rackweave/rackweave/bench/overlap"
)

// table2Workers is the number of workers in the paper's Table II.
const table2Workers = 8

// table2 is Table II of the paper, in samples per second with 56 Gb/s: MXNet with sharded servers, Gloo and RackWeave. It has no
// GoogleNet.
var table2 = []struct {
	model                     string
	servers, ring, aggregator float64
}{
	{"alexnet", 634, 583, 1712},
	{"vgg19", 513, 492, 1387},
	{"googlenet", 0, 0, 0},
	{"resnet50", 688, 645, 735},
	{"inception-v3", 410, 398, 448},
}

func (f *planFlags) printTable2(w io.Writer) error {
	rate, err := parseRate("link", f.link)
	if err != nil {
		return err
	}
	fmt.Fprintf(w, `Samples per second of %d workers at %s: the most that computation and bytes allow, beside the paper's Table II (56 Gb/s).
Computation is that of %s.

`, table2Workers, f.link, "Luo et al., arXiv:1805.07891, table 3, GTX 1080 Ti, 32 samples a worker")
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "model\tcompute alone\taggregator\tpaper\tsharded servers\tpaper\tring\tpaper\taggregator over servers\tpaper\t")
	ways := overlap.Ways(table2Workers)
	for _, r := range table2 {
		m, err := models.Get(r.model)
		if err != nil {
			return err
		}
		samples := float64(table2Workers * m.Compute.Batch)
		fmt.Fprintf(t, "%s\t%.0f\t", r.model, samples/m.Compute.Time.Seconds())
		var allowed []float64
		for i, paper := range []float64{r.aggregator, r.servers, r.ring} {
			allowed = append(allowed, samples/ways[i].Step(m, rate).Total)
			fmt.Fprintf(t, "%.0f\t%s\t", allowed[i], orDash("%.0f", paper))
		}
		paper := 0.0
		if r.servers > 0 {
			paper = r.aggregator / r.servers
		}
		fmt.Fprintf(t, "%.2f\t%s\t\n", allowed[0]/allowed[1], orDash("%.2f", paper))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprint(w, "\nRate of a worker's NIC from which on a step takes at most 5% more than its computation:\n\n")
	t = tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "model\taggregator\tsharded servers\tring\t")
	for _, r := range table2 {
		m, err := models.Get(r.model)
		if err != nil {
			return err
		}
		fmt.Fprintf(t, "%s\t", r.model)
		for _, way := range ways {
			fmt.Fprintf(t, "%.1f Gb/s\t", way.Enough(m, 0.05)*8/1e9)
		}
		fmt.Fprintln(t)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	_, err = fmt.Fprint(w, "\ndocs/paper.md compares the paper's claims with this.\n")
	return err
}

func orDash(format string, v float64) string {
	if v == 0 {
		return "-"
	}
	return fmt.Sprintf(format, v)
}
