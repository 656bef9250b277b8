package data

import (
	"cmp"
	"fmt"
	"math"
	"slices"
)

// Batches divides the rows of a step among workers by their speeds, so that all take the same time. A worker's time is taken as
// a + c * rows, fitted over its last steps. The sum of the sizes stays. After LB-BSP (Chen, Yao, Wang, Li, 2020).
type Batches struct {
	sum   int
	sizes []int
	fits  []fit
}

const (
	forget     = 0.9 // how much of a step the next one leaves in a fit: about ten count
	fitted     = 5   // steps of each worker before sizes change, and between changes
	worthwhile = 0.1 // of a step's time that a change must save
)

// fit holds the sums of a linear regression of seconds over rows, which fade.
type fit struct {
	steps                        int // since the sizes changed
	n, rows, secs, square, cross float64
}

// NewBatches returns sizes that begin even.
func NewBatches(sum, workers int) (*Batches, error) {
	if workers < 1 || sum < workers || sum > math.MaxInt32 {
		return nil, fmt.Errorf("batches of %d rows in all for %d workers: each has at least one row", sum, workers)
	}
	even := slices.Repeat([]float64{float64(sum) / float64(workers)}, workers)
	return &Batches{sum: sum, sizes: whole(even, sum), fits: make([]fit, workers)}, nil
}

// Sizes returns the rows of each worker's next batch.
func (b *Batches) Sizes() []int { return b.sizes }

// Took records how long a worker computed a batch, and reports whether the sizes have changed. It ignores times outside 1 ns to
// 10^9 s.
func (b *Batches) Took(worker, rows int, seconds float64) bool {
	if rows < 1 || !(seconds >= 1e-9 && seconds <= 1e9) {
		return false
	}
	f, r := &b.fits[worker], float64(rows)
	f.steps++
	f.n, f.rows, f.secs = f.n*forget+1, f.rows*forget+r, f.secs*forget+seconds
	f.square, f.cross = f.square*forget+r*r, f.cross*forget+r*seconds
	if slices.ContainsFunc(b.fits, func(f fit) bool { return f.steps < fitted }) {
		return false
	}
	sizes := b.even()
	if b.longest(sizes) > (1-worthwhile)*b.longest(b.sizes) {
		return false
	}
	b.sizes = sizes
	for i := range b.fits {
		b.fits[i].steps = 0
	}
	return true
}

// line returns the time of a batch without rows, and that of a row.
func (f *fit) line() (a, c float64) {
	mean := f.rows / f.n
	if spread := f.square/f.n - mean*mean; spread > 1e-4*mean*mean {
		c = (f.cross/f.n - mean*f.secs/f.n) / spread
		a = f.secs/f.n - c*mean
	}
	if c <= 0 || a < 0 { // one size, or noise: a row takes its share of the whole
		a, c = 0, f.secs/f.rows
	}
	return a, c
}

func (b *Batches) longest(sizes []int) (longest float64) {
	for i, n := range sizes {
		a, c := b.fits[i].line()
		longest = max(longest, a+c*float64(n))
	}
	return longest
}

// even returns the sizes with which all workers take the same time. Workers that would have less than a row have one.
func (b *Batches) even() []int {
	sizes, one := make([]float64, len(b.fits)), make([]bool, len(b.fits))
	for {
		rows, rate := float64(b.sum), 0.0
		for i := range b.fits {
			if one[i] {
				sizes[i] = 1
				rows--
				continue
			}
			a, c := b.fits[i].line()
			rows, rate = rows+a/c, rate+1/c
		}
		again := false
		for i := range b.fits {
			if !one[i] {
				a, c := b.fits[i].line()
				sizes[i] = (rows/rate - a) / c
				one[i] = sizes[i] < 1
				again = again || one[i]
			}
		}
		if !again {
			return whole(sizes, b.sum)
		}
	}
}

// whole rounds shares of a sum of 1 or more to whole numbers with that sum, those with the largest fractions up.
func whole(shares []float64, sum int) []int {
	sizes, order := make([]int, len(shares)), make([]int, len(shares))
	for i, s := range shares {
		sizes[i], order[i] = int(s), i
		sum -= sizes[i]
	}
	rest := func(i int) float64 { return shares[i] - math.Floor(shares[i]) }
	slices.SortStableFunc(order, func(i, k int) int { return cmp.Compare(rest(k), rest(i)) })
	for i := 0; sum > 0; i, sum = (i+1)%len(order), sum-1 {
		sizes[order[i]]++
	}
	for i := 0; sum < 0; i = (i + 1) % len(order) { // shares add up to a little more than the sum
		if at := order[len(order)-1-i]; sizes[at] > 1 {
			sizes[at]--
			sum++
		}
	}
	return sizes
}

// Favour returns how many rows of each group an epoch takes, of as many as there are, so that groups with a high loss come more
// often: a group's share is its rows * (loss / mean loss)^beta, with the power kept between a half and 2. The model then learns
// another distribution than the data's. A loss of 0 stands for none, and for the mean.
func Favour(sizes Sizes, losses []float64, beta float64) (Sizes, error) {
	if len(losses) != len(sizes) || len(sizes) == 0 || !(beta >= 0 && beta <= 10) {
		return nil, fmt.Errorf("%d losses for %d groups, with beta %v: use a loss for each, and beta from 0 to 10", len(losses), len(sizes), beta)
	}
	sum, rows := 0.0, 0.0 // of losses as shares of the highest, because sums of them may overflow
	for g, loss := range losses {
		if !(loss >= 0) || math.IsInf(loss, 0) {
			return nil, fmt.Errorf("loss %v of group %d: use a number of 0 or more", loss, g)
		}
	}
	highest := slices.Max(losses)
	for g, loss := range losses {
		if loss > 0 {
			sum, rows = sum+loss/highest*float64(sizes[g]), rows+float64(sizes[g])
		}
	}
	shares, all := make([]float64, len(sizes)), 0.0
	for g, n := range sizes {
		shares[g] = float64(n)
		if sum > 0 && losses[g] > 0 {
			shares[g] *= min(2, max(0.5, math.Pow(losses[g]/highest*rows/sum, beta)))
		}
		all += shares[g]
	}
	for g := range shares {
		shares[g] *= float64(sizes.Total()) / all
	}
	var out Sizes
	for _, n := range whole(shares, int(sizes.Total())) {
		out = append(out, uint64(n))
	}
	return out, nil
}
