package optim

import (
	"encoding/json"
	"math"
	"os"
	"slices"
	"testing"
)

// golden is a case written by testdata/goldens.py, which ran the framework itself.
type golden struct {
	Rule  string
	Hyper Hyper
	W     []float32
	Steps []struct{ Grad, W []float32 }
}

func goldens(t *testing.T, file string) []golden {
	t.Helper()
	text, err := os.ReadFile("testdata/" + file)
	if err != nil {
		t.Fatal(err)
	}
	var cases []golden
	if err := json.Unmarshal(text, &cases); err != nil {
		t.Fatal(err)
	}
	return cases
}

// stepper runs a rule as the aggregator does, LAMB in its two passes.
type stepper struct {
	rule   Rule
	hyper  Hyper
	w      []float32
	states [MaxStates][]float32
	step   uint32
}

func newStepper(rule Rule, h Hyper, w []float32) *stepper {
	s := &stepper{rule: rule, hyper: h, w: slices.Clone(w)}
	for i := range rule.States(h) {
		s.states[i] = make([]float32, len(w))
	}
	return s
}

func (s *stepper) next(grads ...[]float32) {
	s.step++
	k := Derive(s.rule, s.hyper, s.step)
	if s.rule != LAMB {
		Update(s.rule, &k, s.w, s.states, grads, nil)
		return
	}
	r := make([]float32, len(s.w))
	Update(LAMB, &k, s.w, s.states, grads, r)
	k = DeriveLAMBApply(s.hyper, s.step, SumSq(s.w), SumSq(r))
	Update(LAMBApply, &k, s.w, s.states, grads, nil)
}

func TestRulesFollowTheirFrameworks(t *testing.T) {
	covered := map[Rule]bool{Sum: true}
	worst := 0.0
	for _, file := range []string{"torch.json", "mxnet.json"} {
		for _, c := range goldens(t, file) {
			rule, err := Parse(c.Rule)
			if err != nil {
				t.Fatal(err)
			}
			covered[rule] = true
			if err := rule.Check(c.Hyper); err != nil {
				t.Error(err)
			}
			s := newStepper(rule, c.Hyper, c.W)
			for i, step := range c.Steps {
				s.next(step.Grad)
				for j, want := range step.W {
					off := math.Abs(float64(s.w[j]-want)) / max(math.Abs(float64(want)), 0.1)
					worst = max(worst, off)
					if off > 1e-6 {
						t.Errorf("%s %+v, step %d: w[%d] is %v, the framework's %v", c.Rule, c.Hyper, i+1, j, s.w[j], want)
					}
				}
			}
		}
	}
	t.Logf("largest relative difference: %.2g", worst)
	for _, r := range Rules() {
		if !covered[r] {
			t.Errorf("no framework was asked about %v: add a case to testdata/goldens.py", r)
		}
	}
}
