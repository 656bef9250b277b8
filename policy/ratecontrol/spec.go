package ratecontrol

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/agnivade/levenshtein"
)

// ErrSpec is wrapped by every error about a spec.
var ErrSpec = errors.New("bad automatic compression")

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

// parameters lists the keys of specs in the order of their text.
var parameters = []struct {
	name string
	// number returns the field of a parameter that is a number, else nil.
	number          func(*Spec) *float64
	low, high, used float64
	// word returns the field of a parameter that is a word, else nil.
	word func(*Spec) *string
}{
	{name: "budget"},
	{name: "law", word: func(s *Spec) *string { return &s.Law }},
	{name: "alpha", number: func(s *Spec) *float64 { return &s.Alpha }, low: 0, high: 1, used: 0.5},
	{name: "beta", number: func(s *Spec) *float64 { return &s.Beta }, low: 1e-6, high: 1e3, used: 0.02},
	{name: "cmin", number: func(s *Spec) *float64 { return &s.Least }, low: 1, high: 1e3, used: 1},
	{name: "cmax", number: func(s *Spec) *float64 { return &s.Most }, low: 1, high: 1e3, used: 32},
	{name: "codecs", word: func(s *Spec) *string { return &s.Codecs }},
	{name: "answers", word: func(s *Spec) *string { return &s.Answers }},
}

// Is reports whether a compression's text is for [Parse], rather than a codec.
func Is(text string) bool {
	name, _, _ := strings.Cut(text, ":")
	return strings.TrimSpace(name) == Auto
}

// Parse parses a spec such as "auto", "auto:budget=0.1", "auto:budget=50Mb/s,law=ace" or "auto:budget=200ms,codecs=int8+int4+sign".
func Parse(text string) (Spec, error) {
	s := Spec{Law: greedyLaw}
	var names []string
	for _, p := range parameters {
		if names = append(names, p.name); p.number != nil {
			*p.number(&s) = p.used
		}
	}
	name, rest, _ := strings.Cut(strings.TrimSpace(text), ":")
	if name != Auto {
		return Spec{}, fmt.Errorf("%w %q: write %s, or %s:NAME=VALUE with %s", ErrSpec, text, Auto, Auto, strings.Join(names, ", "))
	}
	given := make(map[string]bool)
	for part := range strings.SplitSeq(rest, ",") {
		if part == "" && rest == "" {
			break
		}
		key, value, _ := strings.Cut(part, "=")
		key, value = strings.TrimSpace(key), strings.TrimSpace(value)
		i := slices.Index(names, key)
		switch {
		case i < 0:
			return Spec{}, fmt.Errorf("%w: unknown parameter %q: did you mean %s? Parameters are %s", ErrSpec, key,
				nearest(key, names), strings.Join(names, ", "))
		case given[key]:
			return Spec{}, fmt.Errorf("%w: %s is given twice: give it once", ErrSpec, key)
		case value == "":
			return Spec{}, fmt.Errorf("%w: %s has no value: write %s=VALUE", ErrSpec, key, key)
		}
		given[key] = true
		if err := s.set(i, value); err != nil {
			return Spec{}, fmt.Errorf("%w: %w", ErrSpec, err)
		}
	}
	return s, s.check(given)
}

func nearest(name string, among []string) string {
	distance := func(s string) int { return levenshtein.ComputeDistance(name, s) }
	return slices.MinFunc(among, func(a, b string) int { return distance(a) - distance(b) })
}

// set gives the parameter of parameters[i] a value.
func (s *Spec) set(i int, value string) (err error) {
	switch p := &parameters[i]; {
	case p.word != nil:
		*p.word(s) = value
	case p.number == nil:
		s.Budget, err = parseBudget(value)
	default:
		v := p.number(s)
		if *v, err = strconv.ParseFloat(value, 64); err != nil || !(*v >= p.low && *v <= p.high) {
			return fmt.Errorf("%s is %q: use a number from %v to %v", p.name, value, p.low, p.high)
		}
	}
	return err
}

func (s *Spec) check(given map[string]bool) error {
	laws := []string{greedyLaw, aceLaw}
	if !slices.Contains(laws, s.Law) {
		return fmt.Errorf("%w: law is %q: did you mean %s? Laws are %s", ErrSpec, s.Law, nearest(s.Law, laws), strings.Join(laws, ", "))
	}
	if s.Least > s.Most {
		return fmt.Errorf("%w: cmin=%v is above cmax=%v: exchange them", ErrSpec, s.Least, s.Most)
	}
	for _, p := range parameters {
		if p.number != nil && given[p.name] && s.Law != aceLaw {
			return fmt.Errorf("%w: %s belongs to law %s: add law=%s, or leave %s out", ErrSpec, p.name, aceLaw, aceLaw, p.name)
		}
		if p.number != nil && given[p.name] && p.name != "alpha" && s.Budget != (Budget{}) {
			return fmt.Errorf("%w: %s makes a budget, and budget=%v gives one: leave one out", ErrSpec, p.name, s.Budget)
		}
	}
	return nil
}

// units are the suffixes of rates, in bytes per second.
var units = []struct {
	suffix string
	bytes  float64
}{{"Gb/s", 1e9 / 8}, {"Mb/s", 1e6 / 8}, {"kb/s", 1e3 / 8}, {"gbit", 1e9 / 8}, {"mbit", 1e6 / 8}, {"kbit", 1e3 / 8}}

const (
	slowest, fastest = 1e3 / 8, 1e12 / 8
	longest          = time.Hour
)

// parseBudget parses a share, a rate, which it rounds to whole bytes so that [Budget.String] is exact, or a time.
func parseBudget(text string) (b Budget, err error) {
	refused := func(what string, low, high any) (Budget, error) {
		return Budget{}, fmt.Errorf("budget is %q: use a %s from %v to %v", text, what, low, high)
	}
	for _, u := range units {
		if number, ok := strings.CutSuffix(text, u.suffix); ok {
			v, err := strconv.ParseFloat(number, 64)
			if v = math.Round(v * u.bytes); err != nil || !(v >= slowest && v <= fastest) {
				return refused("rate", Budget{Rate: slowest}, Budget{Rate: fastest})
			}
			return Budget{Rate: v}, nil
		}
	}
	if d, err := time.ParseDuration(text); err == nil && d != 0 {
		if d < time.Millisecond || d > longest {
			return refused("time", time.Millisecond, longest)
		}
		return Budget{Time: d}, nil
	}
	number, percent := strings.CutSuffix(text, "%")
	v, err := strconv.ParseFloat(number, 64)
	if percent {
		v /= 100
	}
	switch {
	case err != nil:
		return Budget{}, fmt.Errorf("budget is %q: use a share of the raw bytes as 0.1 or 10%%, a rate as 50Mb/s, or a time as 200ms", text)
	case !(v >= 1e-4 && v <= 1):
		return refused("share", 1e-4, 1)
	}
	return Budget{Share: v}, nil
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
	for _, p := range parameters {
		var value string
		switch {
		case p.number != nil && *p.number(&s) != p.used:
			value = strconv.FormatFloat(*p.number(&s), 'g', -1, 64)
		case p.word != nil && (p.name != "law" || s.Law != greedyLaw):
			value = *p.word(&s)
		case p.name == "budget" && s.Budget != (Budget{}):
			value = s.Budget.String()
		}
		if value != "" {
			text, between = text+between+p.name+"="+value, ","
		}
	}
	return text
}
