package hierarchy

import (
	"math"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// In as many steps as lie between two meetings every chunk meets once, and no step has more than one fragment.
func TestEveryChunkMeetsOnceInSoManySteps(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o := Outer{Every: rapid.IntRange(1, 40).Draw(t, "every"), Rule: OuterSGD, LR: 1}
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

func FuzzParseOuter(f *testing.F) {
	for _, text := range []string{"", "none", "every=24", "every=500,fragments=4,rule=nesterov,lr=0.7,momentum=0.9", "every=0",
		"every=1,rule=sgd", "every=24,quorum=3,grace=2s", "every=4,fragments=5", "every=2,lr=-1,x"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		o, err := ParseOuter(text)
		if err != nil {
			return
		}
		if err := o.Check(); err != nil {
			t.Fatalf("%q is read as %v: %v", text, o, err)
		}
		if again, err := ParseOuter(o.String()); err != nil || again.String() != o.String() {
			t.Fatalf("%v is read back as %v, %v", o, again, err)
		}
	})
}

func TestAnOuterOptimizerThatCannotRunIsRefused(t *testing.T) {
	for text, want := range map[string]string{
		"every=0":                            "every 0 steps",
		"fragments=2":                        "every 0 steps",
		"every=4,fragments=5":                "5 fragments in the 4 steps",
		"every=4,rule=adam":                  `outer optimizer "adam": use sgd or nesterov`,
		"every=4,lr=0":                       "learning rate of 0",
		"every=4,lr=NaN":                     "learning rate of NaN",
		"every=4,momentum=1":                 "momentum of 1",
		"every=4,momentum=0":                 "nesterov without momentum",
		"every=4,rule=sgd,momentum=NaN":      "momentum of NaN",
		"every=x":                            `"every=x" is no number`,
		"every=4,lr=-1":                      "learning rate of -1",
		"every=4,momentum=-1":                "momentum of -1",
		"every=4,lr=1e-60":                   "learning rate of 1e-60",
		"every=4,lr=1e39":                    "learning rate of 1e+39",
		"every=4,lr=1e999":                   `"lr=1e999" is no number`,
		"every=4,lr=Inf":                     "learning rate of +Inf",
		"every=4,momentum=1e-60":             "momentum of 1e-60",
		"every=4,momentum=0.9999999999":      "momentum of 0.9999999999",
		"every=4,fragments=0":                "0 fragments",
		"every=4,every=8":                    "gives every twice",
		"every=4,lr=1,lr=-1":                 "gives lr twice",
		"every=2000000":                      "use 1 to 1048576",
		"every=1048576,fragments=1048577":    "1048577 fragments in the 1048576 steps",
		"every=4,quorum=0":                   "a quorum of 0",
		"every=4,quorum=-2":                  "a quorum of -2",
		"every=4,quorum=x":                   `"quorum=x" is no number`,
		"every=4,grace=1s":                   "a grace of 1s without a quorum",
		"every=4,quorum=2,grace=-1s":         "a grace of -1s: use 0s to 1h0m0s",
		"every=4,quorum=2,grace=2":           `"grace=2" is no time: use one such as grace=2s`,
		"every=4096,quorum=2,fragments=2048": "2048 fragments with a quorum: use 1 to 1024",
		"evry=4":                             `has no "evry"`,
	} {
		if _, err := ParseOuter(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v, want %q", text, err, want)
		}
	}
}

func TestAQuorumIsMoreThanHalfOfTheRacks(t *testing.T) {
	for _, tc := range []struct {
		quorum, racks int
		want          string
	}{
		{0, 4, ""}, {3, 4, ""}, {4, 4, ""}, {1, 1, ""}, {2, 3, ""},
		{2, 4, "a quorum of 2 of 4 racks: use 3 to 4, more than half"}, {5, 4, "a quorum of 5 of 4 racks"}, {1, 2, "use 2 to 2"},
	} {
		err := Outer{Every: 4, Quorum: tc.quorum}.CheckRacks(tc.racks)
		if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%d of %d: error %v, want %q", tc.quorum, tc.racks, err, tc.want)
		}
	}
}

// Racks that meet in every step take a step of racks that add gradients; the less often they meet, the less crosses the core and
// the sooner they are, down to racks alone.
func TestPredictionsOfRacksThatMeetLieBetweenThoseOfOthers(t *testing.T) {
	c := Cluster{Racks: 4, Workers: 8, WorkerNIC: 1e9, AggregatorNIC: 8e9, Uplink: 5e8, RackLatency: 1e-6, CoreLatency: 1e-5,
		FoldRate: 2e10}
	const model, chunk = 1e8, 32768
	alone := c
	alone.Racks = 1
	least := alone.Predict(Sharded, model, chunk)
	for _, s := range Shapes() {
		every := c.Predict(s, model, chunk)
		if every.Unfit != nil || s == Flat {
			continue
		}
		before := every
		for _, steps := range []int{1, 2, 8, 64} {
			seldom := c
			seldom.Outer = Outer{Every: steps, Rule: OuterSGD, LR: 1}
			p := seldom.Predict(s, model, chunk)
			if want := every.Loads[Uplink] / float64(steps); math.Abs(p.Loads[Uplink]/want-1) > 1e-9 {
				t.Errorf("%v every %d steps: %v bytes on an uplink, want %v", s, steps, p.Loads[Uplink], want)
			}
			if steps == 1 && math.Abs(p.Seconds/every.Seconds-1) > 1e-9 || p.Seconds > before.Seconds*(1+1e-9) ||
				p.Seconds < least.Seconds {
				t.Errorf("%v every %d steps: %v s, in every step %v, alone %v", s, steps, p.Seconds, every.Seconds, least.Seconds)
			}
			seldom.Outer.Fragments = min(4, steps)
			if f := seldom.Predict(s, model, chunk); math.Abs(f.Loads[Uplink]/p.Loads[Uplink]-1) > 1e-9 || f.Bound > p.Bound*(1+1e-9) {
				t.Errorf("%v every %d steps: in fragments %v s of bytes, at once %v", s, steps, f.Bound, p.Bound)
			}
			before = p
		}
	}
	c.Outer = Outer{Every: 2, Rule: OuterSGD, LR: 1}
	if Flat.Fits(&c) == nil {
		t.Error("shape flat fits racks that train on their own")
	}
}
