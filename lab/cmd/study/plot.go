package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"github.com/rackweave/rackweave/bench/study"
)

func plotCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "plot FILE FOLDER",
		Short: "Plot what rackweave bench learn --json FILE has measured, as SVG",
		Args:  cobra.ExactArgs(2),
		RunE: func(_ *cobra.Command, args []string) error {
			text, err := os.ReadFile(args[0])
			if err != nil {
				return err
			}
			var studies []study.Study
			if err := json.Unmarshal(text, &studies); err != nil {
				return fmt.Errorf("%s: %w", args[0], err)
			}
			if err := os.MkdirAll(args[1], 0o777); err != nil {
				return err
			}
			for i := range studies {
				if err := drawStudy(&studies[i], args[1]); err != nil {
					return fmt.Errorf("plot study %s: %w", studies[i].Name, err)
				}
			}
			return nil
		},
	}
}

// drawStudy draws a study's curves, or boxes if its trainings have none.
func drawStudy(s *study.Study, folder string) error {
	if len(s.Rows) == 0 || len(s.Rows[0].Runs) == 0 {
		return errors.New("it has no trainings")
	}
	if len(s.Rows[0].Runs[0].Curve) == 0 {
		return boxes(s, filepath.Join(folder, s.Name+".svg"))
	}
	for _, c := range curves {
		if err := c.draw(s, filepath.Join(folder, s.Name+"-"+c.name+".svg")); err != nil {
			return err
		}
	}
	return nil
}

// boxes draws the accuracy of each way: its median, quartiles and outliers.
func boxes(s *study.Study, file string) error {
	p := plot.New()
	p.Title.Text, p.Y.Label.Text = s.Name+": "+s.Title, "accuracy %"
	p.X.Tick.Label.Rotation, p.X.Tick.Label.XAlign, p.X.Tick.Label.YAlign = math.Pi/6, draw.XRight, draw.YCenter
	p.Add(plotter.NewGrid())
	var names []string
	for i := range s.Rows {
		r := &s.Rows[i]
		box, err := plotter.NewBoxPlot(vg.Points(20), float64(i), plotter.Values(r.Of(study.Accuracy)))
		if err != nil {
			return fmt.Errorf("box of %s: %w", r.Way, err)
		}
		p.Add(box)
		names = append(names, strings.TrimSpace(r.Cluster+" "+r.Way))
	}
	p.NominalX(names...)
	return p.Save(8*vg.Inch, 5*vg.Inch, file)
}

// curve is a kind of plot: a line for each way, over all points of its trainings.
type curve struct {
	name, x, y string
	rises      bool // the legend's place is below the lines
	log        bool // the x axis
	at         func(study.Point) (x, y float64)
}

var curves = []curve{
	{"accuracy", "MB sent and received by each worker", "accuracy %", true, true,
		func(p study.Point) (x, y float64) { return p.Bytes / 1e6, p.Accuracy }},
	{"loss", "steps", "loss", false, false, func(p study.Point) (x, y float64) { return float64(p.Step), p.Loss }},
}

// mean returns a point of a way, over all its trainings.
func (c *curve) mean(r *study.Row, point int) (x, y float64) {
	for _, o := range r.Runs {
		dx, dy := c.at(o.Curve[point])
		x, y = x+dx/float64(len(r.Runs)), y+dy/float64(len(r.Runs))
	}
	return x, y
}

func (c *curve) draw(s *study.Study, file string) error {
	p := plot.New()
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = s.Name+": "+s.Title, c.x, c.y
	p.Add(plotter.NewGrid())
	p.Legend.Top = !c.rises
	if c.log {
		p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: -1}
	}
	highest := 0.0 // at the first point of the first way: a training that diverges must not flatten the others
	for i, r := range s.Rows {
		var line plotter.XYs
		for k := range r.Runs[0].Curve {
			x, y := c.mean(&r, k)
			highest = cmp.Or(highest, y)
			if y <= max(highest, 100) {
				line = append(line, plotter.XY{X: x, Y: y})
			}
		}
		l, err := plotter.NewLine(line)
		if err != nil {
			return fmt.Errorf("%s: %w", r.Way, err)
		}
		l.Color, l.Dashes = plotutil.Color(i), plotutil.Dashes(i/7)
		p.Add(l)
		p.Legend.Add(r.Way, l)
	}
	return p.Save(8*vg.Inch, 5*vg.Inch, file)
}
