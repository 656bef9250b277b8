package rows_test

import (
	"slices"
	"testing"

	"github.com/rackweave/rackweave/bench/rows"
	"github.com/rackweave/rackweave/chunk"
)

const workers = 4

// skewed are tables whose most frequent rows share chunks. Of each exponent, workers touch 10,000 different rows in a step, or as
// many as there are among 10,000 that are drawn one by one.
var skewed = []string{"touch=10000,zipf=1.1", "touch=4830,zipf=1.1", "touch=10000,zipf=1.3", "touch=1520,zipf=1.3"}

func parse(tb testing.TB, text string) rows.Spec {
	s, err := rows.Parse("rows=1000000,width=64," + text)
	if err != nil {
		tb.Fatal(err)
	}
	return s
}

// place returns the lane of each row.
func place(tb testing.TB, s rows.Spec, lanes int, frequencies []float32) []uint8 {
	c := chunk.Config{Lanes: make([]chunk.Lane, lanes)}
	for i := range c.Lanes {
		c.Lanes[i].Core = i
	}
	p, err := chunk.NewPlan(c)
	if err != nil {
		tb.Fatal(err)
	}
	t := chunk.Tensor{Name: "t", Elems: uint64(s.Rows) * uint64(s.Width), DType: chunk.F32, Width: uint32(s.Width)}
	per := int(t.PerChunk(p.ChunkBytes())) / s.Width
	for part := range slices.Chunk(frequencies, per) {
		sum := float32(0)
		for _, f := range part {
			sum += f
		}
		t.Touches = append(t.Touches, sum)
	}
	if err := p.Add([]chunk.Tensor{t}); err != nil {
		tb.Fatal(err)
	}
	out := make([]uint8, s.Rows)
	for i := range out {
		out[i] = uint8(p.Chunk(i / per).Lane)
	}
	return out
}

// overMean returns what the busiest has over the mean.
func overMean(of []float64) float64 {
	sum := 0.0
	for _, n := range of {
		sum += n
	}
	return slices.Max(of) * float64(len(of)) / sum
}

// perLane counts by lane the rows that all workers touch in a step.
func perLane(draws [][][]int64, step int, at []uint8, lanes int) []float64 {
	n := make([]float64, lanes)
	for _, of := range draws {
		for _, id := range of[step] {
			n[at[id]]++
		}
	}
	return n
}

// busiest returns what the busiest lane has over the mean, in all steps together and in the average step. Chunks that moved to
// where they balance each step best would bring the second down to 1.
func busiest(draws [][][]int64, at []uint8, lanes int) (overall, each float64) {
	all := make([]float64, lanes)
	for step := range rows.Steps {
		one := perLane(draws, step, at, lanes)
		each += overMean(one) / rows.Steps
		for i, n := range one {
			all[i] += n
		}
	}
	return overMean(all), each
}

// The draws depend on the seed alone, and the frequencies on the law, so that nothing here is left to chance.
func TestLanesPlacedByFrequencyAreTouchedAlike(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: it only computes, which a detector makes several times as long")
	}
	const lanes = 8
	for _, text := range skewed {
		s := parse(t, text)
		draws := s.Draws(1, 0, workers)
		plain, plainEach := busiest(draws, place(t, s, lanes, nil), lanes)
		placed, placedEach := busiest(draws, place(t, s, lanes, s.Frequencies(1)), lanes)
		t.Logf("%s: the busiest of %d lanes is touched %.3f of the mean, %.3f in a step; placed by frequency %.3f, %.3f in a step", text,
			lanes, plain, plainEach, placed, placedEach)
		if placed > 1.05 || placedEach > 1.1 {
			t.Errorf("%s: the busiest lane is touched %.3f of the mean, %.3f in a step", text, placed, placedEach)
		}
	}
}
