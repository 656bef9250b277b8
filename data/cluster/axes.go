package cluster

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"

	"gonum.org/v1/gonum/mat"
)

// axes are principal axes of rows, the one with the largest variance first.
type axes struct {
	vectors *mat.Dense // [features][axes]
	origin  []float64  // the mean's place
}

const (
	beside = 14   // axes beside the wanted ones, with which those are found in fewer rounds
	rounds = 10   // axes whose variances are too close for them to be told apart in so many are equally good
	narrow = 1024 // features whose covariance costs less than rounds without it, if the rows are as many
)

var errScale = errors.New("features too large for their squares: scale them to a standard deviation of about 1")

// analyse finds the principal axes of a sample, which it centres, and returns its rows by their places on them. It iterates
// a subspace (Halko, Martinsson, Tropp: Finding Structure with Randomness, 2011) of little more axes than are wanted: all axes of
// thousands of features would take minutes.
func analyse(x []float64, width int, cfg Config) (a *axes, y []float64, err error) {
	rows, mean, total := mat.NewDense(len(x)/width, width, x), make([]float64, width), 0.0
	for i, v := range x {
		mean[i%width] += v * float64(width) / float64(len(x))
	}
	for i := range x {
		x[i] -= mean[i%width]
		total += x[i] * x[i]
	}
	if math.IsInf(total, 0) || math.IsNaN(total) {
		return nil, nil, errScale
	}
	wanted := min(max(fewAxes, cfg.Axes), width)
	b, random := min(wanted+beside, width), rand.New(rand.NewPCG(cfg.Seed, 1))
	z := mat.NewDense(width, b, nil)
	z.Apply(func(int, int, float64) float64 { return random.NormFloat64() }, z)
	var covariance, places, basis, square, ritz mat.Dense
	wide := width > min(narrow, len(x)/width)
	if !wide {
		covariance.Mul(rows.T(), rows)
	}
	for round := range rounds {
		if err := cfg.Step("principal axes", float64(round)/rounds); err != nil {
			return nil, nil, err
		}
		var svd mat.SVD
		if !svd.Factorize(z, mat.SVDThin) {
			return nil, nil, errScale
		}
		if svd.UTo(&basis); wide {
			places.Mul(rows, &basis)
			z.Mul(rows.T(), &places)
		} else {
			z.Mul(&covariance, &basis)
		}
		if b == width { // the basis has all axes
			break
		}
	}
	square.Mul(basis.T(), z)
	var e mat.EigenSym
	if !e.Factorize(mat.NewSymDense(b, square.RawMatrix().Data), true) {
		return nil, nil, errScale
	}
	e.VectorsTo(&ritz)
	values := e.Values(nil) // ascending
	p := cfg.Axes
	for sum := 0.0; cfg.Axes == 0 && p < wanted && (p == 0 || sum < variance*total); p++ {
		sum += values[b-1-p]
	}
	leading, at := mat.NewDense(b, p, nil), new(mat.Dense)
	leading.Apply(func(i, k int, _ float64) float64 { return ritz.At(i, b-1-k) }, leading)
	a = &axes{new(mat.Dense), make([]float64, p)}
	a.vectors.Mul(&basis, leading)
	at.Mul(rows, a.vectors)
	a.origin = a.project(nil, mean)
	return a, at.RawMatrix().Data, nil
}

// project returns rows by their places on the axes, in the memory of y if that is as large.
func (a *axes) project(y, x []float64) []float64 {
	width, p := a.vectors.Dims()
	n := len(x) / width
	y = slices.Grow(y[:0], n*p)[:n*p]
	mat.NewDense(n, p, y).Mul(mat.NewDense(n, width, x), a.vectors)
	for i := range y {
		y[i] -= a.origin[i%p]
	}
	return y
}
