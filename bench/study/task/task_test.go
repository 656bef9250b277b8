package task

import (
	"math"
	"math/rand/v2"
	"testing"
)

func TestDigitsAreAllThere(t *testing.T) {
	// As scikit-learn's documentation counts them.
	want := [Classes]int{178, 182, 177, 183, 181, 182, 181, 179, 174, 180}
	var got [Classes]int
	for _, x := range all() {
		got[x.Digit]++
	}
	if got != want {
		t.Errorf("images by digit: %v, want %v", got, want)
	}
	for fold := range Folds {
		train, test := Split(fold, 540)
		if len(train) != Images-540 || len(test) != 540 {
			t.Errorf("fold %d has %d images to train with and %d to test with", fold, len(train), len(test))
		}
	}
}

func TestGradientsAreTheSlopesOfTheLosses(t *testing.T) {
	train, _ := Split(0, 540)
	text := NewText(0).(*reading)
	for name, c := range map[string]struct {
		Task
		batch  []int
		loss   func(params []float32, sample int) float64
		step   float32
		probes int
	}{
		"regression": {NewDigits(train, train[:1]), []int{3, 4}, nil, 1e-2, 300},
		"network":    {NewDigits(train, train[:1], 32), []int{0, 1, 2}, nil, 1e-2, 200},
		"transformer": {text, []int{100, 5000}, func(params []float32, first int) float64 {
			l, _ := (*transformer)(params).forward(&text.pass, text.text[first:])
			return l / window
		}, 5e-3, 100},
	} {
		chance := rand.New(rand.NewPCG(7, 7))
		n := c.Fresh(chance)
		if name == "regression" {
			for i := range n {
				n[i] = float32(chance.NormFloat64())
			}
		}
		g := make([]float32, len(n))
		if c.loss == nil {
			c.loss = func(params []float32, sample int) float64 { return c.Task.(*Digits).forward(params, &train[sample]) }
		}
		loss := func() (sum float64) {
			for _, sample := range c.batch {
				sum += c.loss(n, sample) / float64(len(c.batch))
			}
			return sum
		}
		c.Gradient(n, g, c.batch)
		for range c.probes {
			i := chance.IntN(len(n))
			was := n[i]
			n[i] = was + c.step
			up := loss()
			n[i] = was - c.step
			down := loss()
			n[i] = was
			if slope := (up - down) / float64(2*c.step); math.Abs(slope-float64(g[i])) > 2e-3 {
				t.Errorf("%s, parameter %d: slope %g, gradient %g", name, i, slope, g[i])
			}
		}
	}
}

func TestTextIsDividedWithoutRemainder(t *testing.T) {
	for fold := range Folds {
		r := NewText(fold).(*reading)
		if len(r.tests) != textPart || len(r.text) != TextLength-textPart {
			t.Errorf("fold %d trains with %d letters and tests with %d", fold, len(r.text), len(r.tests))
		}
		for _, skewed := range []bool{false, true} {
			windows := 0
			for _, part := range r.Shards(4, skewed) {
				windows += len(part)
			}
			if want := (TextLength - textPart - window + window/2 - 1) / (window / 2); windows != want {
				t.Errorf("fold %d: %d windows, want %d", fold, windows, want)
			}
		}
	}
}

func TestSkewedShardsHaveFewDigitsEach(t *testing.T) {
	train, test := Split(0, 540)
	d := NewDigits(train, test)
	for _, skewed := range []bool{false, true} {
		for w, shard := range d.Shards(4, skewed) {
			kinds := map[uint8]bool{}
			for _, i := range shard {
				kinds[train[i].Digit] = true
			}
			if skewed && len(kinds) > 4 || !skewed && len(kinds) < Classes {
				t.Errorf("skewed %v: shard %d has %d digits", skewed, w, len(kinds))
			}
		}
	}
}
