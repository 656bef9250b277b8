package optim

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/rackweave/rackweave/chunk"
)

// Hyper holds the hyper-parameters of a step, live: a job may change them at any step. A rule reads those that it takes.
type Hyper struct {
	LR        float64 // learning rate
	WD        float64 // weight decay
	Scale     float64 // multiplies the summed gradient first: rescale_grad, 1/N for a mean, 1/loss scale
	Clip      float64 // clips by value to ±Clip; 0 or less does not clip
	Momentum  float64
	Dampening float64
	Beta1     float64
	Beta2     float64
	Eps       float64
	Alpha     float64 // RMSprop's decay, MXNet's gamma1
}

// fields returns where the hyper-parameters stand, in the order of params.
func (h *Hyper) fields() [len(params)]*float64 {
	return [...]*float64{&h.LR, &h.WD, &h.Scale, &h.Clip, &h.Momentum, &h.Dampening, &h.Beta1, &h.Beta2, &h.Eps, &h.Alpha}
}

var inf = math.Inf(1)

// takes tells of each rule which of params it reads: the table's lists, looked up once.
var takes = func() (taken [rules][len(params)]bool) {
	for r := range rules {
		names := r.Takes()
		for i, p := range params {
			taken[r][i] = slices.Contains(names, p.name)
		}
	}
	return taken
}()

// Takes lists the hyper-parameters that the rule reads, by name.
func (r Rule) Takes() []string { return strings.Fields(table[r].takes) }

// Hyper returns the rule's defaults with the values that are named. It refuses a name that the rule does not read: what was
// meant would not happen.
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

// Field returns the hyper-parameter of a name that a rule takes.
func (h *Hyper) Field(name string) *float64 {
	for i, p := range params {
		if p.name == name {
			return h.fields()[i]
		}
	}
	return nil
}

// Check tells whether the rule can run with h, naming the value at fault.
func (r Rule) Check(h Hyper) error {
	if !r.Valid() {
		return fmt.Errorf("%v is no update rule", r)
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

// place is where a hyper-parameter stands among the values of a control record.
type place int

// The places, named for what most rules keep there, in the order of [chunk.TensorRecord]'s fields.
const (
	placeLR place = iota
	placeWD
	placeScale
	placeClip
	placeMomentum
	placeBeta2
	placeEps
	placeExtra
)

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

// FromRecord returns the hyper-parameters that the rule finds among a control record's values.
func (r Rule) FromRecord(v [chunk.RecordValues]float32) Hyper {
	var h Hyper
	for i, field := range h.fields() {
		if takes[r][i] {
			*field = float64(v[params[i].place])
		}
	}
	return h
}

// Rounded returns the hyper-parameters as they are after a control record carried them.
func (r Rule) Rounded(h Hyper) Hyper { return r.FromRecord(r.Record(h)) }
