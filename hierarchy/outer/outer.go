// Package outer describes the outer optimizer of racks that train independently and synchronize every few steps (DiLoCo, arXiv
// 2311.08105): its rule, and the steps at which each chunk is due. It is pure. [github.com/rackweave/rackweave/aggregate/outer]
// carries it out.
package outer

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/rackweave/rackweave/hierarchy"
)

// Optimizer describes the outer optimizer of racks that train independently. Each rack runs the job's optimizer on its own workers'
// gradients. Every so many steps it hands up its difference since the last round. The mean of the differences over the racks,
// weighted by their workers, is the gradient of the outer optimizer, and its result becomes every rack's parameters.
//
// With the zero Optimizer, racks add their gradients in every step.
type Optimizer struct {
	Every     int    // steps from one round of a chunk to the next
	Fragments int    // parts of the model, each with rounds at other steps; if 0, 1
	Rule      string // sgd or nesterov
	LR        float64
	Momentum  float64
	// Drift, if above 0, lets each chunk's steps between rounds follow how far the racks have drifted apart, from 1 to Every steps
	// ([Optimizer.Next]).
	Drift float64
}

// These are the rules of an outer optimizer.
const (
	SGD      = "sgd"
	Nesterov = "nesterov"
)

// maxEvery bounds the steps between rounds, because a chunk's steps are counted in 32 bits.
const maxEvery = 1 << 20

// Check validates the outer optimizer.
func (o Optimizer) Check() error {
	switch {
	case o == Optimizer{}:
		return nil
	case o.Every < 1 || o.Every > maxEvery:
		return fmt.Errorf("%w: an outer step every %d steps: use 1 to %d", hierarchy.ErrCluster, o.Every, maxEvery)
	case o.Fragments < 0 || o.Fragments > o.Every:
		return fmt.Errorf("%w: %d fragments in the %d steps between outer steps: use 1 to %d", hierarchy.ErrCluster, o.Fragments, o.Every, o.Every)
	case o.Rule != SGD && o.Rule != Nesterov:
		return fmt.Errorf("%w: outer optimizer %q: use %s or %s", hierarchy.ErrCluster, o.Rule, SGD, Nesterov)
	case !(float32(o.LR) > 0) || math.IsInf(float64(float32(o.LR)), 0):
		return fmt.Errorf("%w: an outer learning rate of %v: use one above 0 that an f32 holds, such as 0.7", hierarchy.ErrCluster, o.LR)
	case !(o.Momentum >= 0 && float32(o.Momentum) < 1) || o.Momentum > 0 && float32(o.Momentum) == 0:
		return fmt.Errorf("%w: an outer momentum of %v: use one from 0 up to, but not, 1 that an f32 holds", hierarchy.ErrCluster, o.Momentum)
	case o.Rule == Nesterov && o.Momentum == 0:
		return fmt.Errorf("%w: outer optimizer nesterov without momentum: give one, such as 0.9, or use sgd", hierarchy.ErrCluster)
	case !(o.Drift >= 0) || math.IsInf(o.Drift, 1):
		return fmt.Errorf("%w: an outer drift of %v: use a part of the parameters' length, such as 0.02", hierarchy.ErrCluster, o.Drift)
	case o.Drift > 0 && o.Fragments > 1:
		return fmt.Errorf("%w: outer drift %v with %d fragments: leave them out, because with a drift each chunk has an interval of its own",
			hierarchy.ErrCluster, o.Drift, o.Fragments)
	}
	return nil
}

// Due reports whether racks have a round at a chunk's step, counted from 1, if their rounds do not follow the drift. Chunks are
// dealt to fragments in turn, so that all fragments have equally many bytes, and the fragments' steps are spread evenly.
func (o Optimizer) Due(chunk int, step uint32) bool {
	fragments := max(o.Fragments, 1)
	offset := chunk % fragments * o.Every / fragments
	return (int(step)+offset)%o.Every == 0
}

// Next returns the steps from a chunk's round to its next, by equation 9 of ACE-Sync with a law of our own. interval is that before
// the round. If it is 0, there was no round yet. distance is the mean over the workers of the squared distance between their rack's
// parameters and those of the last round, whose squared length is length. If the racks have drifted farther than [Optimizer.Drift]
// allows, the interval is halved. If they have drifted less than half as far, it grows by one step.
func (o Optimizer) Next(interval uint32, distance, length float32) uint32 {
	interval = max(interval, 1)
	most := o.Drift * o.Drift * float64(length)
	switch d := float64(distance); {
	case !(d <= most) || math.IsInf(d, 1):
		return max(interval/2, 1)
	case d < most/4 || d == 0:
		return min(interval+1, uint32(o.Every))
	}
	return interval
}

func (o Optimizer) String() string {
	if o == (Optimizer{}) {
		return "none"
	}
	text := fmt.Sprintf("every=%d,fragments=%d,rule=%s,lr=%v,momentum=%v", o.Every, max(o.Fragments, 1), o.Rule, o.LR, o.Momentum)
	if o.Drift > 0 {
		text += fmt.Sprintf(",drift=%v", o.Drift)
	}
	return text
}

// Parse parses the text that [Optimizer.String] writes. Missing parts have defaults: one fragment, and nesterov with a learning
// rate of 0.7 and a momentum of 0.9, or sgd with 1 and 0.
func Parse(text string) (Optimizer, error) {
	if text == "" || text == "none" {
		return Optimizer{}, nil
	}
	o := Optimizer{Fragments: 1, Rule: Nesterov}
	given := map[string]bool{}
	for part := range strings.SplitSeq(text, ",") {
		key, value, _ := strings.Cut(part, "=")
		if given[key] {
			return o, fmt.Errorf("%w: outer %q gives %s twice: give it once", hierarchy.ErrCluster, text, key)
		}
		given[key] = true
		var err error
		switch key {
		case "every":
			o.Every, err = strconv.Atoi(value)
		case "fragments":
			if o.Fragments, err = strconv.Atoi(value); err == nil && o.Fragments == 0 {
				return o, fmt.Errorf("%w: outer %q has 0 fragments: use 1 or more, or leave them out", hierarchy.ErrCluster, text)
			}
		case "rule":
			o.Rule = value
		case "lr":
			o.LR, err = strconv.ParseFloat(value, 64)
		case "momentum":
			o.Momentum, err = strconv.ParseFloat(value, 64)
		case "drift":
			if o.Drift, err = strconv.ParseFloat(value, 64); err == nil && o.Drift == 0 {
				return o, fmt.Errorf("%w: outer %q has a drift of 0: use more, such as 0.02, or leave it out", hierarchy.ErrCluster, text)
			}
		default:
			return o, fmt.Errorf("%w: outer %q has no %q: use every, fragments, rule, lr, momentum and drift", hierarchy.ErrCluster, text, key)
		}
		if err != nil {
			return o, fmt.Errorf("%w: outer %q: invalid number %q", hierarchy.ErrCluster, text, part)
		}
	}
	lr, momentum := 0.7, 0.9
	if o.Rule == SGD {
		lr, momentum = 1, 0
	}
	if !given["lr"] {
		o.LR = lr
	}
	if !given["momentum"] {
		o.Momentum = momentum
	}
	return o, o.Check()
}
