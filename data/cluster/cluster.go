// Package cluster divides rows into groups by what they look like: a principal component analysis, then k-means. It reads the rows
// several times as a stream, so that its memory does not grow with them.
//
// k-means looks at a sample, which misses groups of a few rows. So the rows farthest from the sample's centres are gathered, and
// a centre moves to one of them as long as that lowers the sum of squares: the swap of Lattanzi and Sohler (A Better k-means++
// Algorithm via Local Search, 2019).
package cluster

import (
	"container/heap"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"

	"gonum.org/v1/gonum/mat"
)

// Bounds, and what the analysis is made with.
const (
	MaxFeatures = 4096 // the covariance takes 8 bytes of each pair, three times
	MaxK        = 4096

	variance    = 0.9 // that the axes must have of all
	maxAxes     = 50
	sampleRows  = 50000
	sampleBytes = 128 << 20
	farRows     = 4096
	lloyds      = 150
)

// Config chooses groups.
type Config struct {
	K    int // groups
	Axes int // if not 0, so many principal axes, instead of the fewest with 90 % of the variance and at most 50
	Seed uint64
}

// Rows calls f with all rows in their order, one or more at a time. x has the numbers of each, which are finite. Every call has the
// same rows.
type Rows func(f func(x []float64) error) error

// Divide calls f with the number of each row's group, in the order of the rows, and returns the number of axes. It reads the rows
// three times, or twice if the sample has them all. Same rows and seed, same groups.
func Divide(rows Rows, width int, cfg Config, f func(group int) error) (axes int, err error) {
	switch {
	case cfg.K < 1 || cfg.K > MaxK:
		return 0, fmt.Errorf("%d groups: use 1 to %d", cfg.K, MaxK)
	case width < 1 || width > MaxFeatures:
		return 0, fmt.Errorf("%d features: at most %d. Name fewer, or make groups elsewhere and give them by --groups", width, MaxFeatures)
	case cfg.Axes < 0 || cfg.Axes > width:
		return 0, fmt.Errorf("%d principal axes of %d features: use at most as many", cfg.Axes, width)
	}
	return newDivider(width, cfg, min(sampleRows, sampleBytes/8/width)).divide(rows, f)
}

// divide is Divide, with a checked configuration.
func (c *divider) divide(rows Rows, f func(group int) error) (axes int, err error) {
	if err := rows(c.gather); err != nil {
		return 0, err
	}
	if uint64(c.cfg.K) > c.rows {
		return 0, fmt.Errorf("%d groups of %d rows: use at most as many", c.cfg.K, c.rows)
	}
	if err := c.analyse(); err != nil {
		return 0, err
	}
	p := c.axes.RawMatrix().Cols
	m := newMeans(c.project(nil, c.sample), p, float64(c.rows)/float64(len(c.sample)/c.width))
	c.sample = nil
	m.seed(c.cfg.K, c.random)
	m.lloyd()
	var y []float64
	if c.rows > uint64(c.most) {
		far := farthest{p: p}
		err := rows(func(x []float64) error {
			y = c.project(y, x)
			for i := 0; i < len(y); i += p {
				_, d, _ := m.nearest(y[i : i+p])
				far.offer(d, y[i:i+p])
			}
			return nil
		})
		if err != nil {
			return 0, err
		}
		m.swap(far.rows)
		m.lloyd()
	}
	return p, rows(func(x []float64) error {
		y = c.project(y, x)
		for i := 0; i < len(y); i += p {
			g, _, _ := m.nearest(y[i : i+p])
			if err := f(g); err != nil {
				return err
			}
		}
		return nil
	})
}

// divider holds what the first pass gathers.
type divider struct {
	width   int
	cfg     Config
	random  *rand.Rand
	rows    uint64
	mean    *mat.VecDense
	squares *mat.SymDense // of the differences from the mean, summed
	sample  []float64
	most    int // rows of the sample
	axes    *mat.Dense
}

func newDivider(width int, cfg Config, most int) *divider {
	return &divider{
		width: width, cfg: cfg, most: most, random: rand.New(rand.NewPCG(cfg.Seed, 0)), sample: make([]float64, 0, most*width),
		mean: mat.NewVecDense(width, nil), squares: mat.NewSymDense(width, nil),
	}
}

// gather adds rows to the sums and to the sample.
func (c *divider) gather(x []float64) error {
	n := len(x) / c.width
	for i := range n {
		row := x[i*c.width : (i+1)*c.width]
		if at := c.rows + uint64(i); at < uint64(c.most) {
			c.sample = append(c.sample, row...)
		} else if k := c.random.Uint64N(at + 1); k < uint64(c.most) {
			copy(c.sample[int(k)*c.width:], row)
		}
	}
	// Sums of a batch are about its own mean, so that they lose no digits to a far origin (Chan, Golub, LeVeque, 1983).
	mean, centred := mat.NewVecDense(c.width, nil), mat.DenseCopyOf(mat.NewDense(n, c.width, x))
	for i := range n {
		mean.AddScaledVec(mean, 1/float64(n), centred.RowView(i))
	}
	for i := range n {
		row := mat.NewVecDense(c.width, centred.RawRowView(i))
		row.SubVec(row, mean)
	}
	c.squares.SymRankK(c.squares, 1, centred.T())
	mean.SubVec(mean, c.mean)
	before, all := float64(c.rows), float64(c.rows)+float64(n)
	c.squares.SymRankOne(c.squares, before*float64(n)/all, mean)
	c.mean.AddScaledVec(c.mean, float64(n)/all, mean)
	c.rows += uint64(n)
	return nil
}

// analyse finds the principal axes.
func (c *divider) analyse() error {
	var e mat.EigenSym
	if norm := mat.Norm(c.squares, 2); math.IsInf(norm, 0) || math.IsNaN(norm) || !e.Factorize(c.squares, true) {
		return errors.New("features too large for their squares: scale them to a standard deviation of about 1")
	}
	values, total := e.Values(nil), 0.0
	for _, v := range values {
		total += max(v, 0)
	}
	p, sum := 0, 0.0
	for p < min(maxAxes, c.width) && (p == 0 || sum < variance*total) {
		p++
		sum += max(values[c.width-p], 0)
	}
	if c.cfg.Axes > 0 {
		p = c.cfg.Axes
	}
	var all mat.Dense
	e.VectorsTo(&all)
	c.axes = mat.DenseCopyOf(all.Slice(0, c.width, c.width-p, c.width))
	c.squares = nil
	return nil
}

// project returns rows by their places on the axes, in the memory of y if that is as large.
func (c *divider) project(y, x []float64) []float64 {
	n, p := len(x)/c.width, c.axes.RawMatrix().Cols
	if cap(y) < n*p {
		y = make([]float64, n*p)
	}
	to := mat.NewDense(n, p, y[:n*p])
	to.Mul(mat.NewDense(n, c.width, x), c.axes)
	var origin mat.VecDense
	origin.MulVec(c.axes.T(), c.mean)
	for i := range n {
		row := mat.NewVecDense(p, to.RawRowView(i))
		row.SubVec(row, &origin)
	}
	return y[:n*p]
}

// farthest keeps the rows farthest from their centres: a heap, the nearest first.
type farthest struct {
	p         int
	distances []float64
	rows      [][]float64
}

func (f *farthest) Len() int           { return len(f.rows) }
func (f *farthest) Less(i, k int) bool { return f.distances[i] < f.distances[k] }
func (f *farthest) Push(any)           {}
func (f *farthest) Pop() any           { return nil }
func (f *farthest) Swap(i, k int) {
	f.distances[i], f.distances[k] = f.distances[k], f.distances[i]
	f.rows[i], f.rows[k] = f.rows[k], f.rows[i]
}

func (f *farthest) offer(distance float64, row []float64) {
	switch {
	case len(f.rows) < farRows:
		f.distances, f.rows = append(f.distances, distance), append(f.rows, append([]float64(nil), row...))
		if len(f.rows) == farRows {
			heap.Init(f)
		}
	case distance > f.distances[0]:
		f.distances[0] = distance
		copy(f.rows[0], row)
		heap.Fix(f, 0)
	}
}
