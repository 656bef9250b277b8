package policy

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/agnivade/levenshtein"
)

// ErrSpec is wrapped by every error about a spec.
var ErrSpec = errors.New("bad policy")

// Spec names a policy and its parameters. The zero value is bsp. Specs are comparable.
type Spec struct {
	kind   kind
	values [maxParameters]float64
}

type kind uint8

const (
	bspKind kind = iota
	aspKind
	sspKind
	lagTunerKind
	kBSPKind
	kBatchBSPKind
	kASPKind
	kBatchASPKind
	softsyncKind
	backupKind
	switchKind
)

const (
	maxParameters = 4
	maxBound      = 1e9 // of bounds and steps; far beyond use, and exact in every type
	byStaleness   = -1
	byWorkers     = 0
)

// parameter is a number, or a word that stands for one.
type parameter struct {
	name      string
	low, high float64
	whole     bool
	needed    bool
	otherwise float64
	words     []word
}

type word struct {
	name  string
	value float64
}

var rate = parameter{name: "rate", low: 1e-6, high: 1e3, otherwise: byWorkers,
	words: []word{{"1/n", byWorkers}, {"staleness", byStaleness}}}

func count(name string, low float64, words ...word) parameter {
	return parameter{name: name, low: low, high: maxBound, whole: true, needed: true, words: words}
}

// kinds lists the policies with their parameters, in the order of Spec.values.
var kinds = [...]struct {
	name       string
	parameters []parameter
}{
	bspKind: {"bsp", nil},
	aspKind: {"asp", []parameter{rate}},
	sspKind: {"ssp", []parameter{count("s", 0, word{"none", math.Inf(1)}), rate}},
	lagTunerKind: {"lagtuner", []parameter{count("sl", 0), count("su", 0), {name: "reading", low: math.Inf(1), high: math.Inf(-1),
		words: []word{{"strict", float64(Strict)}, {"literal", float64(Literal)}, {"loose", float64(Loose)}}}, rate}},
	kBSPKind:      {"k-bsp", []parameter{count("k", 1)}},
	kBatchBSPKind: {"k-batch-bsp", []parameter{count("k", 1)}},
	kASPKind:      {"k-asp", []parameter{count("k", 1)}},
	kBatchASPKind: {"k-batch-asp", []parameter{count("k", 1)}},
	softsyncKind: {"softsync", []parameter{count("m", 1), {name: "factor", low: math.Inf(1), high: math.Inf(-1), otherwise: 1,
		words: []word{{"on", 1}, {"off", 0}}}}},
	backupKind: {"backup", []parameter{count("b", 0)}},
	switchKind: {"strategy-switch", []parameter{{name: "at", low: 0, high: 1, otherwise: -1, words: []word{{"loss", -1}}},
		{name: "steps", low: 1, high: maxBound, whole: true}, {name: "below", low: 0, high: 1e6, otherwise: 1}}},
}

var asp = Spec{kind: aspKind}

// Names returns the names of the policies.
func Names() []string {
	names := make([]string, len(kinds))
	for i := range kinds {
		names[i] = kinds[i].name
	}
	return names
}

// Parse parses a spec such as "ssp:s=3" or "lagtuner:sl=3,su=15,reading=loose".
func Parse(s string) (Spec, error) {
	name, rest, _ := strings.Cut(strings.ToLower(strings.TrimSpace(s)), ":")
	k := slices.Index(Names(), name)
	if k < 0 {
		return Spec{}, fmt.Errorf("%w: there is no %q: did you mean %s? Policies are %s", ErrSpec, name, nearest(name, Names()),
			strings.Join(Names(), ", "))
	}
	spec := Spec{kind: kind(k)}
	given := make(map[string]bool)
	known := kinds[k].parameters
	names := make([]string, len(known))
	for i, p := range known {
		names[i], spec.values[i] = p.name, p.otherwise
	}
	if strings.TrimSpace(rest) != "" {
		for part := range strings.SplitSeq(rest, ",") {
			key, value, found := strings.Cut(part, "=")
			key, value = strings.TrimSpace(key), strings.TrimSpace(value)
			i := slices.Index(names, key)
			switch {
			case i < 0 && len(names) == 0:
				return Spec{}, fmt.Errorf("%w %s: it has no parameter %q: write %s alone", ErrSpec, name, key, name)
			case i < 0:
				return Spec{}, fmt.Errorf("%w %s: it has no parameter %q: did you mean %s? It has %s", ErrSpec, name, key,
					nearest(key, names), strings.Join(names, ", "))
			case given[key]:
				return Spec{}, fmt.Errorf("%w %s: %s is given twice: give it once", ErrSpec, name, key)
			case !found:
				return Spec{}, fmt.Errorf("%w %s: %s has no value: write %s=VALUE", ErrSpec, name, key, key)
			}
			v, err := known[i].read(value)
			if err != nil {
				return Spec{}, fmt.Errorf("%w %s: %w", ErrSpec, name, err)
			}
			given[key], spec.values[i] = true, v
		}
	}
	for _, p := range known {
		if p.needed && !given[p.name] {
			return Spec{}, fmt.Errorf("%w %s: %s is missing: write %s:%s=VALUE", ErrSpec, name, p.name, name, p.name)
		}
	}
	return spec, spec.check()
}

func nearest(name string, among []string) string {
	distance := func(s string) int { return levenshtein.ComputeDistance(name, s) }
	return slices.MinFunc(among, func(a, b string) int { return distance(a) - distance(b) })
}

func (p *parameter) read(s string) (float64, error) {
	var words []string
	for _, w := range p.words {
		if s == w.name {
			return w.value, nil
		}
		words = append(words, w.name)
	}
	or := strings.Join(words, " or ")
	if p.low > p.high {
		return 0, fmt.Errorf("%s is %q: use %s", p.name, s, or)
	}
	if or != "" {
		or = ", or " + or
	}
	v, err := strconv.ParseFloat(s, 64)
	switch {
	case err != nil || math.IsNaN(v) || p.whole && v != math.Trunc(v):
		what := "a number"
		if p.whole {
			what = "a whole number"
		}
		return 0, fmt.Errorf("%s is %q: use %s from %g to %g%s", p.name, s, what, p.low, p.high, or)
	case v < p.low || v > p.high:
		return 0, fmt.Errorf("%s is %s: use %g to %g%s", p.name, s, p.low, p.high, or)
	}
	return v, nil
}

// check returns an error if parameters contradict each other.
func (s Spec) check() error {
	switch v := s.values; {
	case s.kind == lagTunerKind && v[0] > v[1]:
		return fmt.Errorf("%w lagtuner: sl=%g is above su=%g: exchange them", ErrSpec, v[0], v[1])
	case s.kind == switchKind && v[0] >= 0 && v[1] == 0:
		return fmt.Errorf("%w strategy-switch: at=%g is a share of the steps, which are missing: add steps=NUMBER", ErrSpec, v[0])
	}
	return nil
}

// Check returns an error if n workers cannot run the policy.
func (s Spec) Check(n int) error {
	name, v := kinds[s.kind].name, s.values[0]
	switch s.kind {
	case kBSPKind, kBatchBSPKind, kASPKind, kBatchASPKind, softsyncKind:
		if int(v) > n {
			return fmt.Errorf("%w %s: %s=%g, but the job has %d workers: use 1 to %d", ErrSpec, name,
				kinds[s.kind].parameters[0].name, v, n, n)
		}
	case backupKind:
		if int(v) >= n {
			return fmt.Errorf("%w backup: b=%g of %d workers leaves none: use 0 to %d", ErrSpec, v, n, n-1)
		}
	}
	return nil
}

// Spares returns the number of n workers that the policy can do without, because its updates never need the gradients of all.
func (s Spec) Spares(n int) int {
	switch v := int(s.values[0]); s.kind {
	case aspKind, sspKind, lagTunerKind:
		return n - 1
	case kBSPKind, kBatchBSPKind, kASPKind, kBatchASPKind:
		return n - v
	case softsyncKind:
		return n - n/v
	case backupKind:
		return v
	}
	return 0
}

// Name returns the policy's name, without parameters.
func (s Spec) Name() string { return kinds[s.kind].name }

// Stream reports whether the policy begins by applying chunks as they arrive.
func (s Spec) Stream() bool {
	return s.kind == aspKind || s.kind == sspKind || s.kind == lagTunerKind || s.kind == switchKind && s.at() == 0
}

// String returns the text that [Parse] parses, without parameters that have their default values.
func (s Spec) String() string {
	text := kinds[s.kind].name
	for i, between := 0, ":"; i < len(kinds[s.kind].parameters); i++ {
		p := &kinds[s.kind].parameters[i]
		if v := s.values[i]; p.needed || v != p.otherwise {
			text += between + p.name + "=" + p.text(v)
			between = ","
		}
	}
	return text
}

func (p *parameter) text(v float64) string {
	for _, w := range p.words {
		if v == w.value {
			return w.name
		}
	}
	return strconv.FormatFloat(v, 'f', -1, 64)
}

// Rate returns the factor of the learning rate for a gradient of one of n workers that is applied alone, as it arrives: tau updates
// after the version on which it was computed.
func (s Spec) Rate(n int, tau uint64) float64 {
	p, value := kinds[s.kind].parameters, float64(byWorkers)
	if last := len(p) - 1; last >= 0 && p[last].name == rate.name {
		value = s.values[last]
	}
	switch value {
	case byStaleness:
		return 1 / (float64(tau) + 1) // DynSGD
	case byWorkers:
		return 1 / float64(n)
	}
	return value
}

// at returns the step at which Strategy-Switch switches, or [Unbounded] if the loss decides.
func (s Spec) at() uint64 {
	if s.values[0] < 0 {
		return Unbounded
	}
	// A share such as 0.29 of 100 steps is a hair below a whole number.
	return uint64(math.Floor(s.values[0]*s.values[1] + 1e-9))
}

// from returns the policy that decides at a step. A Strategy-Switch that is over is asp.
func (s Spec) from(step uint64) Spec {
	if s.kind == switchKind && s.at() <= step {
		return asp
	}
	return s
}

// New returns the policy for n workers whose steps begin at first. No worker has joined yet. The spec must pass [Spec.Check].
func New(s Spec, n int, first uint64) Policy {
	s = s.from(first)
	m, v := newMembers(s, n, first), s.values
	switch s.kind {
	case aspKind, sspKind:
		p := &stale{members: m, bound: Unbounded}
		if s.kind == sspKind && !math.IsInf(v[0], 1) {
			p.bound = uint64(v[0])
		}
		return p
	case lagTunerKind:
		return &lagTuner{members: m, lower: uint64(v[0]), upper: uint64(v[1]), reading: Reading(v[2]), workers: make([]lagging, n)}
	case kBSPKind:
		return newBarrier(m, int(v[0]), true)
	case kBatchBSPKind, kASPKind, kBatchASPKind:
		modes := [...]batching{kBatchBSPKind: same, kASPKind: waiting, kBatchASPKind: running}
		return &batch{members: m, k: int(v[0]), mode: modes[s.kind]}
	case softsyncKind:
		return &batch{members: m, k: n / int(v[0]), mode: running, factor: v[1] == 1}
	case switchKind:
		p := newBarrier(m, n, false)
		p.until = &trigger{at: s.at(), below: v[2]}
		return p
	}
	return newBarrier(m, n-int(v[0]), false) // backup, or bsp, which has no backup workers
}
