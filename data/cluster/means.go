package cluster

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
)

// means is k-means over weighted rows of p numbers.
type means struct {
	p       int
	x       []float64 // rows
	weights []float64
	centres []float64
	step    func(stage string, done float64) error
}

func (m *means) row(i int) []float64    { return m.x[i*m.p : (i+1)*m.p] }
func (m *means) centre(g int) []float64 { return m.centres[g*m.p : (g+1)*m.p] }
func (m *means) k() int                 { return len(m.centres) / m.p }

// distance returns the squared distance of two rows, or a part of it that is more than enough.
func distance(a, b []float64, enough float64) (d float64) {
	for i, x := range a {
		if d += (x - b[i]) * (x - b[i]); d > enough {
			break
		}
	}
	return d
}

// nearest returns the nearest centre, the squared distance to it, and that to the second nearest.
func (m *means) nearest(row []float64) (g int, d, second float64) {
	d, second = math.Inf(1), math.Inf(1)
	for k := range m.k() {
		switch e := distance(row, m.centre(k), second); {
		case e < d:
			g, d, second = k, e, d
		case e < second:
			second = e
		}
	}
	return g, d, second
}

// each calls f with every row's nearest centre, as nearest returns it.
func (m *means) each(done float64, f func(i, g int, d, second float64)) error {
	for i := range m.weights {
		if i%1024 == 0 {
			if err := m.step("k-means", done); err != nil {
				return err
			}
		}
		g, d, second := m.nearest(m.row(i))
		f(i, g, d, second)
	}
	return nil
}

// seed chooses centres among the rows, each by the squares of distances from the ones before: k-means++ (Arthur, Vassilvitskii,
// 2007). It chooses fewer if fewer rows differ.
func (m *means) seed(k int, random *rand.Rand) error {
	n := len(m.weights)
	far := slices.Repeat([]float64{math.Inf(1)}, n)
	next := random.IntN(n)
	for {
		m.centres = append(m.centres, m.row(next)...)
		sum := 0.0
		for i := range n {
			far[i] = min(far[i], distance(m.row(i), m.row(next), far[i]))
			sum += far[i] * m.weights[i]
		}
		if m.k() == k || sum == 0 {
			return nil
		}
		draw := random.Float64() * sum
		for i := range n {
			if far[i] > 0 {
				next = i
				if draw -= far[i] * m.weights[i]; draw < 0 {
					break
				}
			}
		}
		if err := m.step("centres", float64(m.k())/float64(k)); err != nil {
			return err
		}
	}
}

// lloyd moves centres to the means of their rows until no row changes its centre.
func (m *means) lloyd() error {
	groups := slices.Repeat([]int{-1}, len(m.weights))
	for round := range lloyds {
		changed := false
		sums, weights := make([]float64, len(m.centres)), make([]float64, m.k())
		err := m.each(float64(round)/lloyds, func(i, g int, _, _ float64) {
			changed = changed || g != groups[i]
			groups[i] = g
			weights[g] += m.weights[i]
			for j, x := range m.row(i) {
				sums[g*m.p+j] += m.weights[i] * x
			}
		})
		if !changed || err != nil {
			return err
		}
		for j := range sums {
			if w := weights[j/m.p]; w > 0 {
				m.centres[j] = sums[j] / w
			}
		}
	}
	return nil
}

const (
	lloyds   = 150 // rounds, as in the thesis
	maxSwaps = 64
	tried    = 32 // far rows, for each swap
)

// swap adds far rows, each with its own weight, and moves centres to some of them as long as that pays: the squares that the far
// rows save must be more than those of the centre's rows, which go to the second nearest. All centres follow then.
func (m *means) swap(far []farRow) error {
	before := len(m.weights)
	for _, row := range far {
		m.x, m.weights = append(m.x, row.x...), append(m.weights, 1)
	}
	for n := range min(m.k(), maxSwaps) {
		cost := make([]float64, m.k())
		err := m.each(float64(n)/maxSwaps, func(i, g int, d, second float64) {
			if cost[g] += m.weights[i] * (second - d); i >= before {
				far[i-before] = farRow{d, m.row(i)}
			}
		})
		if err != nil {
			return err
		}
		order := slices.Clone(far)
		slices.SortStableFunc(order, func(a, b farRow) int { return cmp.Compare(b.distance, a.distance) })
		var best []float64
		most := 0.0
		for _, row := range order[:min(tried, len(order))] {
			gain := 0.0
			for _, other := range far {
				gain += max(0, other.distance-distance(row.x, other.x, other.distance))
			}
			if gain > most {
				best, most = row.x, gain
			}
		}
		leaves := slices.Index(cost, slices.Min(cost))
		if most <= cost[leaves] {
			break
		}
		copy(m.centre(leaves), best)
	}
	return m.lloyd()
}
