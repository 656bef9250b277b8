package optim

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/agnivade/levenshtein"

	"github.com/rackweave/rackweave/chunk"
)

func (r Rule) String() string {
	if !r.Valid() {
		return fmt.Sprintf("rule(%d)", uint8(r))
	}
	return table[r].name
}

// Parse returns the rule of a name. The error lists the names and suggests the nearest.
func Parse(name string) (Rule, error) {
	names := make([]string, 0, named)
	for _, r := range Rules() {
		if table[r].name == name {
			return r, nil
		}
		names = append(names, table[r].name)
	}
	// A name without its framework is nearer than a name that shares a few letters.
	distance := func(s string) int {
		bare, _, _ := strings.Cut(s, "_")
		return min(levenshtein.ComputeDistance(strings.ToLower(name), s), levenshtein.ComputeDistance(strings.ToLower(name), bare)+1)
	}
	nearest := slices.MinFunc(names, func(a, b string) int { return distance(a) - distance(b) })
	return 0, fmt.Errorf("unknown optimizer %q: did you mean %s? The names are %s", name, nearest, strings.Join(names, ", "))
}

// States returns the number of f32 arrays, each as large as the weights, that the rule keeps between steps. They start as zeros.
func (r Rule) States(h Hyper) int { return table[r.form(float32(h.Momentum))].states }

// form returns the rule that runs in place of r with a given momentum, or beta 1.
func (r Rule) form(momentum float32) Rule {
	if plain := table[r].plain; plain != 0 && momentum == 0 {
		return plain
	}
	return r
}

// Defaults returns the default hyper-parameters of the rule's framework.
func (r Rule) Defaults() Hyper { return table[r].defaults }

// fields returns pointers to the hyper-parameters, in the order of params.
func (h *Hyper) fields() [len(params)]*float64 {
	return [...]*float64{&h.LR, &h.WD, &h.Scale, &h.Clip, &h.Momentum, &h.Dampening, &h.Beta1, &h.Beta2, &h.Eps, &h.Alpha,
		&h.Lambda1, &h.Beta}
}

// takes reports, by rule, which of params the rule reads, and raises whether it raises its betas to powers. They are computed once
// from the table's lists.
var takes, raises = func() (taken [rules][len(params)]bool, raising [rules]bool) {
	for r := range rules {
		names := r.Takes()
		for i, p := range params {
			taken[r][i] = slices.Contains(names, p.name)
		}
		raising[r] = slices.Contains(names, "beta2")
	}
	return taken, raising
}()

// Takes lists the hyper-parameters that the rule reads, by name.
func (r Rule) Takes() []string { return strings.Fields(table[r].takes) }

// Hyper returns the rule's defaults with the values that are named. It refuses a name that the rule does not read, because the
// value would have no effect.
func (r Rule) Hyper(named map[string]float64) (Hyper, error) {
	h := r.Defaults()
	names := r.Takes()
	for _, name := range slices.Sorted(maps.Keys(named)) {
		if !slices.Contains(names, name) {
			return h, fmt.Errorf("%v has no hyper-parameter %q: use %s", r, name, strings.Join(names, ", "))
		}
		*h.Field(name) = named[name]
	}
	return h, nil
}

// Field returns a pointer to the hyper-parameter of a name that a rule takes.
func (h *Hyper) Field(name string) *float64 {
	for i, p := range params {
		if p.name == name {
			return h.fields()[i]
		}
	}
	return nil
}

// Check returns an error that names the value with which the rule cannot run, or nil.
func (r Rule) Check(h Hyper) error {
	if !r.Valid() {
		return fmt.Errorf("%v is not an update rule", r)
	}
	for i, p := range params {
		if v := *h.fields()[i]; takes[r][i] && !(v >= p.lo && v < p.hi && !math.IsInf(v, 0)) {
			return fmt.Errorf("%v: %s is %v: use a number from %v to below %v", r, p.name, v, p.lo, p.hi)
		}
	}
	if check := table[r].check; check != nil {
		if err := check(h); err != nil {
			return fmt.Errorf("%v: %w", r, err)
		}
	}
	return nil
}

// Record returns the values that a control record carries for the rule, rounded to f32.
func (r Rule) Record(h Hyper) [chunk.RecordValues]float32 {
	var v [chunk.RecordValues]float32
	for i, field := range h.fields() {
		if takes[r][i] {
			v[params[i].place] = float32(*field)
		}
	}
	return v
}

// FromRecord returns the rule's hyper-parameters from a control record's values. A rule that raises its betas to powers gets the
// shortest decimals that round to the values, which are the decimals that users write, because the powers magnify the rounding to
// f32 to 1e-5 of a step.
func (r Rule) FromRecord(v [chunk.RecordValues]float32) Hyper {
	var h Hyper
	widen := func(x float32) float64 { return float64(x) }
	if raises[r] {
		widen = decimal
	}
	for i, field := range h.fields() {
		if takes[r][i] {
			*field = widen(v[params[i].place])
		}
	}
	return h
}

// decimal returns the shortest decimal that rounds to x.
func decimal(x float32) float64 {
	d, err := strconv.ParseFloat(strconv.FormatFloat(float64(x), 'g', -1, 32), 64)
	if err != nil {
		panic(fmt.Sprintf("optim: a float does not read as it was written: %v", err))
	}
	return d
}

// Rounded returns the hyper-parameters after their rounding in a control record.
func (r Rule) Rounded(h Hyper) Hyper { return r.FromRecord(r.Record(h)) }
