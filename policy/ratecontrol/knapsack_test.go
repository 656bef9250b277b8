package ratecontrol

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// formats are codecs as package codec has them, with the distortions of Gaussian values.
var formats = []Codec{
	{"topk:0.1%", func(n int) int { return 16 + 6*max(1, n/1000) }, 0.98},
	{"topk:1%", func(n int) int { return 16 + 6*max(1, n/100) }, 0.92},
	{"sign", func(n int) int { return fixed(n, 1) }, 0.36},
	{"2bit", func(n int) int { return fixed(n, 2) }, 0.3},
	{"int4", func(n int) int { return fixed(n, 4) }, 0.036},
	{"topk:10%", func(n int) int { return 16 + n/8 + 4*n/10 }, 0.56},
	{"int8", func(n int) int { return fixed(n, 8) }, 1e-4},
}

func fixed(n, bits int) int { return min(4*n, 16+(n+511)/512*4+(n*bits+7)/8) }

// draw returns groups of points: lengths within a factor of 16, energies within e^6.
func draw(r *rand.Rand, groups int) (all [][]point, raw int64) {
	for range groups {
		n := 512 + r.IntN(7680)
		energy := math.Exp(6*r.Float64()) * float64(n)
		points := []point{{0, int64(4 * n), energy}}
		for c, f := range formats {
			points = append(points, point{uint8(c + 1), int64(f.Bytes(n)), energy * (1 - f.Distortion)})
		}
		all, raw = append(all, points), raw+int64(4*n)
	}
	return all, raw
}

// solved returns the choice for groups of points, in bytes, value and bound.
func solved(all [][]point, budget int64) (choice []point, bytes int64, value, bound float64) {
	var hulls [][]point
	for _, points := range all {
		hulls = append(hulls, hull(slices.Clone(points)))
	}
	choice, bytes, bound = solve(hulls, budget)
	for _, p := range choice {
		value += p.value
	}
	return choice, bytes, value, bound
}

// exact returns the largest value within the budget, by dynamic programming over bytes.
func exact(all [][]point, budget int64) float64 {
	best := make([]float64, budget+1)
	for _, points := range all {
		next := make([]float64, budget+1)
		for b := range next {
			next[b] = math.Inf(-1)
			for _, p := range points {
				if int64(b) >= p.bytes {
					next[b] = max(next[b], best[int64(b)-p.bytes]+p.value)
				}
			}
		}
		best = next
	}
	return best[budget]
}

func TestGreedyComesWithinHalfAPercentOfDynamicProgramming(t *testing.T) {
	worst := 0.0
	for seed := range uint64(6) {
		all, raw := draw(rand.New(rand.NewPCG(seed, 1)), 100)
		for _, bits := range []float64{0.5, 1} {
			budget := int64(float64(raw) * bits / 32)
			_, bytes, value, bound := solved(all, budget)
			if bytes > budget {
				t.Fatalf("seed %d: %d bytes of %d", seed, bytes, budget)
			}
			best := exact(all, budget)
			if value > best*(1+1e-12) || best > bound*(1+1e-12) {
				t.Fatalf("seed %d: greedy %v, exact %v, bound %v", seed, value, best, bound)
			}
			worst = max(worst, 1-value/best)
		}
	}
	if worst > 0.005 {
		t.Errorf("the worst gap is %.3f %%", 100*worst)
	}
	t.Logf("worst gap %.4f %%", 100*worst)
}

func points(t *rapid.T) []point {
	n := rapid.IntRange(1, 6).Draw(t, "points")
	all := make([]point, n)
	for c := range all {
		all[c] = point{uint8(c), rapid.Int64Range(1, 40).Draw(t, "bytes"), float64(rapid.IntRange(-20, 60).Draw(t, "value"))}
	}
	return all
}

func TestKnapsackAgainstBruteForce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		all := make([][]point, rapid.IntRange(1, 4).Draw(t, "groups"))
		for g := range all {
			all[g] = points(t)
		}
		budget := rapid.Int64Range(0, 160).Draw(t, "budget")
		best, least := math.Inf(-1), int64(math.MaxInt64)
		var search func(g int, bytes int64, value float64)
		search = func(g int, bytes int64, value float64) {
			if g == len(all) {
				if least = min(least, bytes); bytes <= budget {
					best = max(best, value)
				}
				return
			}
			for _, p := range all[g] {
				search(g+1, bytes+p.bytes, value+p.value)
			}
		}
		search(0, 0, 0)
		choice, bytes, value, bound := solved(all, budget)
		var sum int64
		for g, p := range choice {
			if sum += p.bytes; !slices.Contains(all[g], p) {
				t.Fatalf("%v is not among %v", p, all[g])
			}
		}
		switch {
		case sum != bytes:
			t.Fatalf("the choice has %d bytes, %d are told", sum, bytes)
		case least > budget && bytes != least:
			t.Fatalf("%d bytes, though the least, %d, exceed the budget", bytes, least)
		case least <= budget && (bytes > budget || value > best || bound < best-1e-9):
			t.Fatalf("%d bytes of %d, value %v, best %v, bound %v", bytes, budget, value, best, bound)
		}
	})
}

func TestHullIsConcaveAndAboveAllPoints(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		all := points(t)
		h := hull(slices.Clone(all))
		for i := 1; i < len(h); i++ {
			if h[i].bytes <= h[i-1].bytes || h[i].value <= h[i-1].value {
				t.Fatalf("%v does not rise", h)
			}
			if i > 1 && gain(h[i-2], h[i-1]) <= gain(h[i-1], h[i]) {
				t.Fatalf("%v is not concave", h)
			}
		}
		for _, p := range all {
			if p.bytes < h[0].bytes || p.bytes == h[0].bytes && p.value > h[0].value {
				t.Fatalf("%v begins above %v", h, p)
			}
			at := h[len(h)-1].value
			for i := 1; i < len(h); i++ {
				if p.bytes >= h[i-1].bytes && p.bytes <= h[i].bytes {
					at = h[i-1].value + gain(h[i-1], h[i])*float64(p.bytes-h[i-1].bytes)
				}
			}
			if p.value > at+1e-9 {
				t.Fatalf("%v lies above %v", p, h)
			}
		}
	})
}

func TestTiesGoToTheFirstGroups(t *testing.T) {
	two := []point{{0, 10, 1}, {1, 30, 5}}
	k, bytes, _, _ := solved([][]point{two, two, two}, 70)
	if got := fmt.Sprint(bytes, k[0].codec, k[1].codec, k[2].codec); got != "70 1 1 0" {
		t.Error(got)
	}
}

func BenchmarkSolve(b *testing.B) {
	for _, groups := range []int{100, 300, 1000} {
		b.Run(fmt.Sprint(groups), func(b *testing.B) {
			all, raw := draw(rand.New(rand.NewPCG(1, 1)), groups)
			b.ReportAllocs()
			for b.Loop() {
				solved(all, raw/64)
			}
		})
	}
}

// BenchmarkDecide measures a whole decision, with the hulls of all groups.
func BenchmarkDecide(b *testing.B) {
	for _, groups := range []int{100, 1000} {
		b.Run(fmt.Sprint(groups), func(b *testing.B) {
			r, spec := rand.New(rand.NewPCG(1, 1)), Spec{Law: greedyLaw}
			var all []Group
			for range groups {
				all = append(all, Group{Elems: 512 + r.IntN(7680)})
			}
			n := New(Config{Spec: spec, Codecs: formats, Groups: all, Ranks: 1})
			for g := range all {
				n.table.observe(g, math.Exp(6*r.Float64()))
			}
			b.ReportAllocs()
			for b.Loop() {
				spec.worth(&n.table, n.worth)
				n.choose(float64(n.table.raw)/64, false)
			}
		})
	}
}
