package data

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func TestBatchesEvenOutTimes(t *testing.T) {
	for _, c := range []struct {
		a, c []float64
		want []int
	}{
		{[]float64{0, 0, 0, 0}, []float64{1, 1, 1, 3}, []int{38, 38, 39, 13}},
		{[]float64{0, 0, 0, 0}, []float64{1, 1, 1, 1}, []int{32, 32, 32, 32}},
		{[]float64{0, 0, 0, 0}, []float64{1, 1, 1, 1e4}, []int{42, 42, 43, 1}},
	} {
		b, err := NewBatches(128, 4)
		if err != nil {
			t.Fatal(err)
		}
		r := rand.New(rand.NewPCG(1, 1))
		for range 60 {
			for i, n := range slices.Clone(b.Sizes()) {
				b.Took(i, n, (c.a[i]+c.c[i]*float64(n))*(1+0.02*r.NormFloat64()))
			}
		}
		for i, n := range b.Sizes() {
			if n < c.want[i]-2 || n > c.want[i]+2 {
				t.Errorf("%v for rows of %v, about %v expected", b.Sizes(), c.c, c.want)
				break
			}
		}
	}
}

func TestPlansKeepTheChangesThatWorkersMayAskForAlone(t *testing.T) {
	p, err := NewPlan(100, 2)
	if err != nil {
		t.Fatal(err)
	}
	p.Dealt(0, 1e6, 50) // far ahead
	for step := uint64(1); step <= 1000; step++ {
		p.Dealt(1, step, 50)
		for rank, at := range []uint64{1e6, step} {
			p.Took(rank, at, float64(1+rank)*1e3*math.Pow(10, float64(step/10%2)*float64(1-2*rank)))
		}
	}
	if len(p.changes) != 2 || p.Size(0, 1e6) != 50 || p.Size(0, 1e6+1)+p.Size(1, 1e6+1) != 100 {
		t.Errorf("%d changes", len(p.changes))
	}
}

func TestBatchesKeepTheirSum(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		workers := rapid.IntRange(1, 8).Draw(t, "workers")
		b, err := NewBatches(rapid.IntRange(workers, 300).Draw(t, "sum"), workers)
		if err != nil {
			t.Fatal(err)
		}
		sum := 0
		for _, n := range b.Sizes() {
			sum += n
		}
		for range rapid.IntRange(0, 200).Draw(t, "steps") {
			i := rapid.IntRange(0, workers-1).Draw(t, "worker")
			b.Took(i, rapid.IntRange(-1, 50).Draw(t, "rows"), rapid.Float64().Draw(t, "seconds"))
			got := 0
			for _, n := range b.Sizes() {
				if got += n; n < 1 {
					t.Fatal(b.Sizes())
				}
			}
			if got != sum {
				t.Fatalf("%v add up to %d, not %d", b.Sizes(), got, sum)
			}
		}
	})
}

func TestFavouredGroupsComeMoreOften(t *testing.T) {
	sizes := Sizes{1000, 1000, 100, 0}
	for _, c := range []struct {
		losses []float64
		beta   float64
		want   Sizes
	}{
		{[]float64{1, 1, 1, 0}, 1, sizes},
		{[]float64{1, 2, 3, 0}, 0, sizes},
		{[]float64{0, 0, 0, 0}, 1, sizes},
		{[]float64{1e308, 1e308, 1e308, 0}, 1, sizes},
		{[]float64{5e-324, 5e-324, 5e-324, 0}, 1, sizes},
		{[]float64{5e-324, 1e308, 1e308, 0}, 1, Sizes{404, 1542, 154, 0}},
		{[]float64{1, 2, 9, 0}, 1, Sizes{623, 1246, 231, 0}},
	} {
		got, err := Favour(sizes, c.losses, c.beta)
		if err != nil || got.Total() != sizes.Total() {
			t.Fatal(got, err)
		}
		for g := range got {
			if d := int(got[g]) - int(c.want[g]); d < -15 || d > 15 {
				t.Errorf("losses %v, beta %v: %v, not about %v", c.losses, c.beta, got, c.want)
				break
			}
		}
	}
	for _, losses := range [][]float64{{1, 2, 3}, {1, -1, 1, 1}} {
		if _, err := Favour(sizes, losses, 1); err == nil {
			t.Errorf("losses %v", losses)
		}
	}
}
