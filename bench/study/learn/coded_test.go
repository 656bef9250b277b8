package learn

import (
	"math"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/rackweave/rackweave/bench/study"
	"github.com/rackweave/rackweave/bench/study/task"
)

// settingOf returns a setting of a training in a way.
func settingOf(t *testing.T, c coded, way string, rate float64) codedSetting {
	t.Helper()
	s, err := parseScheme(way)
	if err != nil {
		t.Fatal(err)
	}
	return codedSetting{coded: c, scheme: s, rate: rate, seed: 1}
}

func trainCoded(t *testing.T, c coded, way string, rate float64) study.Outcome {
	t.Helper()
	o, err := settingOf(t, c, way, rate).train(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// shortly returns a training of fewer steps.
func shortly(c coded, steps int) coded {
	c.steps, c.every = steps, steps
	return c
}

// Images that every worker has alike hide a codec's bias; those of few digits do not.
func TestSkewedDigitsShowWhatFeedbackIsFor(t *testing.T) {
	oneGoroutine(t)
	c := shortly(onDigits(true), 150)
	f32 := trainCoded(t, c, "none", 0.05)
	if f32.Up != 32 || f32.Down != 32 || f32.Accuracy < 94 {
		t.Fatalf("f32 sends %v bits, receives %v, and recognises %v", f32.Up, f32.Down, f32.Accuracy)
	}
	for way, want := range map[string]struct {
		up, down float64
		within   float64 // of f32's accuracy. If negative, it must be worse than that
	}{
		"int8": {8.25, 32, 1}, "int4": {4.25, 32, 1}, "topk:10%": {4.4, 32, 2}, "sign": {1.25, 32, 4},
		"int4/int8": {4.25, 8.25, 1}, "sign " + noFeedback: {1.25, 32, -3}, "topk:1% " + noFeedback: {0.66, 32, -5},
	} {
		o := trainCoded(t, c, way, 0.05)
		lost := f32.Accuracy - o.Accuracy
		if o.Up > want.up || o.Down > want.down || want.within > 0 && lost > want.within || want.within < 0 && lost < -want.within {
			t.Errorf("%s: %.2f bits up, %.2f down, want at most %.2f and %.2f; accuracy %.1f, f32's %.1f", way, o.Up, o.Down, want.up,
				want.down, o.Accuracy, f32.Accuracy)
		}
	}
}

// Raw payloads train as a loop does that knows no payloads.
func TestRawPayloadsAreTheMeanOfTheGradients(t *testing.T) {
	oneGoroutine(t)
	for _, c := range []coded{onDigits(true), withAdam(onText(false))} {
		c = shortly(c, 10)
		got := trainCoded(t, c, "none", 0.01).Curve[0]
		learner, chance := c.task(0), random(1, 2)
		params := learner.Fresh(random(1, 1))
		g := make([]float32, len(params))
		rule := newRule(c.adam, 0.01, len(params))
		shards := make([]task.Shuffled, codedWorkers)
		for w, samples := range learner.Shards(codedWorkers, c.skewed) {
			shards[w].Samples = samples
		}
		for range c.steps {
			sum := make([]float32, len(params))
			for w := range shards {
				learner.Gradient(params, g, shards[w].Draw(chance, c.batch))
				for i, v := range g {
					sum[i] += v / codedWorkers
				}
			}
			rule.update(params, sum)
		}
		if loss, _ := learner.Test(params); got.Loss != loss || got.Step != 10 || got.Bytes != float64(10*8*len(params)) {
			t.Errorf("%s: %+v, want a loss of %v", c.name, got, loss)
		}
	}
}

func TestCompressionIsStudiedAlikeEveryTime(t *testing.T) {
	oneGoroutine(t)
	var before string
	for range 2 {
		c := shortly(onDigits(true), 20)
		c.every, c.rates = 10, []float64{0.05, 50}
		var table strings.Builder
		g := study.Group{Plans: []study.Plan{compared("digits", "Digits", c, "", "topk:1%", "int4:stochastic/int8")}}
		studies, err := g.Run(t.Context(), study.Config{Seeds: 2}, &table)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range studies[0].Rows {
			o := &r.Runs[1]
			if o.Rate != 0.05 || len(o.Curve) != 2 || o.Curve[1].Bytes != 2*o.Curve[0].Bytes || len(r.Runs) != 2 {
				t.Errorf("%+v", r)
			}
		}
		if before != "" && table.String() != before {
			t.Errorf("%s\nwas\n%s", table.String(), before)
		}
		before = table.String()
		for _, want := range []string{"# digits: Digits\n", "of kinds of their own", "\ncodec ", "\nint4:stochastic/int8 "} {
			if !strings.Contains(before, want) {
				t.Errorf("no %q in\n%s", want, before)
			}
		}
	}
}

func TestEachWayHasWordsThatAreKnown(t *testing.T) {
	known := regexp.MustCompile(`^\S+( (raw|every|drift)=[0-9.]+)?,?( without feedback| at random)?$`)
	for _, ways := range [][]string{digitWays, textWays, adamWays, aceWays, tightWays} {
		for _, way := range ways {
			if s, err := parseScheme(way); err != nil || !known.MatchString(way) || s.name != way {
				t.Errorf("%s: %+v, %v", way, s, err)
			}
		}
	}
	for way, want := range map[string]string{
		"int3": `"int3"`, "auto:budget=0.4,answers=int3": `"int3"`, "auto:budget=2": "budget is",
	} {
		s, err := parseScheme(way)
		if err == nil {
			_, err = codedSetting{coded: coded{task: digits, payload: 1024}, scheme: s}.train(t.Context())
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", way, err, want)
		}
	}
}

// A worker that takes one step and sends the difference trains as one that sends its gradient.
func TestALocalStepTrainsAsTheAggregators(t *testing.T) {
	oneGoroutine(t)
	c := shortly(onText(true), 12)
	own, its := trainCoded(t, c, "none every=1", 0.1), trainCoded(t, c, "none", 0.1)
	if d := own.Loss - its.Loss; math.Abs(d) > 1e-4 {
		t.Errorf("the losses differ by %v", d)
	}
	for way, want := range map[string]float64{"none every=3": 32.0 / 3, "none drift=1e-9": 32, "none drift=1e9": 32 * 5 / 12.0} {
		if o := trainCoded(t, c, way, 0.1); math.Abs(o.Up-want) > 1e-9 || math.Abs(o.Down-want) > 1e-9 {
			t.Errorf("%s: %v bits up, %v down, want %v", way, o.Up, o.Down, want)
		}
	}
}

func TestTheFirstGradientsAreRaw(t *testing.T) {
	oneGoroutine(t)
	c := shortly(withAdam(onText(false)), 12)
	none, int4 := trainCoded(t, c, "none", 0.01), trainCoded(t, c, "int4", 0.01)
	if all := trainCoded(t, c, "int4 raw=12", 0.01); all.Curve[0] != none.Curve[0] {
		t.Errorf("raw in all steps ends at %v, none at %v", all.Curve[0], none.Curve[0])
	}
	if o, want := trainCoded(t, c, "int4 raw=3", 0.01), (3*32+9*int4.Up)/12; math.Abs(o.Up-want) > 1e-9 {
		t.Errorf("%v bits up, want %v", o.Up, want)
	}
}

func TestControlledPayloadsKeepToTheirBudget(t *testing.T) {
	oneGoroutine(t)
	c := shortly(onText(true), 16)
	before := make(map[float64]string)
	for _, way := range tightWays {
		if !strings.HasPrefix(way, "auto:budget=0.08") {
			continue
		}
		o := trainCoded(t, c, way, 0.05)
		// The first two steps are raw: a controller proposes codecs two steps ahead.
		if most := (2 + 14*0.08) / 16 * 32; o.Up > most || o.Up < most/2 {
			t.Errorf("%s sends %.2f bits, want at most %.2f", way, o.Up, most)
		}
		before[o.Loss] = way
	}
	if len(before) < 3 {
		t.Errorf("weights or feedback make no difference: %v", before)
	}
}

// A residual is a gradient of the rate at which it was lost: when the rate falls, it grows.
func TestResidualsFollowTheRate(t *testing.T) {
	c := shortly(onText(false), 6)
	c.decay = 3
	r, err := settingOf(t, c, "sign", 0.1).start()
	if err != nil {
		t.Fatal(err)
	}
	worker := &r.workers[codedWorkers-1]
	sent := make([]float32, len(r.params))
	worker.Sent = func(first int, x []float32, _ []byte) { copy(sent[first:], x) }
	for range 4 {
		last := slices.Clone(worker.Kept)
		r.exchange()
		factor := float32(1)
		if r.step > c.decay {
			factor = 10
		}
		for i, e := range last {
			if x, got := r.g[i]+factor*e, sent[i]+worker.Kept[i]; math.Abs(float64(x-got)) > 1e-5 {
				t.Fatalf("step %d, parameter %d: %v is sent or kept of %v", r.step, i, got, x)
			}
		}
	}
	if r.workers[0].rule.rate != 0.1/10 {
		t.Errorf("the rate is %v", r.workers[0].rule.rate)
	}
}

// The claims of docs/compression.md that need many seeds.
func TestDenseCodecsLearnAsF32(t *testing.T) {
	if !long() {
		t.Skip("RACKWEAVE_LONG is not set: 20 pairs of trainings for each codec take minutes")
	}
	for _, c := range []coded{onDigits(false), onDigits(true), onText(false, 0.05, 0.1)} {
		p := compared("", "", c, "", "int8", "int4")
		s, err := p.Run(t.Context(), &study.Config{Seeds: 20})
		if err != nil {
			t.Fatal(err)
		}
		for i := range s.Rows[1:] {
			r := &s.Rows[i+1]
			if over := r.Above(r.Base, study.Accuracy); math.Abs(over.Mean())+over.Half() > 0.3 {
				t.Errorf("%s, %s: %s points over none, want at most 0.3 either way", c.name, r.Way, over.Interval("%+.2f", "%.2f"))
			}
		}
	}
}
