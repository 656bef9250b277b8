// Package rows draws which rows of an embedding each worker touches in each step, uniformly or by Zipf's law.
package rows

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
)

// Spec describes a table, and how many of its rows a worker touches in a step.
type Spec struct {
	Rows, Width int
	Touch       int     // different rows that each worker touches in a step
	Zipf        float64 // the k-th most frequent row has the weight k^-Zipf. If 0, all rows are alike
	// Shuffle permutes the rows by the seed. Otherwise row 0 is the most frequent, row 1 the next.
	Shuffle bool
	// Placed makes the aggregator place the rows by their frequencies.
	Placed bool
}

// The largest table: its numbers of rows are u32 on the wire, and draws take three f64 for each.
const (
	maxRows  = 1 << 28
	maxWidth = 1 << 20
	maxZipf  = 4
)

// Example is a spec as users write it.
const Example = "rows=1000000,width=64,touch=1%,zipf=1.1"

// Parse reads a spec such as [Example]. Touch is a share of the rows, or their number. With "shuffle" rows are permuted, with
// "placed" the aggregator knows their frequencies. Settings that are not given are those of the example, without Zipf's law.
func Parse(text string) (Spec, error) {
	s := Spec{Rows: 1_000_000, Width: 64}
	bad := func(format string, args ...any) (Spec, error) { return Spec{}, fmt.Errorf(format, args...) }
	touch, given := "1%", map[string]bool{}
	for part := range strings.SplitSeq(text, ",") {
		part = strings.TrimSpace(part)
		key, value, _ := strings.Cut(part, "=")
		if given[key] {
			return bad("%s is given twice: give it once", key)
		}
		given[key] = true
		var err error
		switch {
		case key == "rows":
			s.Rows, err = strconv.Atoi(value)
		case key == "width":
			s.Width, err = strconv.Atoi(value)
		case key == "touch":
			touch = value
		case key == "zipf":
			s.Zipf, err = strconv.ParseFloat(value, 64)
		case part == "shuffle":
			s.Shuffle = true
		case part == "placed":
			s.Placed = true
		default:
			return bad("unknown setting %q: use rows, width, touch, zipf, shuffle and placed, as in %s", part, Example)
		}
		if err != nil {
			return bad("%s: use a number, as in %s", part, Example)
		}
	}
	switch {
	case s.Rows < 1 || s.Rows > maxRows:
		return bad("a table of %d rows: use 1 to %d", s.Rows, maxRows)
	case s.Width < 1 || s.Width > maxWidth:
		return bad("a width of %d elements: use 1 to %d", s.Width, maxWidth)
	case !(s.Zipf >= 0 && s.Zipf <= maxZipf):
		return bad("zipf=%v: use 0 for rows that are alike, or an exponent up to %d", s.Zipf, maxZipf)
	}
	share, percent := strings.CutSuffix(touch, "%")
	n, err := strconv.ParseFloat(share, 64)
	if percent {
		n = n * float64(s.Rows) / 100
	}
	if err != nil || !(n > 0 && n <= float64(s.Rows)) || !percent && n != math.Trunc(n) {
		return bad("touch=%s: use a share of the %d rows such as 1%%, or a number of rows from 1 to all", touch, s.Rows)
	}
	s.Touch = int(max(1, math.Round(n)))
	return s, nil
}

// String returns all settings, given or not, as [Parse] reads them.
func (s Spec) String() string {
	text := fmt.Sprintf("rows=%d,width=%d,touch=%d", s.Rows, s.Width, s.Touch)
	if s.Zipf > 0 {
		text += fmt.Sprintf(",zipf=%v", s.Zipf)
	}
	if s.Shuffle {
		text += ",shuffle"
	}
	if s.Placed {
		text += ",placed"
	}
	return text
}

// rarities returns 1 over the weight of each row.
func (s Spec) rarities(seed uint64) []float64 {
	rarity := make([]float64, s.Rows)
	for i := range rarity {
		rarity[i] = math.Pow(float64(i+1), s.Zipf)
	}
	if s.Shuffle {
		rand.New(rand.NewPCG(seed, 0)).Shuffle(s.Rows, func(i, k int) { rarity[i], rarity[k] = rarity[k], rarity[i] })
	}
	return rarity
}

// Frequencies returns by row the probability that a worker touches it in a step.
func (s Spec) Frequencies(seed uint64) []float32 {
	rarities, out := s.rarities(seed), make([]float32, s.Rows)
	// The clocks of [Spec.Draws] ring until a time, 2^exponent, at which as many rows are expected as a draw has.
	exponent := 0.0
	for step := 64.0; step > 1e-3; step /= 2 {
		expected := 0.0
		for i, rarity := range rarities {
			p := -math.Expm1(-math.Exp2(exponent) / rarity)
			expected += p
			out[i] = float32(p)
		}
		exponent += math.Copysign(step, float64(s.Touch)-expected)
	}
	return out
}

// Steps is the number of steps whose rows differ. Then they repeat, because drawing rows takes longer than exchanging them.
const Steps = 8

// Draws returns the rows that workers touch, by worker, from rank first on, and step: as if rows were drawn by their weights until
// there are [Spec.Touch] different ones, and then sorted. They depend on the spec, the seed and the rank alone.
//
// Let each row have an exponential clock whose rate is its weight. The rows whose clocks ring first are such a draw
// (Efraimidis and Spirakis, "Weighted random sampling with a reservoir", 2006), at the same cost whatever is touched.
func (s Spec) Draws(seed uint64, first, workers int) [][][]int64 {
	rarities, keys, order := s.rarities(seed), make([]float64, s.Rows), make([]float64, s.Rows)
	all := make([][][]int64, workers)
	for i := range all {
		for step := range Steps {
			rng := rand.New(rand.NewPCG(seed, uint64(first+i+1)<<32+uint64(step)))
			for row, rarity := range rarities {
				keys[row] = rng.ExpFloat64() * rarity
			}
			copy(order, keys)
			last, ids := nth(order, s.Touch-1), make([]int64, 0, s.Touch)
			for row, key := range keys {
				if key <= last && len(ids) < s.Touch {
					ids = append(ids, int64(row))
				}
			}
			all[i] = append(all[i], ids)
		}
	}
	return all
}

// nth returns the value that is at index n when x is sorted. It reorders x (Hoare, "Algorithm 65: find", 1961).
func nth(x []float64, n int) float64 {
	for first, last := 0, len(x)-1; first < last; {
		pivot, i, k := x[n], first, last
		for i <= k {
			for x[i] < pivot {
				i++
			}
			for x[k] > pivot {
				k--
			}
			if i <= k {
				x[i], x[k] = x[k], x[i]
				i, k = i+1, k-1
			}
		}
		if k < n {
			first = i
		}
		if i > n {
			last = k
		}
	}
	return x[n]
}
