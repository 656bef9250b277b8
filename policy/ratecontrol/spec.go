package ratecontrol

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/agnivade/levenshtein"
)

const (
	// Auto is the name of specs, before their parameters.
	Auto = "auto"

	greedyLaw = "greedy"
	aceLaw    = "ace"
)

// Spec holds what a controller chooses by. The zero value is not valid: use [Parse].
type Spec struct {
	Budget Budget
	Law    string // greedy or ace
	// Of law ace: alpha is the weight of the gradients' statistics in a group's importance (equation 3). Without a budget, cmin, cmax
	// and beta, per Mb/s, make the compression of equation 5.
	Alpha, Beta, Least, Most float64
	// Codecs names the candidates, and Answers the codec of the answers. They are for the caller, who knows codecs. If "", the caller
	// chooses.
	Codecs, Answers string
}

// Budget bounds the bytes that a worker sends in a step. At most one field is not 0. If all are, the bytes must fit the time in
// which workers compute, on the link that is measured.
type Budget struct {
	Share float64       // of the raw bytes
	Rate  float64       // bytes per second: the links count as no faster
	Time  time.Duration // for a step's bytes, instead of the time in which workers compute
}

var usual = Spec{Law: greedyLaw, Alpha: 0.5, Beta: 0.02, Least: 1, Most: 32}

// parameter is a key of specs, with the field that it sets. If the field is a number, it goes from low to high.
type parameter struct {
	name      string
	field     any
	low, high float64
}

// parameters returns the keys in the order of their text.
func (s *Spec) parameters() []parameter {
	return []parameter{
		{name: "budget", field: &s.Budget}, {name: "law", field: &s.Law}, {"alpha", &s.Alpha, 0, 1}, {"beta", &s.Beta, 1e-6, 1e3},
		{"cmin", &s.Least, 1, 1e3}, {"cmax", &s.Most, 1, 1e3}, {name: "codecs", field: &s.Codecs}, {name: "answers", field: &s.Answers},
	}
}

func (p *parameter) set(value string) (err error) {
	switch field := p.field.(type) {
	case *string:
		*field = value
	case *Budget:
		*field, err = parseBudget(value)
	case *float64:
		if *field, err = strconv.ParseFloat(value, 64); err != nil || !(*field >= p.low && *field <= p.high) {
			return fmt.Errorf("%s is %q: use a number from %v to %v", p.name, value, p.low, p.high)
		}
	}
	return err
}

func (p *parameter) text() string {
	switch field := p.field.(type) {
	case *float64:
		return fmt.Sprint(*field)
	case *Budget:
		return field.String()
	}
	return *p.field.(*string)
}

// Is reports whether a compression's text is for [Parse], rather than a codec.
func Is(text string) bool {
	name, _, _ := strings.Cut(text, ":")
	return strings.TrimSpace(name) == Auto
}

// Parse parses a spec such as "auto", "auto:budget=0.1", "auto:budget=50Mb/s,law=ace" or "auto:budget=200ms,codecs=int8+int4+sign".
func Parse(text string) (Spec, error) {
	s := usual
	var names []string
	for _, p := range s.parameters() {
		names = append(names, p.name)
	}
	name, rest, _ := strings.Cut(strings.TrimSpace(text), ":")
	if name != Auto {
		return Spec{}, fmt.Errorf("bad automatic compression %q: write %s, or %s:NAME=VALUE with %s", text, Auto, Auto,
			strings.Join(names, ", "))
	}
	if err := s.read(rest, names); err != nil {
		return Spec{}, fmt.Errorf("bad automatic compression: %w", err)
	}
	return s, nil
}

func (s *Spec) read(text string, names []string) error {
	parameters, given := s.parameters(), make([]bool, len(names))
	for part := range strings.SplitSeq(text, ",") {
		if text == "" {
			break
		}
		key, value, _ := strings.Cut(part, "=")
		key, value = strings.TrimSpace(key), strings.TrimSpace(value)
		i := slices.Index(names, key)
		switch {
		case i < 0:
			return fmt.Errorf("unknown parameter %q: did you mean %s? Parameters are %s", key, nearest(key, names),
				strings.Join(names, ", "))
		case given[i]:
			return fmt.Errorf("%s is given twice: give it once", key)
		case value == "":
			return fmt.Errorf("%s has no value: write %s=VALUE", key, key)
		}
		given[i] = true
		if err := parameters[i].set(value); err != nil {
			return err
		}
	}
	if laws := []string{greedyLaw, aceLaw}; !slices.Contains(laws, s.Law) {
		return fmt.Errorf("law is %q: did you mean %s? Laws are %s", s.Law, nearest(s.Law, laws), strings.Join(laws, ", "))
	}
	if s.Least > s.Most {
		return fmt.Errorf("cmin=%v is above cmax=%v: exchange them", s.Least, s.Most)
	}
	for i, p := range parameters {
		switch number := given[i] && p.high > 0; {
		case number && s.Law != aceLaw:
			return fmt.Errorf("%s belongs to law %s: add law=%s, or leave %s out", p.name, aceLaw, aceLaw, p.name)
		case number && p.name != "alpha" && s.Budget != (Budget{}):
			return fmt.Errorf("%s makes a budget, and budget=%v gives one: leave one out", p.name, s.Budget)
		}
	}
	return nil
}

func nearest(name string, among []string) string {
	distance := func(s string) int { return levenshtein.ComputeDistance(name, s) }
	return slices.MinFunc(among, func(a, b string) int { return distance(a) - distance(b) })
}

// units are the suffixes of rates, in bytes per second.
var units = []struct {
	suffix string
	bytes  float64
}{{"Gb/s", 1e9 / 8}, {"Mb/s", 1e6 / 8}, {"kb/s", 1e3 / 8}, {"gbit", 1e9 / 8}, {"mbit", 1e6 / 8}, {"kbit", 1e3 / 8}}

// parseBudget parses a share, a time, or a rate, which it rounds to whole bytes so that [Budget.String] is exact.
func parseBudget(text string) (Budget, error) {
	use := "a share of the raw bytes as 0.1 or 10%, a rate as 50Mb/s, or a time as 200ms"
	number, percent := strings.CutSuffix(text, "%")
	if v, err := strconv.ParseFloat(number, 64); err == nil {
		if percent {
			v /= 100
		}
		if v >= 1e-4 && v <= 1 {
			return Budget{Share: v}, nil
		}
		use = "a share from 0.0001 to 1"
	} else if d, err := time.ParseDuration(text); err == nil {
		if d >= time.Millisecond && d <= time.Hour {
			return Budget{Time: d}, nil
		}
		use = "a time from 1ms to 1h0m0s"
	}
	for _, u := range units {
		if number, ok := strings.CutSuffix(text, u.suffix); ok {
			v, err := strconv.ParseFloat(number, 64)
			if v = math.Round(v * u.bytes); err == nil && v >= 1e3/8 && v <= 1e12/8 {
				return Budget{Rate: v}, nil
			}
			use = "a rate from 1kb/s to 1000Gb/s"
		}
	}
	return Budget{}, fmt.Errorf("budget is %q: use %s", text, use)
}

func (b Budget) String() string {
	switch {
	case b.Share > 0:
		return strconv.FormatFloat(b.Share, 'g', -1, 64)
	case b.Rate > 0:
		for _, u := range units {
			if v := b.Rate / u.bytes; v >= 1 && v == math.Trunc(v) || u.suffix == "kb/s" {
				return strconv.FormatFloat(v, 'f', -1, 64) + u.suffix
			}
		}
	}
	return b.Time.String()
}

// String returns the text that [Parse] parses, without parameters that have their default values.
func (s Spec) String() string {
	text, between := Auto, ":"
	for i, p := range s.parameters() {
		if value := p.text(); value != usual.parameters()[i].text() {
			text, between = text+between+p.name+"="+value, ","
		}
	}
	return text
}
