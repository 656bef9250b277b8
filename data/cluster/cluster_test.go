package cluster

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"runtime/metrics"
	"slices"
	"strings"
	"testing"

	"gonum.org/v1/gonum/mat"
	"gonum.org/v1/gonum/stat"
	"pgregory.net/rapid"
)

// rowsOf returns rows as a stream of batches.
func rowsOf(x []float64, width, batch int) Rows {
	return func(f func([]float64) error) error {
		for part := range slices.Chunk(x, batch*width) {
			if err := f(slices.Clone(part)); err != nil {
				return err
			}
		}
		return nil
	}
}

func groupsOf(t interface{ Fatal(...any) }, rows Rows, width int, cfg Config) (groups []int, axes int) {
	axes, err := Divide(rows, width, cfg, func(g int) error { groups = append(groups, g); return nil })
	if err != nil {
		t.Fatal(err)
	}
	return groups, axes
}

// groupsOfSample divides as Divide does, with k-means on a sample of that many rows.
func groupsOfSample(t *testing.T, rows Rows, width int, cfg Config, sample int) (groups []int) {
	_, err := divide(rows, width, cfg, sample, func(g int) error { groups = append(groups, g); return nil })
	if err != nil {
		t.Fatal(err)
	}
	return groups
}

// squares returns the sum of squares of rows about the means of their groups.
func squares(x []float64, width int, groups []int) (sum float64) {
	means, counts := map[int][]float64{}, map[int]float64{}
	for i, g := range groups {
		if means[g] == nil {
			means[g] = make([]float64, width)
		}
		counts[g]++
		for j := range width {
			means[g][j] += (x[i*width+j] - means[g][j]) / counts[g]
		}
	}
	for i, g := range groups {
		for j := range width {
			sum += math.Pow(x[i*width+j]-means[g][j], 2)
		}
	}
	return sum
}

// On all axes, groups are such that no row is nearer to another group's mean: where Lloyd ends.
func TestGroupsAreStableUnderLloyd(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		width, n := rapid.IntRange(1, 4).Draw(t, "width"), rapid.IntRange(1, 40).Draw(t, "rows")
		x := make([]float64, n*width)
		for i := range x {
			x[i] = rapid.Float64Range(-9, 9).Draw(t, "x") + 1e6
		}
		k := rapid.IntRange(1, min(n, 5)).Draw(t, "k")
		groups, _ := groupsOf(t, rowsOf(x, width, rapid.IntRange(1, 9).Draw(t, "batch")), width,
			Config{K: k, Axes: width, Seed: rapid.Uint64().Draw(t, "seed")})
		if len(groups) != n {
			t.Fatalf("%d rows of %d have a group", len(groups), n)
		}
		means, counts := make([][]float64, k), make([]float64, k)
		for i, g := range groups {
			if counts[g]++; means[g] == nil {
				means[g] = make([]float64, width)
			}
			for j := range width {
				means[g][j] += x[i*width+j]
			}
		}
		for i, g := range groups {
			near := func(g int) (d float64) {
				for j := range width {
					d += math.Pow(x[i*width+j]-means[g][j]/counts[g], 2)
				}
				return d
			}
			for other := range k {
				if counts[other] > 0 && near(other) < near(g)-1e-6 {
					t.Fatalf("row %d is %g from its group's mean, and %g from that of group %d", i, near(g), near(other), other)
				}
			}
		}
	})
}

// With as many groups as places, each place is a group: squares are 0, the least that any division has.
func TestEveryPlaceIsAGroup(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		k := rapid.IntRange(1, 6).Draw(t, "k")
		var x []float64
		for i := range 30 {
			x = append(x, float64(i%k)*10, float64(i%k*3))
		}
		groups, _ := groupsOf(t, rowsOf(x, 2, 7), 2, Config{K: k, Axes: 2, Seed: rapid.Uint64().Draw(t, "seed")})
		for i, g := range groups {
			for h, other := range groups {
				if same := x[2*i] == x[2*h] && x[2*i+1] == x[2*h+1]; same != (g == other) {
					t.Fatalf("rows %d and %d of %v are in groups %d and %d", i, h, x, g, other)
				}
			}
		}
	})
}

// The axes are those of the covariance's whole decomposition, up to their signs, whether they are few of the features or all.
func TestAxesAreThoseOfTheCovariance(t *testing.T) {
	for _, c := range []struct{ rows, width, axes int }{{100, 6, 6}, {120, 80, 30}, {40, 100, 20}, {100, 90, 60}} {
		r := rand.New(rand.NewPCG(1, 2))
		x, turn := mat.NewDense(c.rows, c.width, nil), mat.NewDense(c.width, c.width, nil)
		turn.Apply(func(int, int, float64) float64 { return r.NormFloat64() }, turn)
		x.Apply(func(_, k int, _ float64) float64 { return r.NormFloat64() * math.Pow(0.9, float64(k)) }, x)
		x.Mul(x, turn)
		x.Apply(func(_, k int, v float64) float64 { return v + 1e3*float64(k%3) }, x)
		var covariance mat.SymDense
		stat.CovarianceMatrix(&covariance, x, nil)
		var e mat.EigenSym
		var want mat.Dense
		e.Factorize(&covariance, true)
		e.VectorsTo(&want)
		cfg := Config{Axes: c.axes, Step: func(string, float64) error { return nil }}
		a, y, err := analyse(slices.Clone(x.RawMatrix().Data), c.width, cfg)
		if err != nil || len(y) != c.rows*c.axes {
			t.Fatalf("%+v: %d places, %v", c, len(y), err)
		}
		for k := range c.axes {
			if cosine := mat.Dot(a.vectors.ColView(k), want.ColView(c.width-1-k)); math.Abs(math.Abs(cosine)-1) > 1e-5 {
				t.Errorf("%+v: axis %d has cosine %.9f to the covariance's", c, k, cosine)
			}
		}
		for i, v := range a.project(nil, x.RawMatrix().Data) {
			if math.Abs(v-y[i]) > 1e-8 {
				t.Fatalf("%+v: place %d is %g, and was %g", c, i, v, y[i])
			}
		}
	}
}

// Any stage ends with the error of a step.
func TestStagesAreInterrupted(t *testing.T) {
	stop, seen := errors.New("stop"), map[string]bool{}
	x := make([]float64, 3000*2)
	for i := range x {
		x[i] = float64(i * i % 101)
	}
	for last := ""; ; {
		_, err := divide(rowsOf(x, 2, 100), 2, Config{K: 3, Step: func(stage string, done float64) error {
			if done < 0 || done > 1 {
				t.Errorf("%s: %v is done", stage, done)
			}
			if seen[stage] {
				return nil
			}
			seen[stage], last = true, stage
			return stop
		}}, 500, func(int) error { return nil })
		if err == nil {
			break
		}
		if err != stop {
			t.Fatal(last, err)
		}
	}
	if len(seen) != 3 {
		t.Errorf("stages %v", seen)
	}
}

func TestAxesHaveNineTenthsOfTheVariance(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for _, c := range []struct {
		deviations []float64
		want       int
	}{{[]float64{10, 1, 1, 1}, 1}, {[]float64{3, 3, 3, 0.1}, 3}, {slices.Repeat([]float64{1}, 60), 50}, {[]float64{0, 0}, 1}} {
		var x []float64
		for range 2000 {
			for _, d := range c.deviations {
				x = append(x, d*r.NormFloat64())
			}
		}
		if _, axes := groupsOf(t, rowsOf(x, len(c.deviations), 100), len(c.deviations), Config{K: 1}); axes != c.want {
			t.Errorf("deviations %v have %d axes, not %d", c.deviations, axes, c.want)
		}
	}
}

// Five rows of 100000, of which the sample has none with these seeds, are a group of their own.
func TestSparseGroupsBesideTheSampleAreFound(t *testing.T) {
	const n, width = 100000, 4
	for seed := range uint64(2) {
		r := rand.New(rand.NewPCG(seed, 1))
		x := make([]float64, n*width)
		for i := range x {
			x[i] = r.NormFloat64() + 12*float64(i/width%3)*float64(i%2)
		}
		sparse := []int{17, 40000, 40001, 77777, 99999}
		for _, row := range sparse {
			for j := range width {
				x[row*width+j] = 300 + r.NormFloat64()
			}
		}
		groups := groupsOfSample(t, rowsOf(x, width, 1000), width, Config{K: 6, Seed: seed}, 500)
		count := 0
		for _, g := range groups {
			if g == groups[17] {
				count++
			}
		}
		for _, row := range sparse {
			if groups[row] != groups[17] || count != len(sparse) {
				t.Errorf("seed %d: row %d is in group %d, not %d, which has %d rows", seed, row, groups[row], groups[17], count)
			}
		}
		all := groupsOfSample(t, rowsOf(x, width, 1000), width, Config{K: 6, Seed: seed}, 5000)
		if few, many := squares(x, width, groups), squares(x, width, all); few > 2*many {
			t.Errorf("seed %d: squares %g from 500 rows, %g from 5000", seed, few, many)
		}
	}
}

func TestGroupsOfOneSeedAreTheSame(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	x := make([]float64, 3000*3)
	for i := range x {
		x[i] = r.NormFloat64()
	}
	var before []int
	for i, seed := range []uint64{1, 1, 2} {
		groups := groupsOfSample(t, rowsOf(x, 3, 100), 3, Config{K: 5, Seed: seed}, 200)
		if slices.Equal(groups, before) != (i == 1) {
			t.Errorf("division %d, of seed %d, is that of the one before: %v", i, seed, slices.Equal(groups, before))
		}
		before = groups
	}
}

func TestGroupsThatCannotBeAreRefused(t *testing.T) {
	stop := errors.New("stop")
	five := rowsOf([]float64{1, 2, 3, 4, 5}, 1, 2)
	for _, c := range []struct {
		rows  Rows
		width int
		cfg   Config
		want  string
	}{
		{five, 1, Config{K: 6}, "6 groups of 5 rows: use 1 to 5"},
		{five, 1, Config{K: 0}, "0 groups"}, {five, 1, Config{K: -1}, "-1 groups"},
		{five, 1, Config{K: MaxK + 1}, "use 1 to 4096"}, {five, MaxFeatures + 1, Config{K: 1}, "4097 features: at most 4096"},
		{five, 1, Config{K: 1, Axes: 2}, "2 principal axes of 1 features: use 1 to 1"},
		{func(func([]float64) error) error { return stop }, 1, Config{K: 1}, "stop"},
		{rowsOf([]float64{1e200, -1e200, 3, 1}, 2, 2), 2, Config{K: 1}, "too large"},
	} {
		_, err := Divide(c.rows, c.width, c.cfg, func(int) error { return nil })
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v, which does not have %q", c.cfg, err, c.want)
		}
	}
	if _, err := Divide(five, 1, Config{K: 2}, func(int) error { return stop }); err != stop {
		t.Error(err)
	}
	if groups, _ := groupsOf(t, rowsOf(make([]float64, 9), 1, 4), 1, Config{K: 4}); slices.Max(groups) != 0 {
		t.Errorf("equal rows are in groups %v", groups)
	}
}

// Ten times the rows take at most 1.2 times the memory.
func TestMemoryDoesNotGrowWithTheRows(t *testing.T) {
	live := func(rows int) (most float64) {
		r := rand.New(rand.NewPCG(1, 1))
		x, passed := make([]float64, 200*8), 0
		stream := func(f func([]float64) error) error {
			for range rows / 200 {
				for i := range x {
					x[i] = r.NormFloat64()
				}
				if err := f(x); err != nil {
					return err
				}
				if passed++; passed%20 == 0 {
					runtime.GC()
					bytes := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
					metrics.Read(bytes)
					most = max(most, float64(bytes[0].Value.Uint64()))
				}
			}
			return nil
		}
		if _, err := divide(stream, 8, Config{K: 5}, 1000, func(int) error { return nil }); err != nil {
			t.Fatal(err)
		}
		return most
	}
	if a, b := live(6000), live(60000); b > 1.2*a {
		t.Errorf("%.0f bytes for ten times the rows, and %.0f before", b, a)
	}
}

func BenchmarkDivide(b *testing.B) {
	for _, c := range []struct{ rows, width, k int }{{100000, 16, 20}, {20000, 784, 20}, {5000, 3072, 20}} {
		b.Run(fmt.Sprintf("rows=%d/features=%d/k=%d", c.rows, c.width, c.k), func(b *testing.B) {
			r := rand.New(rand.NewPCG(1, 1))
			x := make([]float64, c.rows*c.width)
			for i := range x {
				x[i] = r.NormFloat64() + float64(i/c.width%7)*float64(i%3)
			}
			for b.Loop() {
				if _, err := Divide(rowsOf(x, c.width, 128), c.width, Config{K: c.k}, func(int) error { return nil }); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
