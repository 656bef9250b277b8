package main

import (
	"fmt"
	"io"
	"math"
	"text/tabwriter"

	"github.com/rackweave/rackweave/bench/report"
	"github.com/rackweave/rackweave/hierarchy"
)

const (
	// scalePieces bounds racks times the pieces that a simulated model is cut into, and so the time that a simulation takes. Larger
	// pieces make the last one late: a simulated step is that much longer than one of small chunks.
	scalePieces = 125_000
	// maxScaleWorkers is how many workers are simulated at most.
	maxScaleWorkers = 10_000
)

// scaleShapes are the shapes that a cluster of any number of racks can have.
var scaleShapes = []hierarchy.Shape{hierarchy.Flat, hierarchy.Sharded, hierarchy.Tree}

// printScale prints what a step costs as the cluster grows by racks: predicted, and simulated transfer by transfer.
func (f *planFlags) printScale(w io.Writer) error {
	name, bytes, err := f.wireBytes()
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "%s, %.1f MB on the wire; racks of %d workers with %s each, core %s. Seconds of a step, predicted in chunks\n"+
		"and simulated in pieces; price is of a step, in the prices' unit times seconds.\n\n", name, bytes/1e6, f.workers, f.link, f.core)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(t, "racks\tworkers\tpieces\t")
	chart := report.Chart{Title: "Exchange of " + name + " as the cluster grows", Kind: report.Lines, XLabel: "workers",
		YLabel:  "step (ms)",
		Caption: []string{fmt.Sprintf("simulated; racks of %d workers with %s each, core %s", f.workers, f.link, f.core)}}
	for _, s := range scaleShapes {
		fmt.Fprintf(t, "%v\tsimulated\t", s)
		chart.Series = append(chart.Series, report.Series{Label: s.String()})
	}
	fmt.Fprintln(t, "price, sharded\t")
	for _, racks := range f.scale {
		g := *f
		g.racks = racks
		c, err := g.cluster()
		if err != nil {
			return err
		}
		if racks*f.workers > maxScaleWorkers {
			return fmt.Errorf("--scale %d: %d workers: at most %d are simulated", racks, racks*f.workers, maxScaleWorkers)
		}
		pieces := min(scalePieces/racks, int(math.Ceil(bytes/float64(f.chunkBytes))))
		fmt.Fprintf(t, "%d\t%d\t%d\t", racks, racks*f.workers, pieces)
		chart.Categories = append(chart.Categories, fmt.Sprint(racks*f.workers))
		price := 0.0
		for i, s := range scaleShapes {
			got := c.Simulate(s, pieces, bytes/float64(pieces), 0)
			fmt.Fprintf(t, "%s\t%s\t", seconds(c.Predict(s, bytes, float64(f.chunkBytes)).Seconds), seconds(got))
			chart.Series[i].Values = append(chart.Series[i].Values, 1e3*got)
			if s == hierarchy.Sharded {
				price = f.price(&c) * got
			}
		}
		fmt.Fprintf(t, "%s\t\n", orDash("%.4g", price))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if f.svgDir == "" {
		return nil
	}
	if err := checkDir(f.svgDir); err != nil {
		return err
	}
	return labChart(f.svgDir, "scale.svg", &chart)
}

// price returns what a cluster costs at the prices given; 0 where none is.
func (f *planFlags) price(c *hierarchy.Cluster) float64 {
	return float64(c.Racks)*(float64(c.Workers)*f.priceWorker+f.priceAggregator) + f.priceUplinkGbps*float64(c.Racks)*c.Uplink*8/1e9
}
