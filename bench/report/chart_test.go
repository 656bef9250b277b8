package report

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"math"
	"strings"
	"testing"
)

func chart(kind ChartKind) Chart {
	return Chart{
		Title: "Tall against wide", Kind: kind, XLabel: "workers", YLabel: "algbw (GB/s)",
		Categories: []string{"1", "two", "4"},
		Series:     []Series{{"tall", []float64{3, 2.75, 2.5}}, {"wide", []float64{3, math.NaN(), 1.125}}},
		Caption:    []string{"2 cores", "over shm"},
	}
}

// parse returns the texts, and the number of paths of each fill or stroke colour.
func parse(t *testing.T, svg []byte) (texts map[string]int, colours map[string]int) {
	t.Helper()
	texts, colours = map[string]int{}, map[string]int{}
	decoder := xml.NewDecoder(bytes.NewReader(svg))
	inText := false
	for {
		token, err := decoder.Token()
		if errors.Is(err, io.EOF) {
			return texts, colours
		}
		if err != nil {
			t.Fatalf("not XML: %v", err)
		}
		switch token := token.(type) {
		case xml.StartElement:
			inText = token.Name.Local == "text"
			for _, a := range token.Attr {
				if token.Name.Local == "path" && a.Name.Local == "style" {
					for _, name := range []string{"#0072B2", "#D55E00"} {
						if strings.Contains(a.Value, name) {
							colours[name]++
						}
					}
				}
			}
		case xml.CharData:
			if inText {
				texts[string(token)]++
			}
		case xml.EndElement:
			inText = false
		}
	}
}

func TestChartShowsAllTitlesCategoriesAndSeries(t *testing.T) {
	for _, c := range []struct {
		kind ChartKind
		// paths of the first and second series, with one in the legend (lines: a stroke and a dot each)
		first, second int
	}{
		{Bars, 3 + 1, 2 + 1},
		{Lines, 1 + 3 + 2, 1 + 2 + 2},
	} {
		chart := chart(c.kind)
		var svg, again bytes.Buffer
		if err := chart.WriteSVG(&svg); err != nil {
			t.Fatal(err)
		}
		if err := chart.WriteSVG(&again); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(svg.Bytes(), again.Bytes()) {
			t.Errorf("kind %d: the same chart gave other bytes", c.kind)
		}
		texts, colours := parse(t, svg.Bytes())
		for _, want := range []string{"Tall against wide", "workers", "algbw (GB/s)", "2 cores", "over shm", "two", "tall" + legendGap,
			"wide" + legendGap, "0", "1", "2", "3"} {
			if texts[want] == 0 {
				t.Errorf("kind %d: no text %q in %v", c.kind, want, texts)
			}
		}
		if c.kind == Bars && (texts["2.75"] != 1 || texts["1.12"] != 1 || texts["NaN"] != 0) {
			t.Errorf("bars: values above them are %v, want 2.75 and 1.12 once and no NaN", texts)
		}
		if colours["#0072B2"] != c.first || colours["#D55E00"] != c.second {
			t.Errorf("kind %d: %v paths, want %d and %d", c.kind, colours, c.first, c.second)
		}
	}
}

func TestChartThatCannotBeDrawnIsAnError(t *testing.T) {
	for name, spoil := range map[string]func(*Chart){
		"0 categories":            func(c *Chart) { c.Categories = nil },
		"0 series":                func(c *Chart) { c.Series = nil },
		"7 series":                func(c *Chart) { c.Series = make([]Series, 7) },
		"1 values for 3":          func(c *Chart) { c.Series[1].Values = []float64{1} },
		"no value is above 0":     func(c *Chart) { c.Series = []Series{{"x", []float64{0, 0, math.NaN()}}} },
		"writing the plot \"Tall": nil,
	} {
		c := chart(Bars)
		var out io.Writer = io.Discard
		if spoil == nil {
			out = full{}
		} else {
			spoil(&c)
		}
		if err := c.WriteSVG(out); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("error %v, want one with %q", err, name)
		}
	}
}

type full struct{}

func (full) Write([]byte) (int, error) { return 0, errors.New("no space left") }

func TestTicksAreRoundAndFew(t *testing.T) {
	for _, high := range []float64{0.003, 1, 4.9, 5, 12, 99, 123456} {
		ticks := roundTicks{}.Ticks(0, high)
		if len(ticks) < 4 || len(ticks) > 11 {
			t.Errorf("0 to %v: %d ticks, want 4 to 11", high, len(ticks))
		}
		for _, tick := range ticks {
			if len(tick.Label) > 6 || tick.Value > high {
				t.Errorf("0 to %v: tick %q at %v", high, tick.Label, tick.Value)
			}
		}
	}
}
