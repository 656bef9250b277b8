package ratecontrol

import (
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func tableOf(groups, ranks int) (*table, []link) {
	all := make([]Group, groups)
	for g := range all {
		all[g] = Group{Elems: 8192 * (g + 1), Chunk: 8192}
	}
	var tab table
	tab.init(all, formats, ranks)
	links := make([]link, ranks)
	for r := range links {
		links[r].live = true
	}
	return &tab, links
}

func TestEnergiesAreSummedInRankOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const ranks = 5
		arrival := rapid.Permutation([]int{0, 1, 2, 3, 4}).Draw(t, "arrival")
		samples := make([][]Sample, ranks)
		for r := range samples {
			e := rapid.Float64Range(0, 1e6).Draw(t, "energy")
			samples[r] = []Sample{{Group: 0, Codec: 3, Elems: 8192, Energy: e, Lost: e / 3}}
		}
		fold := func(order []int) (float64, float64) {
			tab, links := tableOf(1, ranks)
			for _, r := range order {
				tab.measured(r, samples[r], links)
			}
			return tab.density[0], tab.lost[3]
		}
		d0, l0 := fold([]int{0, 1, 2, 3, 4})
		d1, l1 := fold(arrival)
		if d0 != d1 || l0 != l1 {
			t.Fatalf("in rank order %v, %v; in order %v %v, %v", d0, l0, arrival, d1, l1)
		}
	})
}

func TestFalseSamplesCountNothing(t *testing.T) {
	tab, links := tableOf(2, 1)
	before := slices.Clone(tab.lost)
	var bad []Sample
	for _, s := range []Sample{{Group: -1}, {Group: 2}, {Codec: 200}, {Elems: -1}, {Energy: -1}, {Energy: math.NaN()},
		{Energy: math.Inf(1)}, {Lost: math.NaN()}} {
		if s.Elems == 0 {
			s.Elems = 512
		}
		bad = append(bad, s)
	}
	tab.measured(0, bad, links)
	tab.probed(bad)
	if !slices.Equal(before, tab.lost) || tab.density[0] >= 0 || tab.density[1] >= 0 {
		t.Errorf("%v, %v", tab.lost, tab.density)
	}
}

func TestALostRankIsNotAwaited(t *testing.T) {
	tab, links := tableOf(1, 2)
	links[1].live = false
	tab.measured(0, []Sample{{Codec: 1, Elems: 8192, Energy: 8192}}, links)
	if tab.density[0] != 1 {
		t.Error(tab.density[0])
	}
}

func TestAGroupsBytesAreThoseOfItsChunks(t *testing.T) {
	var tab table
	tab.init([]Group{{Elems: 20000, Chunk: 8192}, {Elems: 1000}}, formats[6:], 1)
	if want := int64(2*(16+64+8192) + 16 + 4*8 + 3616); tab.bytes[1] != want {
		t.Errorf("%d bytes, want %d", tab.bytes[1], want)
	}
	if tab.chunks != 4 || tab.raw != 4*21000 {
		t.Errorf("%d chunks, raw %d", tab.chunks, tab.raw)
	}
}

func TestImportanceFollowsEquations3And4(t *testing.T) {
	tab, links := tableOf(3, 1)
	for step := range 40 {
		var s []Sample
		for g := range 3 {
			e := []float64{1, 100, 100}[g]
			if g == 2 && step%2 == 0 {
				e = 400 // the variance counts too
			}
			s = append(s, Sample{Group: g, Codec: 1, Elems: 8192, Energy: e})
		}
		tab.measured(0, s, links)
	}
	tab.groups[0].Weight = 3
	v := make([]float64, 3)
	(&Spec{Law: aceLaw}).worth(tab, v)
	for g := range v {
		v[g] = 2*v[g]/float64(tab.groups[g].Elems) - tab.groups[g].Weight
	}
	if !(v[0] < v[1] && v[1] < v[2] && v[0] > 0 && v[2] < 1) {
		t.Errorf("beside half of their weights, groups have an importance of half of %v", v)
	}
}

func TestCompressionFollowsEquation5(t *testing.T) {
	n := New(Config{Spec: Spec{Law: aceLaw}, Codecs: formats, Groups: []Group{{Elems: 8192}}, Ranks: 1})
	last := 0.0
	for _, mbit := range []float64{1e-6, 5, 20, 50, 100, 200} {
		n.links[0].fast, n.links[0].recent[0] = mbit*1e6/8, mbit*1e6/8
		b := n.budget()
		if want := float64(n.table.raw) / (1 + 31*math.Exp(-0.02*mbit)); math.Abs(b-want) > 1e-6*want || b <= last {
			t.Errorf("%v Mb/s: %v, want %v", mbit, b, want)
		}
		last = b
	}
}
