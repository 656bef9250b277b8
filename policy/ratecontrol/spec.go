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

// parameters are the keys of specs, in the order of their text.
var parameters = []string{"budget", "law", "codecs", "answers"}

// Spec holds what a controller chooses by. The zero value is not valid: use [Parse].
type Spec struct {
	Budget Budget
	Law    string // greedy or ace
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

// Parse parses a spec such as "auto", "auto:budget=0.1", "auto:budget=50Mb/s,law=ace" or "auto:budget=200ms,codecs=int8+int4+sign".
func Parse(text string) (Spec, error) {
	name, rest, _ := strings.Cut(strings.TrimSpace(text), ":")
	if name != Auto {
		return Spec{}, fmt.Errorf("bad automatic compression %q: write %s, or %s:NAME=VALUE with %s", text, Auto, Auto,
			strings.Join(parameters, ", "))
	}
	s, seen := Spec{Law: greedyLaw}, make(map[string]bool)
	for part := range strings.SplitSeq(rest, ",") {
		if rest == "" {
			break
		}
		key, value, _ := strings.Cut(part, "=")
		key, value = strings.TrimSpace(key), strings.TrimSpace(value)
		err := s.set(key, value)
		if seen[key] {
			err = fmt.Errorf("%s is given twice: give it once", key)
		}
		if err != nil {
			return Spec{}, fmt.Errorf("bad automatic compression: %w", err)
		}
		seen[key] = true
	}
	return s, nil
}

func (s *Spec) set(key, value string) (err error) {
	laws := []string{greedyLaw, aceLaw}
	switch {
	case !slices.Contains(parameters, key):
		err = fmt.Errorf("unknown parameter %q: did you mean %s? Parameters are %s", key, nearest(key, parameters),
			strings.Join(parameters, ", "))
	case value == "":
		err = fmt.Errorf("%s has no value: write %s=VALUE", key, key)
	case key == "budget":
		s.Budget, err = parseBudget(value)
	case key == "codecs":
		s.Codecs = value
	case key == "answers":
		s.Answers = value
	case slices.Contains(laws, value):
		s.Law = value
	default:
		err = fmt.Errorf("law is %q: did you mean %s? Laws are %s", value, nearest(value, laws), strings.Join(laws, ", "))
	}
	return err
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

// String returns the text of a budget, or "" if it has none.
func (b Budget) String() string {
	switch {
	case b.Share > 0:
		return strconv.FormatFloat(b.Share, 'g', -1, 64)
	case b.Time > 0:
		return b.Time.String()
	case b.Rate > 0:
		for _, u := range units {
			if v := b.Rate / u.bytes; v >= 1 && v == math.Trunc(v) || u.suffix == "kb/s" {
				return strconv.FormatFloat(v, 'f', -1, 64) + u.suffix
			}
		}
	}
	return ""
}

// String returns the text that [Parse] parses, without parameters that have their default values.
func (s Spec) String() string {
	text, between := Auto, ":"
	if s.Law == greedyLaw {
		s.Law = ""
	}
	for i, value := range []string{s.Budget.String(), s.Law, s.Codecs, s.Answers} {
		if value != "" {
			text, between = text+between+parameters[i]+"="+value, ","
		}
	}
	return text
}
