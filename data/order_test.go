package data

import (
	"cmp"
	"math/big"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func TestPermutationsAreBijections(t *testing.T) {
	for n := uint64(1); n < 600; n++ {
		for key := range uint64(3) {
			p, seen := newPermutation(n, key), make([]bool, n)
			for i := range n {
				to := p.at(i)
				if to >= n || seen[to] {
					t.Fatalf("%d of %d goes to %d, as another does", i, n, to)
				}
				seen[to] = true
			}
		}
	}
}

func TestPermutationsOfManyRowsDoNotMeet(t *testing.T) {
	const n, some = MaxRows - 1, 1 << 16
	p, seen := newPermutation(n, 7), make(map[uint64]bool)
	for i := range uint64(some) {
		for _, at := range []uint64{i, n - 1 - i, n/some*i + some} {
			to := p.at(at)
			if to >= n {
				t.Fatal(at, to)
			}
			seen[to] = true
		}
	}
	if len(seen) < 3*some-8 { // of the three sequences few meet
		t.Errorf("%d of %d images differ", len(seen), 3*some)
	}
}

// Every image of a place is as frequent as the others: a chi-square test over keys, for sizes around powers of two.
func TestPermutationsAreEven(t *testing.T) {
	const draws = 20000
	for _, n := range []uint64{2, 3, 5, 8, 16, 17} {
		for place := range n {
			counts := make([]float64, n)
			for key := range uint64(draws) {
				p := newPermutation(n, hash(key, n))
				counts[p.at(place)]++
			}
			chi := 0.0
			for _, c := range counts {
				e := float64(draws) / float64(n)
				chi += (c - e) * (c - e) / e
			}
			if limit := float64(n-1) + 6*float64(n); chi > limit { // the mean and far more than 5 deviations
				t.Errorf("place %d of %d: chi-square %.1f above %.1f", place, n, chi, limit)
			}
		}
	}
}

// all computes an order by sorting exact fractions.
func all(o *Order, sizes, draws Sizes) (places []Place) {
	type entry struct {
		at    *big.Rat
		group int
		place Place
	}
	var entries []entry
	for i := range o.groups {
		g := &o.groups[i]
		for j := range g.draws {
			key := new(big.Int).SetUint64(o.key(g, j))
			p := newPermutation(g.size, hash(o.seed, o.epoch, uint64(g.number), j/g.size, ^uint64(0)))
			entries = append(entries, entry{
				new(big.Rat).SetFrac(key, new(big.Int).SetUint64(g.draws)), i, Place{g.number, p.at(j % g.size)},
			})
		}
	}
	slices.SortFunc(entries, func(a, b entry) int { return cmp.Or(a.at.Cmp(b.at), cmp.Compare(a.group, b.group)) })
	for _, e := range entries {
		places = append(places, e.place)
	}
	return places
}

func rest(o *Order) (places []Place) {
	for p, ok := o.Next(); ok; p, ok = o.Next() {
		places = append(places, p)
	}
	return places
}

func TestOrdersAreSortedFractionsFromEveryPosition(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		sizes := Sizes(rapid.SliceOfN(rapid.Uint64Range(0, 40), 1, 12).Draw(t, "sizes"))
		if sizes.Total() == 0 {
			sizes[0] = 1
		}
		draws := slices.Clone(sizes)
		if rapid.Bool().Draw(t, "weighted") {
			for g := range draws {
				draws[g] = min(1, sizes[g]) * rapid.Uint64Range(0, 80).Draw(t, "draws")
			}
		}
		o := NewOrder(sizes, draws, rapid.Uint64().Draw(t, "seed"), rapid.Uint64Range(0, 9).Draw(t, "epoch"))
		want := all(o, sizes, draws)
		if got := rest(o); !slices.Equal(got, want) {
			t.Fatalf("%v, not %v", got, want)
		}
		for position := range o.Len() + 1 {
			o.Seek(position)
			if got := rest(o); !slices.Equal(got, want[position:]) {
				t.Fatalf("from %d on %v, not %v", position, got, want[position:])
			}
		}
	})
}

func TestEpochsDealEachRowOnceAndDiffer(t *testing.T) {
	sizes := Sizes{500, 3, 0, 120}
	var before []Place
	for epoch := range uint64(5) {
		got := rest(NewOrder(sizes, nil, 1, epoch))
		if slices.Equal(got, before) {
			t.Errorf("epoch %d is as the one before", epoch)
		}
		before = slices.Clone(got)
		slices.SortFunc(got, func(a, b Place) int { return cmp.Or(a.Group-b.Group, cmp.Compare(a.Index, b.Index)) })
		if len(slices.Compact(got)) != 623 {
			t.Errorf("epoch %d deals %d different rows of 623", epoch, len(got))
		}
	}
}

// A stretch of an epoch has of each group what its size tells, up to two rows.
func TestGroupsAreSpreadEvenly(t *testing.T) {
	sizes := Sizes{6000, 900, 60, 6}
	total := float64(sizes.Total())
	for epoch := range uint64(20) {
		counts := make([]float64, len(sizes))
		o := NewOrder(sizes, nil, 3, epoch)
		for i := range o.Len() {
			p, _ := o.Next()
			counts[p.Group]++
			for g, n := range sizes {
				if want := float64(n) * float64(i+1) / total; counts[g] > want+3 || counts[g] < want-3 {
					t.Fatalf("after %d rows %v of group %d, not about %.1f", i+1, counts[g], g, want)
				}
			}
		}
	}
}

func TestSeekingAmongAHundredMillionRows(t *testing.T) {
	sizes := Sizes{1e8 - 7, 7}
	o := NewOrder(sizes, nil, 5, 2)
	for _, position := range []uint64{0, 1, 5e7, 1e8 - 1000} {
		o.Seek(position)
		a := make([]Place, 1000)
		for i := range a {
			a[i], _ = o.Next()
		}
		o.Seek(position + 500)
		for i := range 500 {
			if p, ok := o.Next(); !ok || p != a[500+i] {
				t.Fatalf("position %d has %v, or %v", position+500+uint64(i), a[500+i], p)
			}
		}
	}
}

func TestSeekingAmongManyGroups(t *testing.T) {
	sizes := make(Sizes, 500)
	for g := range sizes {
		sizes[g] = hash(uint64(g)) % 9
	}
	o := NewOrder(sizes, nil, 5, 6)
	want := rest(o)
	for i := range uint64(2000) {
		at := hash(i) % (o.Len() + 1)
		if i%3 > 0 { // a little further on
			at = min(o.position+hash(i)%20, o.Len())
		}
		o.Seek(at)
		if p, ok := o.Next(); ok != (at < o.Len()) || ok && p != want[at] {
			t.Fatalf("at %d %v, %v", at, p, ok)
		}
	}
}

func BenchmarkOrder(b *testing.B) {
	for _, c := range []struct {
		name  string
		sizes Sizes
	}{{"whole", Sizes{1e8}}, {"groups=10", slices.Repeat(Sizes{1e7}, 10)}, {"groups=1000", slices.Repeat(Sizes{1e5}, 1000)},
		{"groups=65536", slices.Repeat(Sizes{1600}, 65536)}} {
		b.Run(c.name+"/next", func(b *testing.B) {
			o := NewOrder(c.sizes, nil, 1, 0)
			for b.Loop() {
				if _, ok := o.Next(); !ok {
					o.Seek(0)
				}
			}
		})
		b.Run(c.name+"/seek", func(b *testing.B) {
			o := NewOrder(c.sizes, nil, 1, 0)
			for i := uint64(0); b.Loop(); i++ {
				o.Seek(hash(i) % 1e8)
			}
		})
	}
}
