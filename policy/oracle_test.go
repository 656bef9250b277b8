package policy

import (
	"fmt"
	"slices"
	"testing"
)

// The oracle decides from the whole history of pushes, each time anew and without what the machines keep. Nobody joins or leaves.

type outcome struct {
	updates []string // parts and rate of each, in order
	dropped []string
	held    []bool
}

func mustParse(t testing.TB, s string) Spec {
	t.Helper()
	spec, err := Parse(s)
	if err != nil {
		t.Fatal(err)
	}
	return spec
}

func part(w int, step uint64) string { return fmt.Sprintf("%s%d", name(w), step) }

func counts(n int, history []Event) []int {
	t := make([]int, n)
	for _, e := range history {
		t[e.W]++
	}
	return t
}

// oracle is what must have become of a history of pushes.
func oracle(spec Spec, n int, history []Event) outcome {
	switch spec.kind {
	case aspKind, sspKind:
		return oracleStale(spec, n, history)
	case lagTunerKind:
		return oracleLagTuner(spec, n, history)
	case bspKind:
		return oracleSteps(n, n, false, history)
	case kBSPKind:
		return oracleSteps(n, int(spec.values[0]), true, history)
	case backupKind:
		return oracleSteps(n, n-int(spec.values[0]), false, history)
	case kASPKind:
		return oracleBatches(n, int(spec.values[0]), true, history)
	case kBatchASPKind:
		return oracleBatches(n, int(spec.values[0]), false, history)
	}
	panic("no oracle for " + spec.String())
}

func alone(n int, history []Event) (updates []string) {
	for i, e := range history {
		updates = append(updates, fmt.Sprintf("%s rate %.4g", part(e.W, uint64(counts(n, history[:i])[e.W])), 1/float64(n)))
	}
	return updates
}

func oracleStale(spec Spec, n int, history []Event) outcome {
	o := outcome{updates: alone(n, history), held: make([]bool, n)}
	t := counts(n, history)
	for w := range n {
		o.held[w] = spec.kind == sspKind && float64(t[w]-slices.Min(t)) > spec.values[0]
	}
	return o
}

// oracleLagTuner follows the published procedure word for word.
func oracleLagTuner(spec Spec, n int, history []Event) outcome {
	lower, upper, reading := int(spec.values[0]), int(spec.values[1]), Reading(spec.values[2])
	t, r := make([]int, n), make([]int, n)
	last, interval, heldFor, heldAt := make([]int64, n), make([]int64, n), make([]int64, n), make([]int64, n)
	o := outcome{updates: alone(n, history), held: make([]bool, n)}
	awaits := make([]int, n)
	lead := func(w int) int { return t[w] - slices.Min(t) }
	slowest := func() int {
		s := -1
		for w := range n {
			if lead(w) == 0 && (s < 0 || last[w]+interval[w] > last[s]+interval[s]) {
				s = w
			}
		}
		return s
	}
	control := func(p int, now int64) int {
		limit := upper - lower
		if reading == Strict {
			limit = min(limit, upper-lead(p)+1)
		}
		s := slowest()
		if interval[s] == 0 || interval[p] == 0 {
			return 0
		}
		first := max(last[s]+interval[s], now)
		best, shortest := 0, int64(-1)
		for q := 0; q <= limit; q++ {
			mine := now + int64(q)*interval[p]
			wait := int64(-1)
			for his := first; ; his += interval[s] {
				d := max(his-mine, mine-his)
				if wait >= 0 && d > wait {
					break
				}
				wait = d
			}
			if shortest < 0 || wait < shortest {
				best, shortest = q, wait
			}
		}
		return best
	}
	now := int64(0)
	for _, e := range history {
		p := e.W
		now = max(now, e.At)
		t[p]++
		interval[p] = now - last[p] - heldFor[p]
		last[p], heldFor[p] = now, 0
		switch {
		case r[p] > 0:
			r[p]--
		case lead(p) <= lower:
		default:
			if reading == Loose || t[p] == slices.Max(t) {
				r[p] = control(p, now)
			}
			if r[p] > 0 {
				r[p]--
			} else {
				o.held[p], heldAt[p], awaits[p] = true, now, slowest()
			}
		}
		for w := range n {
			if o.held[w] && (lead(w) <= lower || reading == Loose && w != p && awaits[w] == p) {
				o.held[w], heldFor[w] = false, now-heldAt[w]
			}
		}
	}
	return o
}

func update(parts []string, rate float64) string {
	text := ""
	slices.Sort(parts)
	for _, p := range parts {
		text += p + " "
	}
	return fmt.Sprintf("%srate %.4g", text, rate)
}

func oracleSteps(n, k int, cancel bool, history []Event) outcome {
	o := outcome{held: make([]bool, n)}
	step := uint64(0)
	var in []int
	for _, e := range history {
		if e.Step < step {
			o.dropped = append(o.dropped, part(e.W, e.Step))
			continue
		}
		if in = append(in, e.W); len(in) == k {
			var parts []string
			for _, w := range in {
				parts = append(parts, part(w, step))
			}
			o.updates = append(o.updates, update(parts, 1))
			step, in = step+1, nil
		}
	}
	for _, w := range in {
		o.held[w] = true
	}
	return o
}

func oracleBatches(n, k int, wait bool, history []Event) outcome {
	o := outcome{held: make([]bool, n)}
	for i := range history {
		if i%k == k-1 {
			var parts []string
			for _, e := range history[i-k+1 : i+1] {
				parts = append(parts, part(e.W, e.Step))
			}
			o.updates = append(o.updates, update(parts, float64(k)/float64(n)))
		}
	}
	for _, e := range history[len(history)/k*k:] {
		o.held[e.W] = wait
	}
	return o
}

// observe adds what a runner did to an outcome.
func (o *outcome) observe(acts []Act) {
	for _, a := range acts {
		switch a.Kind {
		case Apply:
			var parts []string
			for _, p := range a.Parts {
				parts = append(parts, part(p.W, p.Step))
			}
			o.updates = append(o.updates, update(parts, a.Rate))
		case Drop:
			o.dropped = append(o.dropped, part(a.W, a.Step))
		}
	}
}

func (o *outcome) inspect(r *Runner) {
	o.held = make([]bool, r.n)
	for w := range r.n {
		o.held[w] = r.Held(w)
	}
}

func (o outcome) String() string {
	return fmt.Sprintf("%q, dropped %q, held %v", o.updates, o.dropped, o.held)
}

// replay runs a history from the start. It stops where a worker pushes that is held, and returns how many events were possible.
func replay(t *testing.T, spec Spec, n int, history []Event) (o outcome, r *Runner, done int) {
	t.Helper()
	r, err := NewRunner(spec, n)
	if err != nil {
		t.Fatal(err)
	}
	for w := range n {
		if _, err := r.On(Event{Kind: Join, W: w}, nil); err != nil {
			t.Fatal(err)
		}
	}
	for i := range history {
		e := &history[i]
		e.Step = r.Clock(e.W)
		if r.Held(e.W) {
			o.inspect(r)
			return o, r, i
		}
		acts, err := r.On(*e, nil)
		if err != nil {
			t.Fatalf("%v after %v: %v", spec, history[:i], err)
		}
		o.observe(acts)
	}
	o.inspect(r)
	return o, r, len(history)
}

// everyHistory calls f with every order of pushes by n workers. A worker's steps take as long as its rank says.
func everyHistory(n, length int, f func([]Event)) {
	history := make([]Event, length)
	var fill func(i int)
	fill = func(i int) {
		if i == length {
			f(history)
			return
		}
		for w := range n {
			at := int64(0)
			if i > 0 {
				at = history[i-1].At
			}
			history[i] = Event{W: w, At: at + int64(3*w+1)}
			fill(i + 1)
		}
	}
	fill(0)
}

func TestEveryShortHistoryMatchesTheOracle(t *testing.T) {
	specs := []string{
		"bsp", "asp", "ssp:s=0", "ssp:s=1", "ssp:s=2", "lagtuner:sl=0,su=1", "lagtuner:sl=0,su=3", "lagtuner:sl=1,su=2",
		"lagtuner:sl=0,su=2,reading=literal", "lagtuner:sl=0,su=2,reading=loose", "lagtuner:sl=1,su=3,reading=loose",
		"k-bsp:k=1", "k-bsp:k=2", "backup:b=0", "backup:b=1", "k-asp:k=1", "k-asp:k=2", "k-batch-asp:k=1", "k-batch-asp:k=2",
	}
	for _, text := range specs {
		t.Run(text, func(t *testing.T) {
			spec := mustParse(t, text)
			for n := 1; n <= 3; n++ {
				if spec.Check(n) != nil {
					continue
				}
				everyHistory(n, 8, func(history []Event) {
					got, _, done := replay(t, spec, n, history)
					if want := oracle(spec, n, history[:done]); got.String() != want.String() {
						t.Fatalf("after %v:\n%v, but should be\n%v", history[:done], got, want)
					}
				})
			}
		})
	}
}

func TestDegenerateCasesAreEqual(t *testing.T) {
	for _, pair := range [][2]string{
		{"k-bsp:k=3", "bsp"}, {"backup:b=0", "bsp"}, {"k-asp:k=3", "bsp"}, {"strategy-switch:at=1,steps=1000", "bsp"},
		{"ssp:s=none", "asp"}, {"k-asp:k=1", "asp"}, {"k-batch-asp:k=1", "asp"}, {"softsync:m=3,factor=off", "asp"},
		{"strategy-switch:at=0,steps=1000", "asp"}, {"softsync:m=1,factor=off", "k-batch-asp:k=3"},
		{"lagtuner:sl=2,su=2", "ssp:s=2"}, {"lagtuner:sl=0,su=0,reading=literal", "ssp:s=0"},
	} {
		a, b := mustParse(t, pair[0]), mustParse(t, pair[1])
		everyHistory(3, 8, func(history []Event) {
			one, _, done := replay(t, a, 3, history)
			other, _, alsoDone := replay(t, b, 3, history)
			if done != alsoDone || one.String() != other.String() {
				t.Fatalf("%v and %v differ after %v:\n%v\n%v", a, b, history, one, other)
			}
		})
	}
}

func TestOneWorkerIsTheSameUnderAll(t *testing.T) {
	for _, text := range []string{"asp", "ssp:s=0", "lagtuner:sl=0,su=3", "k-bsp:k=1", "k-batch-bsp:k=1", "k-asp:k=1",
		"k-batch-asp:k=1", "softsync:m=1", "backup:b=0", "strategy-switch"} {
		everyHistory(1, 5, func(history []Event) {
			one, _, _ := replay(t, mustParse(t, text), 1, history)
			if all, _, _ := replay(t, mustParse(t, "bsp"), 1, history); one.String() != all.String() {
				t.Errorf("%s does %v, bsp %v", text, one, all)
			}
		})
	}
}

func TestBoundOfNoneHoldsAsBSPDoes(t *testing.T) {
	everyHistory(3, 8, func(history []Event) {
		one, _, done := replay(t, mustParse(t, "ssp:s=0"), 3, history)
		other, _, alsoDone := replay(t, mustParse(t, "bsp"), 3, history)
		if done != alsoDone || !slices.Equal(one.held, other.held) {
			t.Fatalf("after %v: %v and %v", history, one, other)
		}
	})
}
