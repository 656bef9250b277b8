package ratecontrol

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"pgregory.net/rapid"
)

func TestDriftScripts(t *testing.T) {
	var d *Drift
	datadriven.RunTest(t, "testdata/drift.txt", func(t *testing.T, c *datadriven.TestData) string {
		rank := 0
		c.MaybeScanArgs(t, "rank", &rank)
		switch c.Cmd {
		case "new":
			var threshold float64
			var first, least, most int
			c.ScanArgs(t, "threshold", &threshold)
			c.ScanArgs(t, "first", &first)
			c.ScanArgs(t, "least", &least)
			c.ScanArgs(t, "most", &most)
			var err error
			if d, err = NewDrift(threshold, first, least, most, 2); err != nil {
				return err.Error() + "\n"
			}
		case "report":
			var b strings.Builder
			for _, a := range c.CmdArgs {
				for _, v := range a.Vals {
					var rank int
					var distance float64
					if n, err := fmt.Sscan(a.Key+" "+v, &rank, &distance); n != 2 {
						c.Fatalf(t, "%v: %v", a, err)
					}
					d.Report(rank, distance)
					fmt.Fprintf(&b, "rank %d: %d steps\n", rank, d.Interval())
				}
			}
			return b.String()
		case "leave":
			d.Leave(rank)
		case "join":
			d.Join(rank)
		default:
			c.Fatalf(t, "unknown command %s", c.Cmd)
		}
		return fmt.Sprintf("%d steps, distance %v\n", d.Interval(), d.Distance())
	})
}

func TestIntervalsStayWithinTheirBoundsAndFollowTheLargestDistance(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const ranks = 3
		least := rapid.IntRange(1, 8).Draw(t, "least")
		most := least + rapid.IntRange(0, 64).Draw(t, "more")
		d, err := NewDrift(1, rapid.IntRange(least, most).Draw(t, "first"), least, most, ranks)
		if err != nil {
			t.Fatal(err)
		}
		distance := rapid.OneOf(rapid.Float64Range(0, 2), rapid.SampledFrom([]float64{math.NaN(), math.Inf(1), -1}))
		for range rapid.IntRange(1, 40).Draw(t, "rounds") {
			before, largest := d.Interval(), 0.0
			for r := range ranks {
				if d.Interval() != before {
					t.Fatal("it decided before all had reported")
				}
				x := distance.Draw(t, "distance")
				if !(x >= 0) {
					x = math.Inf(1)
				}
				largest = max(largest, x)
				d.Report(r, x)
			}
			want := before
			if largest > 1 {
				want = max(least, before/2)
			} else if largest < 0.5 {
				want = min(most, before+1)
			}
			if d.Interval() != want {
				t.Fatalf("%d steps and a distance of %v: %d steps, want %d", before, largest, d.Interval(), want)
			}
		}
	})
}
