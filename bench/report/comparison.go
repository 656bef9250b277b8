package report

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/rackweave/rackweave/numa"
)

// Times is the result of one contender's run of an exchange.
type Times struct {
	Name    string `json:"name"`
	Version string `json:"version,omitempty"`
	// Setting is the way the contender ran. For a peer it is the fastest of those tried.
	Setting string `json:"setting,omitempty"`
	// Transport carried the data, by the contender's own word.
	Transport string `json:"transport,omitempty"`
	// Bytes is the number that one worker sends, and receives, per iteration.
	Bytes   uint64 `json:"bytes"`
	Workers int    `json:"workers"`
	TimeUS  TimeUS `json:"time_us"`
	Wrong   uint64 `json:"wrong"`
	// Tried has the times of a peer's settings by name: the median in microseconds, or 0 if the setting does not work here.
	Tried map[string]float64 `json:"tried_us,omitempty"`
}

// Comparison compares contenders that ran the same exchange on the same machine in alternating rounds.
type Comparison struct {
	Machine Machine `json:"machine"`
	Workers int     `json:"workers"`
	Bytes   uint64  `json:"bytes"`
	DType   string  `json:"dtype"`
	// Of describes the exchange of what is not whole gradients.
	Of     string `json:"of,omitempty"`
	Rounds int    `json:"rounds"`
	// Contenders begins with ours, to which the ratios compare the others.
	Contenders []Contender `json:"contenders"`
	// Missing says, by name, why a peer was not compared and which command installs it.
	Missing map[string]string `json:"missing,omitempty"`
	Note    string            `json:"note,omitempty"`
}

// Contender is one side of a comparison.
type Contender struct {
	Name      string             `json:"name"`
	Version   string             `json:"version,omitempty"`
	Setting   string             `json:"setting,omitempty"`
	Transport string             `json:"transport,omitempty"`
	Tried     map[string]float64 `json:"tried_us,omitempty"`
	// RoundUS is each round's median exchange; 0 for a round that failed.
	RoundUS []float64 `json:"round_us"`
	// MedianUS is the median of the rounds, and AlgBW and BusBW follow from it.
	MedianUS float64 `json:"median_us"`
	P99US    float64 `json:"p99_us"` // median of the rounds' 99th percentiles
	AlgBW    float64 `json:"algbw_gbs"`
	BusBW    float64 `json:"busbw_gbs"`
	Wrong    uint64  `json:"wrong"` // of all rounds
	// Ratio is their time over ours: median, least and most of the rounds, each round compared with itself.
	Ratio    float64 `json:"ratio"`
	RatioMin float64 `json:"ratio_min"`
	RatioMax float64 `json:"ratio_max"`
	// Error is the last failed round's.
	Error string `json:"error,omitempty"`
}

// NewContender summarises a contender's rounds, ours being the first contender's; a failed round has a name only, and
// err is then the last one's error.
func NewContender(rounds, ours []Times, err error) Contender {
	if len(rounds) != len(ours) {
		panic(fmt.Sprintf("report: %d rounds against %d of ours", len(rounds), len(ours)))
	}
	var c Contender
	var medians, p99s, ratios []float64
	for i, t := range rounds {
		c.Name = t.Name
		c.RoundUS = append(c.RoundUS, t.TimeUS.P50)
		if t.Workers == 0 {
			continue
		}
		c.Version, c.Setting, c.Transport, c.Tried = t.Version, t.Setting, t.Transport, t.Tried
		c.Wrong += t.Wrong
		medians = append(medians, t.TimeUS.P50)
		p99s = append(p99s, t.TimeUS.P99)
		c.MedianUS = Median(medians)
		c.AlgBW = AlgBW(t.Bytes, c.MedianUS)
		c.BusBW = BusBW(c.AlgBW, t.Workers)
		if ours[i].TimeUS.P50 > 0 {
			ratios = append(ratios, t.TimeUS.P50/ours[i].TimeUS.P50)
		}
	}
	c.P99US = Median(p99s)
	if len(ratios) > 0 {
		c.Ratio, c.RatioMin, c.RatioMax = Median(ratios), slices.Min(ratios), slices.Max(ratios)
	}
	if err != nil {
		c.Error = err.Error()
	}
	return c
}

// Median of values, the mean of the middle two if their number is even, or 0 for no values.
func Median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	return (sorted[(len(sorted)-1)/2] + sorted[len(sorted)/2]) / 2
}

// WriteTable prints the comparison: a row per contender, the ratio being how many times faster ours is.
func (c *Comparison) WriteTable(w io.Writer) {
	of := c.DType
	if c.Of != "" {
		of += ", " + c.Of
	}
	header(w, c.Machine, c.Note, "%d bytes of %s, %s, medians of %s in turn", c.Bytes, of, numa.Count(c.Workers, "worker"),
		numa.Count(c.Rounds, "round"))
	fmt.Fprintln(w, "#")
	line(w, "#%12s %10s %10s %8s %8s %8s %8s %17s  %s", "", "time", "p99", "algbw", "busbw", "#wrong", "ours is", "least to most",
		"as")
	line(w, "#%12s %10s %10s %8s %8s", "", "(us)", "(us)", "(GB/s)", "(GB/s)")
	for i := range c.Contenders {
		c.Contenders[i].writeRow(w, i == 0, c.Contenders[0].MedianUS)
	}
	for _, name := range slices.Sorted(maps.Keys(c.Missing)) {
		fmt.Fprintf(w, "# %s is missing: %s\n", name, c.Missing[name])
	}
}

// AsInstalled is the name of a peer's setting that nothing was tuned in.
const AsInstalled = "as installed"

func (c *Contender) writeRow(w io.Writer, ours bool, oursUS float64) {
	if c.MedianUS == 0 {
		line(w, "# %s failed: %s", c.Name, oneLine(c.Error))
		return
	}
	ratio, spread := "", ""
	if !ours {
		ratio = fmt.Sprintf("%.2fx", c.Ratio)
		spread = fmt.Sprintf("%.2fx to %.2fx", c.RatioMin, c.RatioMax)
	}
	as := strings.Join(slices.DeleteFunc([]string{c.Version, c.Transport, c.Setting}, func(s string) bool { return s == "" }), ", ")
	if t := c.Tried[AsInstalled]; t > 0 && c.Setting != AsInstalled && oursUS > 0 {
		as += fmt.Sprintf("; %s %s in a trial, %.2fx", AsInstalled, us(t), t/oursUS)
	}
	if c.Error != "" {
		as += "; a round failed: " + oneLine(c.Error)
	}
	line(w, " %12s %10s %10s %8.2f %8.2f %8d %8s %17s  %s",
		c.Name, us(c.MedianUS), us(c.P99US), c.AlgBW, c.BusBW, c.Wrong, ratio, spread, as)
}

func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }
