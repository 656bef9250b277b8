package report

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestMedian(t *testing.T) {
	for _, c := range []struct {
		values []float64
		want   float64
	}{
		{nil, 0},
		{[]float64{3}, 3},
		{[]float64{3, 1}, 2},
		{[]float64{9, 1, 5}, 5},
		{[]float64{4, 1, 3, 2}, 2.5},
	} {
		if got := Median(c.values); got != c.want {
			t.Errorf("Median(%v) = %v, want %v", c.values, got, c.want)
		}
	}
}

func TestContenderComparesEachRoundWithItself(t *testing.T) {
	round := func(name string, p50, p99 float64) Times {
		return Times{Name: name, Version: "1", Setting: "as is", Bytes: 1_000_000, Workers: 4, TimeUS: TimeUS{P50: p50, P99: p99},
			Wrong: 1}
	}
	ours := []Times{round("ours", 100, 110), round("ours", 200, 220), round("ours", 100, 120)}
	theirs := []Times{round("gloo", 700, 900), {Name: "gloo"}, round("gloo", 500, 600)}
	got := NewContender(theirs, ours, errors.New("round 2 failed"))
	want := Contender{
		Name: "gloo", Version: "1", Setting: "as is",
		RoundUS: []float64{700, 0, 500}, MedianUS: 600, P99US: 750,
		AlgBW: AlgBW(1_000_000, 600), BusBW: BusBW(AlgBW(1_000_000, 600), 4),
		Wrong: 2, Ratio: 6, RatioMin: 5, RatioMax: 7, Error: "round 2 failed",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("contender (-want +got):\n%s", diff)
	}
}

func TestContenderThatNeverRanKeepsNameAndError(t *testing.T) {
	got := NewContender([]Times{{Name: "mpi"}}, []Times{{Name: "ours", Workers: 1}}, errors.New("no room"))
	if got.Name != "mpi" || got.Error != "no room" || got.MedianUS != 0 || got.Ratio != 0 {
		t.Errorf("contender = %+v, want the name, the error and no times", got)
	}
}
