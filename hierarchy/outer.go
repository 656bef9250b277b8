package hierarchy

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// Outer is how racks meet, and train on their own in between (DiLoCo, arXiv 2311.08105). Each rack runs the job's optimizer on its
// own workers' gradients. Every so many steps it hands up how far it has come since the last meeting; the mean of that over
// the racks, weighted by their workers, is the gradient of an outer optimizer, and its result becomes every rack's parameters.
//
// The zero Outer has no meetings: racks add their gradients in every step.
type Outer struct {
	Every     int    // steps from one meeting of a chunk to the next
	Fragments int    // parts of the model, each of which meets at a step of its own; 0: 1
	Rule      string // sgd or nesterov
	LR        float64
	Momentum  float64
	// Quorum is how many racks it takes to hold a meeting; 0: all. Those that come no later than Grace after the last of so many
	// take part, too. The others miss it.
	Quorum int
	Grace  time.Duration
}

// The rules of an outer optimizer.
const (
	OuterSGD      = "sgd"
	OuterNesterov = "nesterov"
)

// Limits of what racks can meet by.
const (
	maxEvery           = 1 << 20 // a chunk's steps are counted in 32 bits
	maxQuorumFragments = 1 << 10 // rack 0 keeps a list of who has come to each
	defaultGrace       = time.Second
	maxGrace           = time.Hour
)

// Check returns why racks cannot meet so.
func (o Outer) Check() error {
	switch {
	case o == Outer{}:
		return nil
	case o.Every < 1 || o.Every > maxEvery:
		return fmt.Errorf("%w: an outer step every %d steps: use 1 to %d", ErrCluster, o.Every, maxEvery)
	case o.Fragments < 0 || o.Fragments > o.Every:
		return fmt.Errorf("%w: %d fragments in the %d steps between outer steps: use 1 to %d", ErrCluster, o.Fragments, o.Every, o.Every)
	case o.Rule != OuterSGD && o.Rule != OuterNesterov:
		return fmt.Errorf("%w: outer optimizer %q: use %s or %s", ErrCluster, o.Rule, OuterSGD, OuterNesterov)
	case !(float32(o.LR) > 0) || math.IsInf(float64(float32(o.LR)), 0):
		return fmt.Errorf("%w: an outer learning rate of %v: use one above 0 that an f32 holds, such as 0.7", ErrCluster, o.LR)
	case !(o.Momentum >= 0 && float32(o.Momentum) < 1) || o.Momentum > 0 && float32(o.Momentum) == 0:
		return fmt.Errorf("%w: an outer momentum of %v: use one from 0 up to, but not, 1 that an f32 holds", ErrCluster, o.Momentum)
	case o.Rule == OuterNesterov && o.Momentum == 0:
		return fmt.Errorf("%w: outer optimizer nesterov without momentum: give one, such as 0.9, or use sgd", ErrCluster)
	case o.Quorum == 0 && o.Grace != 0:
		return fmt.Errorf("%w: a grace of %v without a quorum, which it follows: give a quorum, or leave it out", ErrCluster, o.Grace)
	case o.Grace < 0 || o.Grace > maxGrace:
		return fmt.Errorf("%w: a grace of %v: use 0s to %v", ErrCluster, o.Grace, maxGrace)
	case o.Quorum < 0:
		return fmt.Errorf("%w: a quorum of %d: use more than half of the racks", ErrCluster, o.Quorum)
	case o.Quorum > 0 && o.Fragments > maxQuorumFragments:
		return fmt.Errorf("%w: %d fragments with a quorum: use 1 to %d", ErrCluster, o.Fragments, maxQuorumFragments)
	}
	return nil
}

// CheckRacks returns why so many racks cannot meet so.
func (o Outer) CheckRacks(racks int) error {
	if o.Quorum != 0 && (2*o.Quorum <= racks || o.Quorum > racks) {
		return fmt.Errorf("%w: a quorum of %d of %d racks: use %d to %d, more than half, so that no two meetings are of different racks",
			ErrCluster, o.Quorum, racks, racks/2+1, racks)
	}
	return nil
}

// Due reports whether a chunk's step, counted from 1, is one at which racks meet. Chunks belong to fragments in turns, so that all
// fragments have as many bytes, and the fragments' steps are spread evenly.
func (o Outer) Due(chunk int, step uint32) bool { return (int(step)+o.offset(chunk))%o.Every == 0 }

// Meetings returns how many meetings a chunk has come to by the end of a step.
func (o Outer) Meetings(chunk int, step uint32) uint32 {
	return uint32((int(step) + o.offset(chunk)) / o.Every)
}

// Fragment returns the fragment that a chunk belongs to.
func (o Outer) Fragment(chunk int) int { return chunk % max(o.Fragments, 1) }

// offset is how many steps ahead of the last fragment a chunk meets.
func (o Outer) offset(chunk int) int { return o.Fragment(chunk) * o.Every / max(o.Fragments, 1) }

func (o Outer) String() string {
	if o == (Outer{}) {
		return "none"
	}
	text := fmt.Sprintf("every=%d,fragments=%d,rule=%s,lr=%v,momentum=%v", o.Every, max(o.Fragments, 1), o.Rule, o.LR, o.Momentum)
	if o.Quorum > 0 {
		text += fmt.Sprintf(",quorum=%d,grace=%v", o.Quorum, o.Grace)
	}
	return text
}

// ParseOuter reads what [Outer.String] writes. Parts may be missing: there is one fragment, and the optimizer is nesterov with a
// learning rate of 0.7 and a momentum of 0.9, or sgd with 1 and 0. A quorum has a grace of a second.
func ParseOuter(text string) (Outer, error) {
	if text == "" || text == "none" {
		return Outer{}, nil
	}
	o := Outer{Fragments: 1, Rule: OuterNesterov}
	given := map[string]bool{}
	for part := range strings.SplitSeq(text, ",") {
		key, value, _ := strings.Cut(part, "=")
		if given[key] {
			return o, fmt.Errorf("%w: outer %q gives %s twice: give it once", ErrCluster, text, key)
		}
		given[key] = true
		var err error
		switch key {
		case "every":
			o.Every, err = strconv.Atoi(value)
		case "fragments":
			if o.Fragments, err = strconv.Atoi(value); err == nil && o.Fragments == 0 {
				return o, fmt.Errorf("%w: outer %q has 0 fragments: use 1 or more, or leave them out", ErrCluster, text)
			}
		case "rule":
			o.Rule = value
		case "lr":
			o.LR, err = strconv.ParseFloat(value, 64)
		case "momentum":
			o.Momentum, err = strconv.ParseFloat(value, 64)
		case "quorum":
			if o.Quorum, err = strconv.Atoi(value); err == nil && o.Quorum == 0 {
				return o, fmt.Errorf("%w: outer %q has a quorum of 0: use more than half of the racks, or leave it out", ErrCluster, text)
			}
		case "grace":
			if o.Grace, err = time.ParseDuration(value); err != nil {
				return o, fmt.Errorf("%w: outer %q: %q is no time: use one such as grace=2s", ErrCluster, text, part)
			}
		default:
			return o, fmt.Errorf("%w: outer %q has no %q: use every, fragments, rule, lr, momentum, quorum and grace", ErrCluster, text, key)
		}
		if err != nil {
			return o, fmt.Errorf("%w: outer %q: %q is no number", ErrCluster, text, part)
		}
	}
	lr, momentum := 0.7, 0.9
	if o.Rule == OuterSGD {
		lr, momentum = 1, 0
	}
	if !given["lr"] {
		o.LR = lr
	}
	if !given["momentum"] {
		o.Momentum = momentum
	}
	if o.Quorum != 0 && !given["grace"] {
		o.Grace = defaultGrace
	}
	return o, o.Check()
}
