package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"github.com/rackweave/rackweave/bench/study/data"
	"github.com/rackweave/rackweave/bench/study/learn"
)

func plotCommand() *cobra.Command {
	return drawCommand("plot", "rackweave bench learn --compress", func(s *learn.Study, folder string) error {
		for _, c := range curves {
			if err := c.draw(s, filepath.Join(folder, s.Name+"-"+c.name+".svg")); err != nil {
				return fmt.Errorf("plot %s of study %s: %w", c.name, s.Name, err)
			}
		}
		return nil
	})
}

func boxesCommand() *cobra.Command {
	return drawCommand("boxes", "rackweave bench learn --data", boxes)
}

// drawCommand returns a command that draws each study of a file that another command wrote as JSON.
func drawCommand[S any](use, from string, each func(s *S, folder string) error) *cobra.Command {
	return &cobra.Command{
		Use:   use + " FILE FOLDER",
		Short: "Plot what " + from + " --json FILE has measured, as SVG",
		Args:  cobra.ExactArgs(2),
		RunE: func(_ *cobra.Command, args []string) error {
			text, err := os.ReadFile(args[0])
			if err != nil {
				return err
			}
			var studies []S
			if err := json.Unmarshal(text, &studies); err != nil {
				return fmt.Errorf("%s: %w", args[0], err)
			}
			if err := os.MkdirAll(args[1], 0o777); err != nil {
				return err
			}
			for i := range studies {
				if err := each(&studies[i], args[1]); err != nil {
					return err
				}
			}
			return nil
		},
	}
}

// boxes draws the accuracy of each way: its median, quartiles and outliers.
func boxes(s *data.Study, folder string) error {
	p := plot.New()
	p.Title.Text, p.Y.Label.Text = s.Name+": "+s.Title, "accuracy %"
	p.X.Tick.Label.Rotation, p.X.Tick.Label.XAlign, p.X.Tick.Label.YAlign = math.Pi/6, draw.XRight, draw.YCenter
	p.Add(plotter.NewGrid())
	var names []string
	for i, r := range s.Rows {
		box, err := plotter.NewBoxPlot(vg.Points(20), float64(i), plotter.Values(r.Accuracy))
		if err != nil {
			return fmt.Errorf("box of %s in study %s: %w", r.Way, s.Name, err)
		}
		p.Add(box)
		names = append(names, r.Way)
	}
	p.NominalX(names...)
	return p.Save(8*vg.Inch, 5*vg.Inch, filepath.Join(folder, s.Name+".svg"))
}

// curve is a kind of plot: a line for each way, over all points of its trainings.
type curve struct {
	name, x, y string
	rises      bool // the legend's place is below the lines
	log        bool // the x axis
	at         func(learn.Point) (x, y float64)
}

var curves = []curve{
	{"accuracy", "MB sent and received by each worker", "accuracy %", true, true,
		func(p learn.Point) (x, y float64) { return p.Bytes / 1e6, 100 * p.Accuracy }},
	{"loss", "steps", "loss", false, false, func(p learn.Point) (x, y float64) { return float64(p.Step), p.Loss }},
}

func (c *curve) draw(s *learn.Study, file string) error {
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
		for _, at := range r.Curve {
			x, y := c.at(at)
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
