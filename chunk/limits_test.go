package chunk

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"unsafe"
)

func lanes(nics, cores int) []Lane {
	var ls []Lane
	for n := range nics {
		for c := range cores {
			ls = append(ls, Lane{NIC: n, Core: n*cores + c, Weight: 100_000})
		}
	}
	return ls
}

// hundredGB is an f32 model of 100 GB: 3.05 million chunks of 32 KiB.
var hundredGB = []Tensor{{"w", 25_000_000_000, F32, 0, nil}}

func TestChunkTakesAtMost24Bytes(t *testing.T) {
	p := build(t, Config{Lanes: lanes(10, 4)}, hundredGB)
	bytes := cap(p.chunks) * int(unsafe.Sizeof(placement{}))
	for i := range p.lanes {
		bytes += cap(p.lanes[i].chunks)*int(unsafe.Sizeof(uint32(0))) + cap(p.lanes[i].tensors)*int(unsafe.Sizeof(LaneTensor{}))
	}
	if got := float64(bytes) / float64(p.NumChunks()); p.NumChunks() != 3_051_758 || got > 24 {
		t.Errorf("%d chunks at %.1f bytes each", p.NumChunks(), got)
	}
	var least, most uint64
	for l := range p.NumLanes() {
		_, b := p.LaneLoad(l)
		if least == 0 || b < least {
			least = b
		}
		most = max(most, b)
	}
	if most-least > DefaultChunkBytes {
		t.Errorf("lanes hold from %d to %d bytes", least, most)
	}
}

func TestHundredThousandOneElementTensors(t *testing.T) {
	var model []Tensor
	for i := range 100_000 {
		model = append(model, Tensor{fmt.Sprint("t", i), 1, F32, 0, nil})
	}
	p := build(t, Config{Lanes: lanes(2, 2)}, model)
	for l := range p.NumLanes() {
		if n := len(p.LaneTensors(l)); n != 25_000 || len(p.LaneChunks(l)) != n {
			t.Errorf("lane %d: %d tensors, %d chunks", l, n, len(p.LaneChunks(l)))
		}
	}
}

// One lane fills while the sum over all lanes still fits: that shows only while chunks are placed, and the plan must come out
// of it unharmed.
func TestFullLaneIsAnErrorThatLeavesThePlanAsItWas(t *testing.T) {
	c := Config{ChunkBytes: MinChunkBytes, Lanes: []Lane{{NIC: 0, Core: 0, Weight: 1_000_000}, {NIC: 1, Core: 1, Weight: 1}}}
	p := build(t, c, []Tensor{{"a", 5000, F32, 0, nil}})
	before, text, hash := all(p), p.String(), p.Hash()
	err := p.Add([]Tensor{{"b", 10, F32, 0, nil}, {"c", (MaxLaneChunks + 100) * 1024, F32, 0, nil}})
	if !errors.Is(err, ErrInvalid) ||
		!strings.Contains(err.Error(), `tensor "c": lane 0 (NIC 0, core 0) already has the 2097152 chunks`) ||
		!strings.Contains(err.Error(), "raise the chunk size or use more lanes") {
		t.Fatal(err)
	}
	if !slices.Equal(all(p), before) || p.String() != text || p.Hash() != hash {
		t.Fatalf("the plan is now\n%s", p)
	}
	if err := p.Add([]Tensor{{"b", 10, F32, 0, nil}}); err != nil {
		t.Fatal(err)
	}
	again := build(t, c, []Tensor{{"a", 5000, F32, 0, nil}, {"b", 10, F32, 0, nil}})
	if p.Hash() != again.Hash() {
		t.Fatalf("got\n%s\nwant\n%s", p, again)
	}
}

// A lane may be full to the last index.
func TestLastIndexIsUsable(t *testing.T) {
	p := build(t, Config{ChunkBytes: MinChunkBytes, Lanes: lanes(1, 1)}, []Tensor{{"a", MaxLaneChunks * 1024, F32, 0, nil}})
	if last := p.Chunk(p.NumChunks() - 1); last.LaneIndex != MaxLaneChunks-1 {
		t.Errorf("last index %d", last.LaneIndex)
	}
	if err := p.Add([]Tensor{{"b", 1, F32, 0, nil}}); !errors.Is(err, ErrInvalid) {
		t.Errorf("one more: %v", err)
	}
}

func TestTooManyLanesAreRefused(t *testing.T) {
	if _, err := NewPlan(Config{Lanes: lanes(1, MaxLanes)}); err != nil {
		t.Error(err)
	}
	if _, err := NewPlan(Config{Lanes: lanes(1, MaxLanes+1)}); !errors.Is(err, ErrInvalid) {
		t.Error(err)
	}
}

func BenchmarkPlan100GB(b *testing.B) {
	for _, shape := range [][2]int{{1, 2}, {1, 8}, {10, 4}, {4, 64}} {
		b.Run(fmt.Sprintf("nics=%d/cores=%d", shape[0], shape[1]), func(b *testing.B) {
			for b.Loop() {
				build(b, Config{Lanes: lanes(shape[0], shape[1])}, hundredGB)
			}
		})
	}
}

func BenchmarkHash100GB(b *testing.B) {
	p := build(b, Config{Lanes: lanes(10, 4)}, hundredGB)
	for b.Loop() {
		p.Hash()
	}
}

func BenchmarkString100GB(b *testing.B) {
	p := build(b, Config{Lanes: lanes(10, 4)}, hundredGB)
	for b.Loop() {
		_ = p.String()
	}
}
