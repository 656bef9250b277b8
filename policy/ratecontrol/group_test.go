package ratecontrol

import (
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func newTable(t interface{ Fatal(...any) }, groups, ranks int) (*table, []link) {
	all := make([]Group, groups)
	for g := range all {
		all[g] = Group{Elems: 8192 * (g + 1), Chunk: 8192}
	}
	var tab table
	if err := tab.init(all, formats, ranks); err != nil {
		t.Fatal(err)
	}
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
			tab, links := newTable(t, 1, ranks)
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
	tab, links := newTable(t, 2, 1)
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
	tab, links := newTable(t, 1, 2)
	links[1].live = false
	tab.measured(0, []Sample{{Codec: 1, Elems: 8192, Energy: 8192}}, links)
	if tab.density[0] != 1 {
		t.Error(tab.density[0])
	}
}

func TestAGroupsBytesAreThoseOfItsChunks(t *testing.T) {
	var tab table
	int8Only := formats[6:]
	if err := tab.init([]Group{{Elems: 20000, Chunk: 8192}, {Elems: 1000}, {Elems: 4096, Raw: true}}, int8Only, 1); err != nil {
		t.Fatal(err)
	}
	if want := int64(2*(16+64+8192) + 16 + 4*8 + 3616); tab.bytes[1] != want {
		t.Errorf("%d bytes, want %d", tab.bytes[1], want)
	}
	if !slices.Equal(tab.fixed, []bool{false, true, true}) || tab.chunks != 5 || tab.raw != 4*25096 {
		t.Errorf("fixed %v, %d chunks, raw %d", tab.fixed, tab.chunks, tab.raw)
	}
}

func TestImportanceFollowsEquations3And4(t *testing.T) {
	tab, links := newTable(t, 3, 1)
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
	importance := func(alpha float64) []float64 {
		v := make([]float64, 3)
		(&Spec{Law: aceLaw, Alpha: alpha}).worth(tab, v)
		for g := range v {
			v[g] /= float64(tab.groups[g].Elems)
		}
		return v
	}
	if v := importance(1); !(v[0] < v[1] && v[1] < v[2] && v[0] > 0 && v[2] < 1) {
		t.Errorf("alpha 1: %v", v)
	}
	if v := importance(0); !slices.Equal(v, []float64{3, 1, 1}) {
		t.Errorf("alpha 0: %v", v)
	}
}

func TestCompressionFollowsEquation5(t *testing.T) {
	tab, _ := newTable(t, 1, 1)
	a := Spec{Law: aceLaw, Beta: 0.02, Least: 1, Most: 32}
	last := 0.0
	for _, mbit := range []float64{0, 5, 20, 50, 100, 200} {
		b := a.limit(tab, mbit*1e6/8, math.NaN())
		if want := float64(tab.raw) / (1 + 31*math.Exp(-0.02*mbit)); math.Abs(b-want) > 1e-6*want || b <= last {
			t.Errorf("%v Mb/s: %v, want %v", mbit, b, want)
		}
		last = b
	}
}
