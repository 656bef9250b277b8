// Package cluster divides rows into groups by what they look like: a principal component analysis, then k-means. It reads the rows
// several times as a stream, so that its memory does not grow with them.
//
// Both look at a sample, which misses groups of a few rows. So the rows farthest from the sample's centres are gathered, and
// a centre moves to one of them as long as that lowers the sum of squares: the swap of Lattanzi and Sohler (A Better k-means++
// Algorithm via Local Search, 2019).
package cluster

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
)

// Bounds, and what the analysis is made with.
const (
	MaxFeatures = 4096 // the sample has a row for each of MaxK groups
	MaxK        = 4096
	MaxAxes     = 256

	variance    = 0.9 // that the axes must have of all
	fewAxes     = 50
	sampleRows  = 50000
	sampleBytes = 128 << 20
	farRows     = 4096
)

// Config chooses groups.
type Config struct {
	K    int // groups
	Axes int // if not 0, so many principal axes, instead of the fewest with 90 % of the variance and at most 50
	Seed uint64
	// Step is called often with the part of a stage that is done, of 1, unless it is nil. An error ends the work.
	Step func(stage string, done float64) error
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
	case cfg.Axes < 0 || cfg.Axes > min(width, MaxAxes):
		return 0, fmt.Errorf("%d principal axes of %d features: use 1 to %d", cfg.Axes, width, min(width, MaxAxes))
	}
	return divide(rows, width, cfg, min(sampleRows, sampleBytes/8/width), f)
}

// divide is Divide with a checked configuration and a sample of at most so many rows.
func divide(rows Rows, width int, cfg Config, most int, f func(group int) error) (int, error) {
	if cfg.Step == nil {
		cfg.Step = func(string, float64) error { return nil }
	}
	random, all := rand.New(rand.NewPCG(cfg.Seed, 0)), uint64(0)
	sample := make([]float64, 0, most*width)
	err := rows(func(x []float64) error {
		for row := range slices.Chunk(x, width) {
			if all < uint64(most) {
				sample = append(sample, row...)
			} else if k := random.Uint64N(all + 1); k < uint64(most) {
				copy(sample[int(k)*width:], row)
			}
			all++
		}
		return nil
	})
	if err == nil && uint64(cfg.K) > all {
		err = fmt.Errorf("%d groups of %d rows: use 1 to %[2]d", cfg.K, all)
	}
	if err != nil {
		return 0, err
	}
	a, y, err := analyse(sample, width, cfg)
	if err != nil {
		return 0, err
	}
	p := a.vectors.RawMatrix().Cols
	m := &means{p: p, x: y, weights: slices.Repeat([]float64{float64(all) / float64(len(y)/p)}, len(y)/p), step: cfg.Step}
	if err := m.seed(cfg.K, random); err != nil {
		return 0, err
	}
	if err := m.lloyd(); err != nil {
		return 0, err
	}
	var to []float64
	// nearest calls f with the place of each row and its nearest centre.
	nearest := func(f func(row []float64, group int, distance float64) error) error {
		return rows(func(x []float64) error {
			to = a.project(to, x)
			for row := range slices.Chunk(to, p) {
				g, d, _ := m.nearest(row)
				if err := f(row, g, d); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if all > uint64(most) {
		var far farthest
		if err := nearest(func(row []float64, _ int, d float64) error { far.offer(d, row); return nil }); err != nil {
			return 0, err
		}
		far.sort()
		if err := m.swap(far.rows); err != nil {
			return 0, err
		}
	}
	return p, nearest(func(_ []float64, g int, _ float64) error { return f(g) })
}

// farthest keeps the rows farthest from their centres.
type farthest struct {
	rows  []farRow
	least float64 // a nearer row is not among them
}

type farRow struct {
	distance float64
	x        []float64
}

func (f *farthest) offer(distance float64, row []float64) {
	if distance < f.least {
		return
	}
	if f.rows = append(f.rows, farRow{distance, slices.Clone(row)}); len(f.rows) == 2*farRows {
		f.sort()
		f.least = f.rows[farRows-1].distance
	}
}

// sort puts the farthest first, and drops all that are too many.
func (f *farthest) sort() {
	slices.SortStableFunc(f.rows, func(a, b farRow) int { return cmp.Compare(b.distance, a.distance) })
	f.rows = f.rows[:min(len(f.rows), farRows)]
}
