package report

import (
	"bytes"
	"fmt"
	"image/color"
	"io"
	"math"
	"strconv"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// ChartKind is how a chart draws its series.
type ChartKind int

// The kinds of chart.
const (
	Bars  ChartKind = iota // for alternatives
	Lines                  // for categories that are steps of one quantity, such as chunk sizes
)

// Chart is a plot of one measured quantity over categories.
type Chart struct {
	Title      string
	Kind       ChartKind
	XLabel     string
	YLabel     string // with its unit, "algbw (GB/s)"; the axis starts at 0
	Categories []string
	Series     []Series
	Caption    []string // lines of small print below: what the numbers are of
}

// Series is one line, or one colour of bars: a value per category, NaN where there is none.
type Series struct {
	Label  string
	Values []float64
}

const (
	chartWidth  = 18 * vg.Centimeter
	chartHeight = 11 * vg.Centimeter
	// groupShare is the part of a category's width that its bars fill.
	groupShare = 0.75
	legendGap  = "  " // between a label and its patch
	margin     = vg.Length(6)
	// Of the caption, in points.
	captionSize = 7.5
	captionLine = 10
)

// palette has colours that most colour-blind readers can distinguish, also in print: those of Okabe and Ito (2008), dark first.
var palette = []color.Color{
	color.NRGBA{0x00, 0x72, 0xb2, 0xff},
	color.NRGBA{0xd5, 0x5e, 0x00, 0xff},
	color.NRGBA{0x00, 0x9e, 0x73, 0xff},
	color.NRGBA{0xcc, 0x79, 0xa7, 0xff},
	color.NRGBA{0xe6, 0x9f, 0x00, 0xff},
	color.NRGBA{0x56, 0xb4, 0xe9, 0xff},
}

// WriteSVG draws the chart, the same bytes for the same chart. A chart without categories or series, with more series than
// colours, or with a series of another length than the categories is an error.
func (c *Chart) WriteSVG(w io.Writer) error {
	if err := c.check(); err != nil {
		return err
	}
	p := plot.New()
	p.Title.Text = c.Title
	p.X.Label.Text = c.XLabel
	p.Y.Label.Text = c.YLabel
	sans(p)
	p.Legend.Top, p.Legend.Padding = true, vg.Points(4)
	grid := plotter.NewGrid()
	grid.Vertical.Width = 0
	grid.Horizontal.Color, grid.Horizontal.Width = color.Gray{0xd4}, vg.Points(0.5)
	p.Add(grid)
	add := c.addBars
	if c.Kind == Lines {
		add = c.addLines
	}
	for i := range c.Series {
		if err := add(p, i); err != nil {
			return fmt.Errorf("plotting %q: %w", c.Series[i].Label, err)
		}
	}
	p.NominalX(c.Categories...)
	p.X.Min, p.X.Max = -0.5, float64(len(c.Categories))-0.5
	p.Y.Min = 0
	// Room above the highest value for its label and the legend.
	p.Y.Max = 1.1 * c.max()
	if len(c.Series) > 1 {
		p.Y.Max = c.max() * (1.15 + 0.07*float64(len(c.Series)))
	}
	p.Y.Tick.Marker = roundTicks{}
	if _, err := w.Write(render(p, c.Caption)); err != nil {
		return fmt.Errorf("writing the plot %q: %w", c.Title, err)
	}
	return nil
}

// render draws the plot with a margin and the caption below it. Text stays text, in Liberation Sans or else in a font of the same
// widths.
func render(p *plot.Plot, caption []string) []byte {
	below := vg.Points(captionLine * float64(len(caption)))
	canvas := vgsvg.New(chartWidth, chartHeight+below)
	whole := draw.New(canvas)
	whole.FillPolygon(color.White,
		[]vg.Point{whole.Min, {X: whole.Max.X, Y: whole.Min.Y}, whole.Max, {X: whole.Min.X, Y: whole.Max.Y}})
	p.Draw(draw.Crop(whole, margin, -vg.Points(10), margin+below, -margin))
	style := p.X.Tick.Label
	style.Font.Size, style.XAlign, style.YAlign = vg.Points(captionSize), draw.XLeft, draw.YBottom
	for i, text := range caption {
		whole.FillText(style, vg.Point{X: whole.Min.X + margin, Y: whole.Min.Y + margin + below - vg.Points(captionLine*float64(i+1))},
			text)
	}
	var svg bytes.Buffer
	if _, err := canvas.WriteTo(&svg); err != nil {
		panic("report: writing to memory failed: " + err.Error())
	}
	return bytes.ReplaceAll(svg.Bytes(), []byte("font-family:Liberation Sans;"),
		[]byte("font-family:Liberation Sans,Arial,Helvetica,sans-serif;"))
}

// roundTicks puts four to ten ticks at multiples of 1, 2 or 5 times a power of ten.
type roundTicks struct{}

// Ticks returns the labelled ticks of an axis.
func (roundTicks) Ticks(low, high float64) []plot.Tick {
	step := math.Pow(10, math.Floor(math.Log10((high-low)/4)))
	for _, factor := range []float64{5, 2} {
		if step*factor <= (high-low)/4 {
			step *= factor
			break
		}
	}
	var ticks []plot.Tick
	for i := math.Ceil(low / step); i*step <= high; i++ {
		ticks = append(ticks, plot.Tick{Value: i * step, Label: strconv.FormatFloat(i*step, 'g', 6, 64)})
	}
	return ticks
}

func (c *Chart) check() error {
	if len(c.Categories) == 0 || len(c.Series) == 0 {
		return fmt.Errorf("plot %q: %d categories and %d series, at least one of each is needed", c.Title, len(c.Categories),
			len(c.Series))
	}
	if len(c.Series) > len(palette) {
		return fmt.Errorf("plot %q: %d series, at most %d can be told apart", c.Title, len(c.Series), len(palette))
	}
	for _, s := range c.Series {
		if len(s.Values) != len(c.Categories) {
			return fmt.Errorf("plot %q: series %q has %d values for %d categories", c.Title, s.Label, len(s.Values), len(c.Categories))
		}
	}
	if c.max() <= 0 {
		return fmt.Errorf("plot %q: no value is above 0", c.Title)
	}
	return nil
}

func (c *Chart) max() float64 {
	highest := 0.0
	for _, s := range c.Series {
		for _, v := range s.Values {
			if !math.IsNaN(v) {
				highest = max(highest, v)
			}
		}
	}
	return highest
}

// points returns the points of a series that have a value, shifted right by offset categories.
func (s *Series) points(offset float64) plotter.XYs {
	var xys plotter.XYs
	for i, v := range s.Values {
		if !math.IsNaN(v) {
			xys = append(xys, plotter.XY{X: float64(i) + offset, Y: v})
		}
	}
	return xys
}

func (c *Chart) addLines(p *plot.Plot, i int) error {
	s := &c.Series[i]
	xys := s.points(0)
	line, dots, err := plotter.NewLinePoints(xys)
	if err != nil {
		return err
	}
	line.Color, line.Width = palette[i], vg.Points(1.8)
	dots.Color, dots.Shape, dots.Radius = palette[i], draw.CircleGlyph{}, vg.Points(2.8)
	p.Add(line, dots)
	if s.Label != "" {
		p.Legend.Add(s.Label+legendGap, line, dots)
	}
	if len(c.Series) > 1 {
		return nil // labels of several lines would overlap
	}
	return addValues(p, xys)
}

func (c *Chart) addBars(p *plot.Plot, i int) error {
	s := &c.Series[i]
	width := groupShare / float64(len(c.Series))
	xys := s.points(width * (float64(i) - float64(len(c.Series)-1)/2))
	bars := &bars{xys: xys, width: 0.92 * width, color: palette[i]}
	p.Add(bars)
	if s.Label != "" {
		p.Legend.Add(s.Label+legendGap, bars)
	}
	return addValues(p, xys)
}

// addValues writes each point's value above it.
func addValues(p *plot.Plot, xys plotter.XYs) error {
	texts := make([]string, len(xys))
	for i, xy := range xys {
		texts[i] = fmt.Sprintf("%.3g", xy.Y)
		if xy.Y >= 1000 {
			texts[i] = fmt.Sprintf("%.0f", xy.Y)
		}
	}
	labels, err := plotter.NewLabels(plotter.XYLabels{XYs: xys, Labels: texts})
	if err != nil {
		return err
	}
	for i := range labels.TextStyle {
		labels.TextStyle[i].Font = font.Font{Typeface: plot.DefaultFont.Typeface, Variant: "Sans", Size: vg.Points(8)}
		labels.TextStyle[i].XAlign = draw.XCenter
	}
	labels.Offset.Y = vg.Points(4)
	p.Add(labels)
	return nil
}

// bars are drawn by width in categories, which gonum's own bar chart takes in points: these fit however many there are.
type bars struct {
	xys   plotter.XYs
	width float64
	color color.Color
}

// Plot draws the bars from 0 up.
func (b *bars) Plot(c draw.Canvas, p *plot.Plot) {
	x, y := p.Transforms(&c)
	for _, xy := range b.xys {
		left, right := x(xy.X-b.width/2), x(xy.X+b.width/2)
		c.FillPolygon(b.color, []vg.Point{{X: left, Y: y(0)}, {X: right, Y: y(0)}, {X: right, Y: y(xy.Y)}, {X: left, Y: y(xy.Y)}})
	}
}

// Thumbnail draws the legend's patch.
func (b *bars) Thumbnail(c *draw.Canvas) {
	c.FillPolygon(b.color, []vg.Point{c.Min, {X: c.Max.X, Y: c.Min.Y}, c.Max, {X: c.Min.X, Y: c.Max.Y}})
}

// sans sets all text of the plot in a sans-serif font: titles bold and larger, ticks smaller.
func sans(p *plot.Plot) {
	set := func(f *font.Font, size float64) {
		f.Variant, f.Size = "Sans", vg.Points(size)
	}
	set(&p.Title.TextStyle.Font, 13)
	p.Title.Padding = vg.Points(8)
	for _, axis := range []*plot.Axis{&p.X, &p.Y} {
		set(&axis.Label.TextStyle.Font, 10.5)
		axis.Label.Padding = vg.Points(4)
		set(&axis.Tick.Label.Font, 9)
	}
	set(&p.Legend.TextStyle.Font, 9.5)
}
