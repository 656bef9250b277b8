package ratecontrol

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"pgregory.net/rapid"
)

func TestSpecsAreReadAndRefused(t *testing.T) {
	datadriven.RunTest(t, "testdata/specs.txt", func(t *testing.T, d *datadriven.TestData) string {
		var b strings.Builder
		for line := range strings.SplitSeq(strings.TrimSpace(d.Input), "\n") {
			spec, err := Parse(line)
			if err != nil {
				fmt.Fprintln(&b, err)
				continue
			}
			if again, err := Parse(spec.String()); err != nil || again != spec {
				t.Fatalf("%v is read as %v, %v", spec, again, err)
			}
			fmt.Fprintln(&b, spec)
		}
		return b.String()
	})
}

func TestEveryTextIsReadOrRefusedAndReadAgain(t *testing.T) {
	number := rapid.Map(rapid.Float64Range(1e-5, 2e3), func(v float64) string { return fmt.Sprint(v) })
	value := rapid.OneOf(number, rapid.SampledFrom([]string{"50Mb/s", "0.3gbit", "12%", "1h", "3ms", "ace", "greedy", "int8", ""}),
		rapid.Map(rapid.Float64Range(1e-3, 1e5), func(v float64) string { return fmt.Sprint(v, "Mb/s") }), rapid.StringN(0, 6, -1))
	rapid.Check(t, func(t *rapid.T) {
		text := Auto
		for i := range rapid.IntRange(0, 4).Draw(t, "parameters") {
			text += []string{":", ","}[min(i, 1)] + rapid.SampledFrom(parameters).Draw(t, "key") + "=" + value.Draw(t, "value")
		}
		spec, err := Parse(text)
		if err != nil {
			return
		}
		if again, err := Parse(spec.String()); err != nil || again != spec {
			t.Fatalf("%q is %v, which is read as %v, %v", text, spec, again, err)
		}
	})
}
