package optim

import (
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/rackweave/rackweave/chunk"
)

func TestEveryRuleParsesByItsName(t *testing.T) {
	for _, r := range Rules() {
		if back, err := Parse(r.String()); err != nil || back != r {
			t.Errorf("Parse(%q) = %v, %v", r, back, err)
		}
		if err := r.Check(r.Defaults()); err != nil {
			t.Errorf("the defaults of %v: %v", r, err)
		}
	}
	if slices.Contains(Rules(), LAMBApply) {
		t.Error("the second pass of LAMB is offered as a rule")
	}
	if Rule(99).Valid() || Rule(99).String() != "rule(99)" || Rule(99).Check(Hyper{}) == nil {
		t.Error("rule(99) passes for a rule")
	}
}

func TestUnknownRulesAreAnsweredWithTheNearest(t *testing.T) {
	for name, nearest := range map[string]string{
		"adam_pytorch": "adam_torch", "sgd_mxnt": "sgd_mxnet", "LAMB": "lamb", "lamb_apply": "lamb", "": "sum",
	} {
		_, err := Parse(name)
		if err == nil || !strings.Contains(err.Error(), "did you mean "+nearest+"?") || !strings.Contains(err.Error(), "rmsprop_torch") {
			t.Errorf("Parse(%q): %v, want %s and the list of names", name, err, nearest)
		}
	}
}

func TestStatesDependOnTheMomentum(t *testing.T) {
	for _, c := range []struct {
		rule     Rule
		momentum float64
		want     int
	}{
		{Sum, 0.9, 0}, {SGDMXNet, 0, 0}, {SGDMXNet, 0.9, 1}, {SGDTorch, 1e-60, 0}, {NAGMXNet, 0, 0}, {NesterovTorch, 0.9, 1},
		{AdamMXNet, 0, 2}, {AdamWTorch, 0.9, 2}, {AdagradTorch, 0, 1}, {RMSPropMXNet, 0.9, 1}, {RMSPropTorch, 0, 1},
		{RMSPropTorch, 0.9, 2}, {LAMB, 0, 2}, {LAMBApply, 0, 2}, {FtrlMXNet, 0, 2},
	} {
		if got := c.rule.States(Hyper{Momentum: c.momentum}); got != c.want {
			t.Errorf("%v with momentum %v keeps %d states, want %d", c.rule, c.momentum, got, c.want)
		}
	}
}

func TestNamedHyperParametersAreThoseThatTheRuleReads(t *testing.T) {
	for _, r := range Rules() {
		for _, p := range params {
			h, err := r.Hyper(map[string]float64{p.name: 0.25})
			if !slices.Contains(r.Takes(), p.name) {
				if err == nil || !strings.Contains(err.Error(),
					r.String()+` has no hyper-parameter "`+p.name+`": use `+strings.Join(r.Takes(), ", ")) {
					t.Errorf("%v with %s: %v", r, p.name, err)
				}
				continue
			}
			want := r.Defaults()
			*want.Field(p.name) = 0.25
			if err != nil || h != want {
				t.Errorf("%v with %s: %+v, %v; want %+v", r, p.name, h, err, want)
			}
			// A step differs if the rule reads the value.
			other := want
			*other.Field(p.name) = 0.5
			if Derive(r, want, 2) == Derive(r, other, 2) {
				t.Errorf("%v takes %s and does not read it", r, p.name)
			}
		}
	}
}

func TestHyperParametersAreTheFieldsInOrder(t *testing.T) {
	var h Hyper
	v := reflect.ValueOf(&h).Elem()
	if v.NumField() != len(params) {
		t.Fatalf("%d hyper-parameters, %d fields", len(params), v.NumField())
	}
	for i, p := range params {
		if name := v.Type().Field(i).Name; !strings.EqualFold(name, p.name) || h.fields()[i] != v.Field(i).Addr().Interface() {
			t.Errorf("hyper-parameter %d is %s, the field %s", i, p.name, name)
		}
	}
}

func TestRecordsCarryWhatTheRuleTakes(t *testing.T) {
	for r := range rules {
		names := r.Takes()
		var h, want Hyper
		for i, p := range params {
			*h.fields()[i] = float64(i+1) / 4
			if slices.Contains(names, p.name) {
				*want.fields()[i] = float64(i+1) / 4
				names = slices.DeleteFunc(names, func(s string) bool { return s == p.name })
			}
		}
		if got := r.Rounded(h); got != want {
			t.Errorf("%v: %+v comes back as %+v, want %+v", r, h, got, want)
		}
		if len(names) > 0 {
			t.Errorf("%v takes %q, which are no hyper-parameters", r, names)
		}
	}
	if got := SGDTorch.Rounded(Hyper{LR: 0.1}).LR; got != float64(float32(0.1)) {
		t.Errorf("a record carries %v for 0.1", got)
	}
	if got := AdamMXNet.Rounded(Hyper{LR: 0.003, Beta2: 0.999}); got.LR != 0.003 || got.Beta2 != 0.999 {
		t.Errorf("a record of Adam's carries %v and %v for 0.003 and 0.999", got.LR, got.Beta2)
	}
}

func TestCheckNamesTheValueAtFault(t *testing.T) {
	for _, c := range []struct {
		rule   Rule
		change func(*Hyper)
		want   string
	}{
		{SGDMXNet, func(h *Hyper) { h.LR = math.NaN() }, "lr is NaN"},
		{SGDMXNet, func(h *Hyper) { h.WD = -1 }, "wd is -1"},
		{Sum, func(h *Hyper) { h.Scale = math.Inf(1) }, "scale is +Inf"},
		{Sum, func(h *Hyper) { h.Clip = math.NaN() }, "clip is NaN"},
		{SGDTorch, func(h *Hyper) { h.Momentum = -0.1 }, "momentum is -0.1"},
		{NesterovTorch, func(h *Hyper) { h.Momentum = 0 }, "momentum is 0"},
		{NesterovTorch, func(h *Hyper) { h.Dampening = 0.5 }, "dampening 0.5"},
		{AdamTorch, func(h *Hyper) { h.Beta1 = 1 }, "beta1 is 1"},
		{LAMB, func(h *Hyper) { h.Beta2 = -0.1 }, "beta2 is -0.1"},
		{AdagradMXNet, func(h *Hyper) { h.Eps = -1e-9 }, "eps is -1e-09"},
		{RMSPropTorch, func(h *Hyper) { h.Alpha = 1 }, "alpha is 1"},
		{RMSPropTorch, func(h *Hyper) { h.Momentum = -1 }, "momentum is -1"},
		{FtrlMXNet, func(h *Hyper) { h.LR = 0 }, "lr is 0"},
		{FtrlMXNet, func(h *Hyper) { h.Lambda1 = -1 }, "lambda1 is -1"},
		{FtrlMXNet, func(h *Hyper) { h.Beta = -1 }, "beta is -1"},
	} {
		h := c.rule.Defaults()
		c.change(&h)
		if err := c.rule.Check(h); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v %+v: %v, want %q", c.rule, h, err, c.want)
		}
	}
	if err := Sum.Check(Hyper{LR: math.NaN(), Scale: 1}); err != nil {
		t.Errorf("a rule without learning rate minds one: %v", err)
	}
}

func TestClippingLimitsTheGradientNotTheStates(t *testing.T) {
	k := Derive(Sum, Hyper{Scale: 2, Clip: 3}, 1)
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	out := make([]float32, 6)
	Update(Sum, &k, nil, [MaxStates][]float32{}, [][]float32{{1, 2, -2, inf, -inf, nan}}, out)
	if want := []float32{2, 3, -3, 3, -3}; !slices.Equal(out[:5], want) || out[5] == out[5] {
		t.Errorf("%v, want %v and NaN", out, want)
	}
	k = Derive(Sum, Hyper{Scale: 1}, 1)
	Update(Sum, &k, nil, [MaxStates][]float32{}, [][]float32{{inf, -inf}}, out[:2])
	if out[0] != inf || out[1] != -inf {
		t.Errorf("without a clip %v, want ±Inf", out[:2])
	}
}

func TestLAMBTakesTheLearningRateWhereANormIsZero(t *testing.T) {
	h := LAMB.Defaults()
	for _, norms := range [][2]float64{{0, 4}, {4, 0}} {
		if got := DeriveLAMBApply(h, 1, norms[0], norms[1])[KLR]; got != float32(h.LR) {
			t.Errorf("norms %v: %v, want %v", norms, got, h.LR)
		}
	}
	if got, want := DeriveLAMBApply(h, 1, 16, 4)[KLR], 2*float32(h.LR); got != want {
		t.Errorf("norms 4 and 2: %v, want %v", got, want)
	}
}

func TestMismatchedArraysPanic(t *testing.T) {
	k := Derive(SGDMXNet, Hyper{Momentum: 0.9}, 1)
	g := [][]float32{{1, 2}}
	for name, f := range map[string]func(){
		"no w":       func() { Update(SGDMXNet, &k, nil, [MaxStates][]float32{{1, 2}}, g, nil) },
		"no state":   func() { Update(SGDMXNet, &k, []float32{1, 2}, [MaxStates][]float32{}, g, nil) },
		"short out":  func() { Update(Sum, &k, nil, [MaxStates][]float32{}, g, []float32{1}) },
		"short grad": func() { Update(Sum, &k, nil, [MaxStates][]float32{}, [][]float32{{1, 2}, {1}}, nil) },
		"no dtype":   func() { Encode(make([]byte, 4), []float32{1}, chunk.DType(0)) },
	} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				if recover() == nil {
					t.Error("did not panic")
				}
			}()
			f()
		})
	}
}

func TestSumOfSquaresIsCloseToTheExactOne(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		x := rapid.SliceOfN(rapid.Float32Range(-1e10, 1e10), 0, 100).Draw(t, "x")
		exact := 0.0
		for _, v := range x {
			exact += float64(v) * float64(v)
		}
		if got := SumSq(x); math.Abs(got-exact) > 1e-13*exact {
			t.Fatalf("%v, want about %v", got, exact)
		}
	})
}

func TestDeriveDoesNotAllocate(t *testing.T) {
	h := AdamTorch.Defaults()
	var k Scalars
	if n := testing.AllocsPerRun(100, func() { k = Derive(AdamTorch, h, 10) }); n != 0 {
		t.Errorf("allocates %v times", n)
	}
	if k[KLR] == 0 {
		t.Error("no learning rate")
	}
}
