package chunk

import (
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// table returns a sparse tensor of chunks of one row each.
func table(name string, touches ...float32) Tensor {
	const width = MinChunkBytes/4 - RowBytes/4
	return Tensor{name, uint64(len(touches)) * width, F32, width, touches}
}

func TestLanesAreTouchedAlike(t *testing.T) {
	touch := rapid.OneOf(rapid.Just(float32(0)), rapid.Float32Range(0, 1), rapid.Float32Range(0, 100))
	rapid.Check(t, func(t *rapid.T) {
		var m []Tensor
		for i := range rapid.IntRange(1, 4).Draw(t, "tensors") {
			m = append(m, table(string(rune('a'+i)), rapid.SliceOfN(touch, 1, 100).Draw(t, "touches")...))
		}
		n := rapid.IntRange(1, 8).Draw(t, "lanes")
		p := build(t, Config{MinChunkBytes, lanes(1, n)}, m)
		byLane, sum, most, full := make([]float64, n), 0.0, 0.0, false
		for _, c := range all(p) {
			touches := float64(m[c.Tensor].Touches[c.Offset/uint64(c.Elems)])
			byLane[c.Lane] += touches
			sum, most = sum+touches, max(most, touches)
		}
		for i := range m {
			room := 2 * ((len(m[i].Touches)-1)/n + 1)
			rows := uint32(0)
			for l := range n {
				_, share, _ := p.LaneTensor(l, i)
				if full = full || int(share.Chunks) == room; int(share.Chunks) > room {
					t.Fatalf("lane %d has %d chunks of %d, on %d lanes", l, share.Chunks, len(m[i].Touches), n)
				}
				rows += p.LaneRows(l, i)
			}
			if int(rows) != len(m[i].Touches) {
				t.Fatalf("lanes have %d rows of %d", rows, len(m[i].Touches))
			}
		}
		// The last chunk went to the least touched lane, which had at most the mean.
		if busiest := slices.Max(byLane); !full && busiest > sum/float64(n)+most+1e-6*sum {
			t.Fatalf("lanes are touched %v times, and one chunk at most %v", byLane, most)
		}
	})
}

func TestAnotherEndFollowsWithoutTouches(t *testing.T) {
	c := Config{MinChunkBytes, lanes(2, 2)}
	p := build(t, c, []Tensor{table("a", 9, 1, 1, 0, 5, 3), {"dense", 9000, BF16, 0, nil}})
	other := build(t, c)
	var at []uint32
	for _, k := range all(p) {
		at = append(at, uint32(k.Lane))
	}
	if err := other.Follow([]Tensor{{p.Tensor(0).Name, p.Tensor(0).Elems, F32, p.Tensor(0).Width, nil}, p.Tensor(1)}, at); err != nil {
		t.Fatal(err)
	}
	if p.Hash() != other.Hash() || p.String() != other.String() {
		t.Errorf("got  %v\nwant %v", other, p)
	}
	if p.Tensor(0).Touches != nil {
		t.Error("the plan keeps touches")
	}
}

// Chunks that are hardly touched gather on the lanes without a hot one. Dense chunks, all of whose bytes travel, are dealt as ever.
func TestChunksPlacedByTouchesLeaveDenseOnesWhereTheyWere(t *testing.T) {
	c, dense := Config{MinChunkBytes, lanes(1, 4)}, Tensor{"dense", 40 * 1024, F32, 0, nil}
	p, alone := build(t, c, []Tensor{table("a", 100, 1, 1, 1, 1, 1, 1), dense}), build(t, c, []Tensor{dense})
	if _, share, _ := p.LaneTensor(0, 0); share.Chunks != 1 {
		t.Fatalf("%v", p)
	}
	for l := range 4 {
		_, got, _ := p.LaneTensor(l, 1)
		if _, want, _ := alone.LaneTensor(l, 0); got.Chunks != want.Chunks {
			t.Errorf("lane %d has %d dense chunks, want %d", l, got.Chunks, want.Chunks)
		}
	}
}

func TestAFasterNICIsTouchedMore(t *testing.T) {
	c := Config{MinChunkBytes, []Lane{{NIC: 0, Weight: 100}, {NIC: 1, Weight: 300}}}
	p := build(t, c, []Tensor{table("a", slices.Repeat([]float32{1}, 8)...)})
	if _, share, _ := p.LaneTensor(1, 0); share.Chunks != 6 {
		t.Errorf("%v", p)
	}
}

// Chunks that are touched alike are dealt as those whose touches are not known.
func TestEvenTouchesAreDealtByBytes(t *testing.T) {
	for _, touches := range []float32{0, 2} {
		c := Config{MinChunkBytes, lanes(1, 3)}
		even, plain := table("a", slices.Repeat([]float32{touches}, 10)...), table("a", make([]float32, 10)...)
		plain.Touches = nil
		if a, b := build(t, c, []Tensor{even}), build(t, c, []Tensor{plain}); a.Hash() != b.Hash() {
			t.Errorf("touched %v times each: got  %v\nwant %v", touches, a, b)
		}
	}
}

func TestBadTouchesAreRefusedByName(t *testing.T) {
	short := table("t", 1, 2)
	short.Elems *= 2
	for want, bad := range map[string]Tensor{
		`dense tensor "t" has touches of its chunks`: {"t", 10, F32, 0, []float32{1}},
		`"t" has touches of 2 chunks, and 4 chunks`:  short,
		`"t": chunk 1 is touched NaN times`:          table("t", 1, float32(math.NaN())),
		`"t": chunk 0 is touched -1 times`:           table("t", -1, 1),
		`"t": chunk 0 is touched +Inf times`:         table("t", float32(math.Inf(1))),
	} {
		p := build(t, Config{MinChunkBytes, lanes(1, 2)})
		if err := p.Add([]Tensor{bad}); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v; want an error with %q", err, want)
		}
	}
}
