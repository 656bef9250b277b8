package policy

import (
	"fmt"
	"math"
	"testing"

	"pgregory.net/rapid"
)

// drawSpec draws a policy that n workers can run.
func drawSpec(t *rapid.T, n int, label string) Spec {
	number := func(name string, low, high int) int { return rapid.IntRange(low, high).Draw(t, label+" "+name) }
	var text string
	switch kind(number("kind", 0, len(kinds)-1)) {
	case bspKind:
		text = "bsp"
	case aspKind:
		text = "asp"
	case sspKind:
		text = fmt.Sprintf("ssp:s=%d", number("s", 0, 4))
	case lagTunerKind:
		lower := number("sl", 0, 3)
		reading := rapid.SampledFrom([]string{"strict", "literal", "loose"}).Draw(t, label+" reading")
		text = fmt.Sprintf("lagtuner:sl=%d,su=%d,reading=%s", lower, lower+number("more", 0, 6), reading)
	case kBSPKind:
		text = fmt.Sprintf("k-bsp:k=%d", number("k", 1, n))
	case kBatchBSPKind:
		text = fmt.Sprintf("k-batch-bsp:k=%d", number("k", 1, n))
	case kASPKind:
		text = fmt.Sprintf("k-asp:k=%d", number("k", 1, n))
	case kBatchASPKind:
		text = fmt.Sprintf("k-batch-asp:k=%d", number("k", 1, n))
	case softsyncKind:
		factor := rapid.SampledFrom([]string{"on", "off"}).Draw(t, label+" factor")
		text = fmt.Sprintf("softsync:m=%d,factor=%s", number("m", 1, n), factor)
	case backupKind:
		text = fmt.Sprintf("backup:b=%d", number("b", 0, n-1))
	case switchKind:
		text = fmt.Sprintf("strategy-switch:at=0.5,steps=%d", number("steps", 1, 12))
	}
	spec, err := Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return spec
}

// gradient is one push of one incarnation of a worker.
type gradient struct {
	w, incarnation int
	step           uint64
}

// watch holds a runner to what is true of all policies.
type watch struct {
	*rapid.T
	r       *Runner
	born    []int // incarnations
	pending map[gradient]bool
	// forgotten are gradients of lost workers, and of those who had their ranks before. The latter may still be decided.
	forgotten map[gradient]bool
}

func (c *watch) acts(acts []Act) {
	for _, a := range acts {
		switch a.Kind {
		case Apply:
			sum := 0.0
			for _, p := range a.Parts {
				c.settle(p.W, p.Step)
				sum += p.Weight
			}
			if sum > 1+1e-9 || sum <= 0 || len(a.Parts) == 0 || !(a.Rate > 0 && a.Rate <= 1) {
				c.Fatalf("%v has weights that sum to %v", a, sum)
			}
		case Drop:
			c.settle(a.W, a.Step)
		case Release:
			if !c.r.Live(a.W) {
				c.Fatalf("%v, who is no member", a)
			}
		}
	}
}

// settle takes a gradient from those that are undecided.
func (c *watch) settle(w int, step uint64) {
	for _, open := range []map[gradient]bool{c.pending, c.forgotten} {
		for g := range open {
			if g.w == w && g.step == step {
				delete(open, g)
				return
			}
		}
	}
	c.Fatalf("%s is decided twice, or was never pushed", part(w, step))
}

func (c *watch) someoneGoesOn() {
	live, going := 0, 0
	for w := range c.r.n {
		if c.r.Live(w) {
			live++
			if !c.r.Held(w) {
				going++
			}
		}
	}
	if live > 0 && going == 0 {
		c.Fatalf("all are held: %s", picture(c.r))
	}
}

func (c *watch) bounds() {
	bound := -1.0
	switch s := c.r.Spec(); {
	case s.kind == sspKind:
		bound = s.values[0]
	case s.kind == lagTunerKind && Reading(s.values[2]) == Strict:
		bound = s.values[1]
	case s.kind == bspKind:
		bound = 0
	}
	if bound < 0 {
		return
	}
	low, begun := uint64(math.MaxUint64), uint64(0)
	for w := range c.r.n {
		if c.r.policy.Live(w) {
			low = min(low, c.r.policy.Clock(w))
			if !c.r.Held(w) {
				begun = max(begun, c.r.policy.Clock(w))
			}
		}
	}
	if begun > low && float64(begun-low) > bound {
		c.Fatalf("a step is begun %d ahead, above the bound: %s", begun-low, picture(c.r))
	}
}

func TestAnyTimelineKeepsWhatMustHold(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 8).Draw(t, "n")
		spec := drawSpec(t, n, "first")
		r, err := NewRunner(spec, n)
		if err != nil {
			t.Fatal(err)
		}
		// The shadow's clock runs at half the speed from another start.
		shadow, err := NewRunner(spec, n)
		if err != nil {
			t.Fatal(err)
		}
		c := &watch{T: t, r: r, born: make([]int, n), pending: make(map[gradient]bool), forgotten: make(map[gradient]bool)}
		now := int64(0)
		both := func(e Event) {
			before := make([]uint64, n)
			for w := range n {
				before[w] = r.Allowed(w)
			}
			acts, err := r.On(e, nil)
			if err != nil {
				t.Fatalf("%+v: %v", e, err)
			}
			e.At = 2*e.At + 5
			same, err := shadow.On(e, nil)
			if err != nil || fmt.Sprint(acts) != fmt.Sprint(same) {
				t.Fatalf("%+v: %v, but the shadow does %v, %v", e, acts, same, err)
			}
			c.acts(acts)
			for w := range n {
				if e.Kind != Join && r.Live(w) && r.Allowed(w) < before[w] && before[w] != Unbounded {
					t.Fatalf("worker %d was allowed %d and now %d", w, before[w], r.Allowed(w))
				}
			}
			c.someoneGoesOn()
			c.bounds()
		}
		for w := range n {
			both(Event{Kind: Join, W: w})
		}
		for range rapid.IntRange(1, 120).Draw(t, "events") {
			now = max(0, now+rapid.Int64Range(-2, 20).Draw(t, "dt"))
			w := rapid.IntRange(0, n-1).Draw(t, "worker")
			switch kind := rapid.IntRange(0, 19).Draw(t, "event"); {
			case kind == 0:
				next := drawSpec(t, n, "next")
				acts, err := r.Change(next, now, nil)
				same, alsoErr := shadow.Change(next, 2*now+5, nil)
				if (err == nil) != (alsoErr == nil) || fmt.Sprint(acts) != fmt.Sprint(same) {
					t.Fatalf("%v, %v, but the shadow does %v, %v", acts, err, same, alsoErr)
				}
				c.acts(acts)
				c.someoneGoesOn()
			case !r.Live(w):
				c.born[w]++
				both(Event{Kind: Join, W: w, At: now})
			case kind == 1:
				for g := range c.pending {
					if g.w == w {
						delete(c.pending, g)
						if g.incarnation < c.born[w] {
							c.forgotten[g] = true
						}
					}
				}
				both(Event{Kind: Leave, W: w, At: now})
			case kind == 2:
				both(Event{Kind: Finish, W: w, At: now})
			case kind == 3:
				both(Event{Kind: Loss, W: w, At: now, Value: rapid.Float64().Draw(t, "loss")})
			case !r.Held(w):
				step := r.Clock(w)
				if f := r.floor[w]; f < step && rapid.Bool().Draw(t, "despite the cancel") {
					step = f
				}
				c.pending[gradient{w, c.born[w], step}] = true
				both(Event{Kind: Push, W: w, Step: step, At: now, Tau: rapid.Uint64Range(0, 2).Draw(t, "tau")})
			}
		}
	})
}

// TestStalenessStaysBelowItsBound drives workers of drawn speeds, and measures τ as the aggregator would.
func TestStalenessStaysBelowItsBound(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(2, 6).Draw(t, "n")
		s := rapid.IntRange(0, 4).Draw(t, "s")
		text := fmt.Sprintf("ssp:s=%d", s)
		if rapid.Bool().Draw(t, "lagtuner") {
			text = fmt.Sprintf("lagtuner:sl=%d,su=%d", rapid.IntRange(0, s).Draw(t, "sl"), s)
		}
		spec, err := Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		r, err := NewRunner(spec, n)
		if err != nil {
			t.Fatal(err)
		}
		version := make([]uint64, n)
		for w := range n {
			if _, err := r.On(Event{Kind: Join, W: w}, nil); err != nil {
				t.Fatal(err)
			}
		}
		for i := range rapid.IntRange(1, 150).Draw(t, "pushes") {
			w := rapid.IntRange(0, n-1).Draw(t, "worker")
			if r.Held(w) {
				continue
			}
			tau := r.Updates() - version[w]
			if tau > uint64((n-1)*(2*s+1)) {
				t.Fatalf("%v: a gradient is %d updates old", spec, tau)
			}
			was := make([]bool, n)
			for o := range n {
				was[o] = r.Held(o) || o == w
			}
			if _, err := r.On(Event{W: w, Step: r.Clock(w), At: int64(i * 3), Tau: tau}, nil); err != nil {
				t.Fatal(err)
			}
			for o := range n {
				if was[o] && !r.Held(o) {
					version[o] = r.Updates()
				}
			}
		}
	})
}

func TestDecisionsOfStreamPoliciesAllocateOnlyTheirParts(t *testing.T) {
	r, err := NewRunner(mustParse(t, "ssp:s=none"), 4)
	if err != nil {
		t.Fatal(err)
	}
	for w := range 4 {
		if _, err := r.On(Event{Kind: Join, W: w}, nil); err != nil {
			t.Fatal(err)
		}
	}
	acts := make([]Act, 0, 16)
	if got := testing.AllocsPerRun(100, func() {
		if acts, err = r.On(Event{W: 1, Step: r.Clock(1)}, acts[:0]); err != nil {
			t.Fatal(err)
		}
	}); got > 1 {
		t.Errorf("%v allocations for a push", got)
	}
}
