package outer

import (
	"math"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// In as many steps as lie between two meetings every chunk meets once, and no step has more than one fragment.
func TestEveryChunkMeetsOnceInSoManySteps(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o := Optimizer{Every: rapid.IntRange(1, 40).Draw(t, "every"), Rule: SGD, LR: 1}
		o.Fragments = rapid.IntRange(0, o.Every).Draw(t, "fragments")
		if err := o.Check(); err != nil {
			t.Fatal(err)
		}
		parts := max(o.Fragments, 1)
		from := uint32(1 + rapid.IntRange(0, 100).Draw(t, "from"))
		met := make([]int, parts)
		for step := from; step < from+uint32(o.Every); step++ {
			now := 0
			for chunk := range parts {
				if o.Due(chunk, step) != o.Due(chunk+parts, step) {
					t.Fatalf("chunks %d and %d of one fragment do not meet together", chunk, chunk+parts)
				}
				if o.Due(chunk, step) {
					met[chunk]++
					now++
				}
			}
			if now > 1 {
				t.Fatalf("%v: %d fragments meet in step %d", o, now, step)
			}
		}
		for chunk, n := range met {
			if n != 1 {
				t.Fatalf("%v: chunk %d meets %d times in %d steps", o, chunk, n, o.Every)
			}
		}
	})
}

// Intervals stay within their bounds. Above the threshold they halve, below half of it they grow by one step, and between they
// stay.
func TestIntervalsFollowTheDrift(t *testing.T) {
	o, inf, nan := Optimizer{Every: 4, Drift: 0.5}, float32(math.Inf(1)), float32(math.NaN())
	for _, tc := range []struct {
		interval         uint32
		distance, length float32
		want             uint32
	}{
		{0, 0, 16, 2}, {0, 100, 16, 1}, // the first
		{4, 4.1, 16, 2}, {3, 4.1, 16, 1}, {1, 4.1, 16, 1}, // above 0.5*0.5*16
		{3, 4, 16, 3}, {3, 1, 16, 3}, // to a quarter of that
		{3, 0.9, 16, 4}, {4, 0.9, 16, 4},
		{3, 0, 0, 4}, {3, 1e-30, 0, 1}, // parameters of length 0
		{4, nan, 16, 2}, {4, inf, 16, 2}, {4, inf, inf, 2}, {4, 1, nan, 2},
	} {
		if got := o.Next(tc.interval, tc.distance, tc.length); got != tc.want {
			t.Errorf("after %d steps, %v from parameters of %v, squared: %d steps, want %d", tc.interval, tc.distance, tc.length, got, tc.want)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		o := Optimizer{Every: rapid.IntRange(1, 40).Draw(t, "every"), Drift: 1}
		was := uint32(rapid.IntRange(1, o.Every).Draw(t, "was"))
		got := o.Next(was, rapid.Float32().Draw(t, "distance"), rapid.Float32().Draw(t, "length"))
		if got < 1 || got > uint32(o.Every) || got != was && got != was+1 && got != max(was/2, 1) {
			t.Fatalf("%d steps after %d", got, was)
		}
	})
}

func FuzzParse(f *testing.F) {
	for _, text := range []string{"", "none", "every=24", "every=500,fragments=4,rule=nesterov,lr=0.7,momentum=0.9", "every=0",
		"every=1,rule=sgd", "every=8,drift=0.02", "every=4,fragments=5", "every=2,lr=-1,x"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		o, err := Parse(text)
		if err != nil {
			return
		}
		if err := o.Check(); err != nil {
			t.Fatalf("%q is read as %v: %v", text, o, err)
		}
		if again, err := Parse(o.String()); err != nil || again.String() != o.String() {
			t.Fatalf("%v is read back as %v, %v", o, again, err)
		}
	})
}

func TestAnOuterOptimizerThatCannotRunIsRefused(t *testing.T) {
	for text, want := range map[string]string{
		"every=0":                         "every 0 steps",
		"fragments=2":                     "every 0 steps",
		"every=4,fragments=5":             "5 fragments in the 4 steps",
		"every=4,rule=adam":               `outer optimizer "adam": use sgd or nesterov`,
		"every=4,lr=0":                    "learning rate of 0",
		"every=4,lr=NaN":                  "learning rate of NaN",
		"every=4,momentum=1":              "momentum of 1",
		"every=4,momentum=0":              "nesterov without momentum",
		"every=4,rule=sgd,momentum=NaN":   "momentum of NaN",
		"every=x":                         `invalid number "every=x"`,
		"every=4,lr=-1":                   "learning rate of -1",
		"every=4,momentum=-1":             "momentum of -1",
		"every=4,lr=1e-60":                "learning rate of 1e-60",
		"every=4,lr=1e39":                 "learning rate of 1e+39",
		"every=4,lr=1e999":                `invalid number "lr=1e999"`,
		"every=4,lr=Inf":                  "learning rate of +Inf",
		"every=4,momentum=1e-60":          "momentum of 1e-60",
		"every=4,momentum=0.9999999999":   "momentum of 0.9999999999",
		"every=4,fragments=0":             "0 fragments",
		"every=4,every=8":                 "gives every twice",
		"every=4,lr=1,lr=-1":              "gives lr twice",
		"every=2000000":                   "use 1 to 1048576",
		"every=1048576,fragments=1048577": "1048577 fragments in the 1048576 steps",
		"every=4,quorum=3":                `has no "quorum"`,
		"evry=4":                          `has no "evry"`,
		"every=4,drift=0":                 "a drift of 0: use more, such as 0.02, or leave it out",
		"every=4,drift=-1":                "an outer drift of -1: use a part of the parameters' length, such as 0.02",
		"every=4,drift=NaN":               "an outer drift of NaN",
		"every=4,drift=inf":               "an outer drift of +Inf",
		"every=4,drift=x":                 `invalid number "drift=x"`,
		"every=4,fragments=2,drift=0.1":   "outer drift 0.1 with 2 fragments: leave them out",
	} {
		if _, err := Parse(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v, want %q", text, err, want)
		}
	}
}
