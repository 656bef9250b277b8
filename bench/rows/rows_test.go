package rows

import (
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

func TestASpecIsReadWithItsDefaults(t *testing.T) {
	for text, want := range map[string]Spec{
		Example:                     {Rows: 1_000_000, Width: 64, Touch: 10_000, Zipf: 1.1},
		"rows=1000":                 {Rows: 1000, Width: 64, Touch: 10},
		"touch=100%, rows=7":        {Rows: 7, Width: 64, Touch: 7},
		"rows=50,width=3,touch=1":   {Rows: 50, Width: 3, Touch: 1},
		"rows=10,touch=1%":          {Rows: 10, Width: 64, Touch: 1},
		"rows=200,zipf=1.3,shuffle": {Rows: 200, Width: 64, Touch: 2, Zipf: 1.3, Shuffle: true},
		"rows=200,placed":           {Rows: 200, Width: 64, Touch: 2, Placed: true},
	} {
		got, err := Parse(text)
		if err != nil || got != want {
			t.Errorf("%s: %v, %v; want %v", text, got, err, want)
		}
		if again, err := Parse(got.String()); err != nil || again != got {
			t.Errorf("%s: read again as %v, %v", got, again, err)
		}
	}
}

func TestASpecIsPrintedWithTheSettingsThatWereNotGiven(t *testing.T) {
	for text, want := range map[string]string{
		"rows=1000":                      "rows=1000,width=64,touch=10",
		Example + ",placed,shuffle":      "rows=1000000,width=64,touch=10000,zipf=1.1,shuffle,placed",
		"rows=50,width=3,touch=1,zipf=0": "rows=50,width=3,touch=1",
	} {
		if got, err := Parse(text); err != nil || got.String() != want {
			t.Errorf("%s: %v, %v; want %s", text, got, err, want)
		}
	}
}

func TestABadSpecNamesTheSettingAndTheRemedy(t *testing.T) {
	for text, want := range map[string]string{
		"":                   `unknown setting "": use rows, width`,
		"row=5":              `unknown setting "row=5": use rows, width, touch`,
		"rows=5,rows=6":      "rows is given twice",
		"rows=many":          "rows=many: use a number",
		"rows=0":             "a table of 0 rows: use 1 to",
		"rows=-1":            "a table of -1 rows: use 1 to",
		"width=0":            "a width of 0 elements: use 1 to",
		"zipf=-1":            "zipf=-1: use 0 for rows that are alike",
		"zipf=NaN":           "zipf=NaN: use 0",
		"shuffle=yes":        `unknown setting "shuffle=yes": use rows, width`,
		"placed=1":           `unknown setting "placed=1": use rows, width`,
		"rows=10,touch=0%":   "touch=0%: use a share of the 10 rows",
		"rows=10,touch=101%": "touch=101%: use a share",
		"rows=10,touch=11":   "touch=11: use a share",
		"touch=1.5":          "touch=1.5: use a share",
		"touch=NaN":          "touch=NaN: use a share",
		"touch=few":          "touch=few: use a share",
	} {
		if _, err := Parse(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v; want an error with %q", text, err, want)
		}
	}
}

func TestADrawHasDifferentRowsInOrderAndDependsOnItsArgumentsAlone(t *testing.T) {
	for _, text := range []string{"rows=100,touch=1", "rows=100,touch=30,zipf=1.3", "rows=100,touch=100%,zipf=4", "rows=1,touch=1"} {
		s, err := Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		all, alone := s.Draws(1, 0, 4), s.Draws(1, 2, 1)[0]
		for step, ids := range all[2] {
			if !slices.Equal(ids, alone[step]) {
				t.Errorf("%s: a worker draws others alone than with all workers", text)
			}
			if ids[0] < 0 || ids[len(ids)-1] >= int64(s.Rows) || len(slices.Compact(slices.Clone(ids))) != s.Touch || !slices.IsSorted(ids) {
				t.Errorf("%s: drew %v", text, ids)
			}
		}
		if differ := !slices.EqualFunc(all[0], all[2], slices.Equal); differ != (s.Touch < s.Rows) {
			t.Errorf("%s: two workers draw different rows: %v", text, differ)
		}
	}
}

// One row of a draw is row k with the probability of its weight; with 20 rows and 20000 draws a frequency strays from that by
// at most 5 of its standard deviations but once in a million.
func TestFrequenciesFollowZipfsLaw(t *testing.T) {
	const rows, draws = 20, 20_000
	for _, zipf := range []float64{0, 1.1} {
		for _, shuffle := range []bool{false, true} {
			s := Spec{Rows: rows, Width: 1, Touch: 1, Zipf: zipf, Shuffle: shuffle}
			count, total := counts(s, draws), 0.0
			if shuffle && zipf > 0 {
				if slices.IsSortedFunc(count[:5], func(a, b float64) int { return int(b - a) }) {
					t.Error("shuffled rows are in the order of their frequencies")
				}
				slices.SortFunc(count, func(a, b float64) int { return int(b - a) })
			}
			for k := range rows {
				total += math.Pow(float64(k+1), -zipf)
			}
			for k, n := range count {
				p := math.Pow(float64(k+1), -zipf) / total
				if limit := 5 * math.Sqrt(draws*p*(1-p)); math.Abs(n-draws*p) > limit && !(shuffle && k > 5) {
					t.Errorf("zipf=%v shuffle=%v: row %d was drawn %v times, want %.0f give or take %.0f", zipf, shuffle, k, n, draws*p, limit)
				}
			}
		}
	}
}

func TestNthIsThatOfTheSortedValues(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	for n := 1; n < 60; n++ {
		x := make([]float64, n)
		for i := range x {
			x[i] = float64(rng.IntN(n)) // some are equal
		}
		sorted := slices.Sorted(slices.Values(x))
		for i := range x {
			if got := nth(slices.Clone(x), i); got != sorted[i] {
				t.Errorf("value %d of %v is %v, want %v", i, x, got, sorted[i])
			}
		}
	}
}

// counts returns how often each row is in so many draws.
func counts(s Spec, draws int) []float64 {
	count := make([]float64, s.Rows)
	for _, steps := range s.Draws(7, 0, draws/Steps) {
		for _, ids := range steps {
			for _, id := range ids {
				count[id]++
			}
		}
	}
	return count
}

func BenchmarkDraw(b *testing.B) {
	s, err := Parse(Example)
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		s.Draws(1, 0, 1)
	}
}

// A row's share of 20000 draws strays from its probability by at most 5 standard deviations.
func TestFrequenciesAreProbabilitiesThatAWorkerTouchesARow(t *testing.T) {
	const draws = 20_000
	for _, text := range []string{"rows=300,touch=20,zipf=1.3,shuffle", "rows=20,touch=100%,zipf=1.1", "rows=400,touch=1%"} {
		s, err := Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		count, sum := counts(s, draws), 0.0
		for i, f := range s.Frequencies(7) {
			sum += float64(f)
			// Draws of a fixed number of rows stray a little from rows drawn on their own.
			if p := float64(f); math.Abs(count[i]/draws-p) > 0.02*p+5*math.Sqrt(p*(1-p)/draws) {
				t.Errorf("%s: row %d was touched %v times in %d draws, want %v", text, i, count[i], draws, p*draws)
			}
		}
		if math.Abs(sum-float64(s.Touch)) > 0.01*float64(s.Touch) {
			t.Errorf("%s: frequencies add up to %v", text, sum)
		}
	}
}
