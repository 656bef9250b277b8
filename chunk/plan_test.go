package chunk

import (
	"fmt"
	"math/big"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

var configs = rapid.Custom(func(t *rapid.T) Config {
	c := Config{ChunkBytes: 4096 << rapid.IntRange(0, 3).Draw(t, "chunk size")}
	weighted := rapid.Bool().Draw(t, "weighted")
	for nic := range rapid.IntRange(1, 4).Draw(t, "nics") {
		var weight uint32
		if weighted {
			weight = rapid.OneOf(rapid.SampledFrom([]uint32{10_000, 25_000, 100_000, 400_000}), rapid.Uint32Min(1)).Draw(t, "weight")
		}
		for core := range rapid.IntRange(1, 4).Draw(t, "cores") {
			c.Lanes = append(c.Lanes, Lane{NIC: 7 * nic, Core: core, Weight: weight})
		}
	}
	c.Lanes = rapid.Permutation(c.Lanes).Draw(t, "lanes")
	return c
})

var models = rapid.Custom(func(t *rapid.T) []Tensor {
	elems := rapid.OneOf(rapid.Just(uint64(1)), rapid.Uint64Range(1, 10_000), rapid.Uint64Range(1, 200_000))
	var m []Tensor
	for i := range rapid.IntRange(0, 20).Draw(t, "tensors") {
		dtype := rapid.SampledFrom([]DType{F32, BF16, F16}).Draw(t, "dtype")
		n, width := elems.Draw(t, "elems"), rapid.SampledFrom([]uint32{0, 0, 1, 3, 64, 1000}).Draw(t, "width")
		if w := uint64(width); w > 0 {
			n = (n + w - 1) / w * w
		}
		m = append(m, Tensor{"t" + strconv.Itoa(i), n, dtype, width, nil})
	}
	return m
})

func build(t rapid.TB, c Config, batches ...[]Tensor) *Plan {
	p, err := NewPlan(c)
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range batches {
		if err := p.Add(b); err != nil {
			t.Fatal(err)
		}
	}
	return p
}

func all(p *Plan) []Chunk {
	var cs []Chunk
	for id := range p.NumChunks() {
		cs = append(cs, p.Chunk(id))
	}
	return cs
}

// fullChunk returns the number of elements in a full chunk.
func fullChunk(c Config, t Tensor) uint64 {
	n := uint64(c.ChunkBytes / t.DType.Size())
	if t.Width > 0 {
		return n / uint64(t.Width) * uint64(t.Width)
	}
	return n
}

// oracle places one chunk at a time with exact fractions and no state but the chunks so far.
func oracle(c Config, model []Tensor) (chunks []Chunk) {
	bytesOf := func(in func(Lane) bool) (sum int64) {
		for _, k := range chunks {
			if in(c.Lanes[k.Lane]) {
				sum += int64(k.Elems * model[k.Tensor].DType.Size())
			}
		}
		return sum
	}
	for ti, t := range model {
		for off := uint64(0); off < t.Elems; {
			elems := min(t.Elems-off, fullChunk(c, t))
			best, bestDone, bestBytes := -1, new(big.Rat), int64(0)
			for i, l := range c.Lanes {
				nic := bytesOf(func(o Lane) bool { return o.NIC == l.NIC })
				core := bytesOf(func(o Lane) bool { return o == l })
				done := big.NewRat(nic+int64(elems)*int64(t.DType.Size()), int64(max(l.Weight, 1)))
				sameNIC := best >= 0 && c.Lanes[best].NIC == l.NIC
				if best < 0 || done.Cmp(bestDone) < 0 || sameNIC && core < bestBytes {
					best, bestDone, bestBytes = i, done, core
				}
			}
			index := 0
			for _, k := range chunks {
				if k.Lane == best {
					index++
				}
			}
			chunks = append(chunks, Chunk{ti, off, int(elems), best, index})
			off += elems
		}
	}
	return chunks
}

func TestPlacementIsTheOracles(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c, m := configs.Draw(t, "config"), models.Draw(t, "model")
		if got, want := all(build(t, c, m)), oracle(c, m); !slices.Equal(got, want) {
			t.Fatalf("got  %v\nwant %v", got, want)
		}
	})
}

func TestEveryElementIsCoveredOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c, m := configs.Draw(t, "config"), models.Draw(t, "model")
		p := build(t, c, m)
		for i, want := range m {
			if !reflect.DeepEqual(p.Tensor(i), want) {
				t.Fatalf("tensor %d is %v, not %v", i, p.Tensor(i), want)
			}
			if at, ok := p.Lookup(want.Name); !ok || at != i {
				t.Fatalf("Lookup(%q) = %d, %v", want.Name, at, ok)
			}
			next := uint64(0)
			first, end := p.TensorChunks(i)
			for id := first; id < end; id++ {
				k := p.Chunk(id)
				full := int(fullChunk(c, want))
				if k.Tensor != i || k.Offset != next || k.Elems < 1 || k.Elems > full || k.Elems < full && id != end-1 {
					t.Fatalf("chunk %d of tensor %d at element %d: %+v", id, i, next, k)
				}
				next += uint64(k.Elems)
			}
			if next != want.Elems {
				t.Fatalf("tensor %d: %d elements covered of %d", i, next, want.Elems)
			}
		}
	})
}

// The views by lane tell of the same chunks as the view by number.
func TestLaneViewsAgreeWithChunks(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c, m := configs.Draw(t, "config"), models.Draw(t, "model")
		p := build(t, c, m)
		total := 0
		for l := range p.NumLanes() {
			if p.lanes[l].Lane != c.Lanes[l] {
				t.Fatalf("lane %d is %v, not %v", l, p.lanes[l].Lane, c.Lanes[l])
			}
			var elems, bytes uint64
			rows := map[int]uint64{}
			share := map[int][]int{} // tensor: lane indices
			for i, id := range p.LaneChunks(l) {
				k := p.Chunk(int(id))
				if k.Lane != l || k.LaneIndex != i {
					t.Fatalf("lane %d, index %d: chunk %d is %+v", l, i, id, k)
				}
				elems += uint64(k.Elems)
				bytes += uint64(k.Elems * m[k.Tensor].DType.Size())
				share[k.Tensor] = append(share[k.Tensor], i)
				if w := m[k.Tensor].Width; w > 0 {
					rows[k.Tensor] += uint64(k.Elems) / uint64(w)
				}
				total++
			}
			if e, b := p.LaneLoad(l); e != elems || b != bytes {
				t.Fatalf("lane %d: load %d elements, %d bytes; chunks have %d, %d", l, e, b, elems, bytes)
			}
			last := -1
			for i, lt := range p.LaneTensors(l) {
				want := share[int(lt.Tensor)]
				if int(lt.Tensor) <= last || len(want) != int(lt.Chunks) || want[0] != int(lt.First) ||
					want[len(want)-1] != int(lt.First+lt.Chunks-1) {
					t.Fatalf("lane %d, tensor %d: share %+v, chunks at %v", l, i, lt, want)
				}
				last = int(lt.Tensor)
			}
			for ti := range m {
				if got := p.LaneRows(l, ti); uint64(got) != rows[ti] {
					t.Fatalf("lane %d, tensor %d: %d rows, chunks have %d", l, ti, got, rows[ti])
				}
				i, lt, ok := p.LaneTensor(l, ti)
				if ok != (share[ti] != nil) || ok && p.LaneTensors(l)[i] != lt || ok && int(lt.Tensor) != ti {
					t.Fatalf("lane %d: LaneTensor(%d) = %d, %+v, %v", l, ti, i, lt, ok)
				}
			}
			if len(p.LaneTensors(l)) != len(share) {
				t.Fatalf("lane %d: %d tensors listed, %d have chunks", l, len(p.LaneTensors(l)), len(share))
			}
		}
		if total != p.NumChunks() {
			t.Fatalf("lanes have %d chunks of %d", total, p.NumChunks())
		}
	})
}

// NICs stay within one chunk of each other at their link speeds, cores of a NIC within one chunk in bytes.
func TestLanesAreBalanced(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c, m := configs.Draw(t, "config"), models.Draw(t, "model")
		p := build(t, c, m)
		load, weight := map[int]int64{}, map[int]int64{}
		for l, lane := range c.Lanes {
			_, bytes := p.LaneLoad(l)
			load[lane.NIC] += int64(bytes)
			weight[lane.NIC] = int64(max(lane.Weight, 1))
			for o, other := range c.Lanes {
				if _, least := p.LaneLoad(o); other.NIC == lane.NIC && bytes > least+uint64(c.ChunkBytes) {
					t.Fatalf("lane %d has %d bytes, lane %d of the same NIC %d", l, bytes, o, least)
				}
			}
		}
		for i := range load {
			for j := range load {
				if big.NewRat(load[i], weight[i]).Cmp(big.NewRat(load[j]+int64(c.ChunkBytes), weight[j])) > 0 {
					t.Fatalf("NIC %d has %d bytes at weight %d, NIC %d has %d at %d", i, load[i], weight[i], j, load[j], weight[j])
				}
			}
		}
	})
}

func TestBatchesDoNotMoveChunks(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c, m := configs.Draw(t, "config"), models.Draw(t, "model")
		p := build(t, c)
		for rest := m; len(rest) > 0; {
			n := rapid.IntRange(1, len(rest)).Draw(t, "batch")
			before := all(p)
			if err := p.Add(rest[:n]); err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(all(p)[:len(before)], before) {
				t.Fatal("chunks moved")
			}
			rest = rest[n:]
		}
		once := build(t, c, m)
		if p.String() != once.String() || p.Hash() != once.Hash() {
			t.Fatalf("in batches:\n%s\nat once:\n%s", p, once)
		}
	})
}

func TestHashTellsPlansApart(t *testing.T) {
	lanes := []Lane{{NIC: 0, Core: 0, Weight: 10}, {NIC: 1, Core: 1, Weight: 10}}
	model := []Tensor{{"ab", 5000, F32, 0, nil}, {"c", 1, F32, 0, nil}}
	seen := map[[32]byte]string{}
	for name, p := range map[string]*Plan{
		"plain":       build(t, Config{4096, lanes}, model),
		"empty":       build(t, Config{4096, lanes}),
		"chunk size":  build(t, Config{8192, lanes}, model),
		"core":        build(t, Config{4096, []Lane{{NIC: 0, Core: 0, Weight: 10}, {NIC: 1, Core: 2, Weight: 10}}}, model),
		"weight":      build(t, Config{4096, []Lane{{NIC: 0, Core: 0, Weight: 11}, {NIC: 1, Core: 1, Weight: 11}}}, model),
		"names":       build(t, Config{4096, lanes}, []Tensor{{"a", 5000, F32, 0, nil}, {"bc", 1, F32, 0, nil}}),
		"elems":       build(t, Config{4096, lanes}, []Tensor{{"ab", 5001, F32, 0, nil}, {"c", 1, F32, 0, nil}}),
		"dtype":       build(t, Config{4096, lanes}, []Tensor{{"ab", 5000, F32, 0, nil}, {"c", 1, F16, 0, nil}}),
		"dtype alike": build(t, Config{4096, lanes}, []Tensor{{"ab", 5000, F32, 0, nil}, {"c", 1, BF16, 0, nil}}),
		"sparse":      build(t, Config{4096, lanes}, []Tensor{{"ab", 5000, F32, 1, nil}, {"c", 1, F32, 0, nil}}),
		"width alike": build(t, Config{4096, lanes}, []Tensor{{"ab", 5000, F32, 2, nil}, {"c", 1, F32, 0, nil}}),
	} {
		if other, dup := seen[p.Hash()]; dup {
			t.Errorf("%q has the hash of %q", name, other)
		}
		seen[p.Hash()] = name
	}
}

func TestDTypesAreTheKernels(t *testing.T) {
	header, err := os.ReadFile("../cgo/kernel/kernel.h")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for d := F32; d <= F16; d++ {
		names = append(names, fmt.Sprintf("RWK_%s = %d", strings.ToUpper(d.String()), d))
		if back, err := ParseDType(d.String()); err != nil || back != d {
			t.Errorf("ParseDType(%q) = %v, %v", d, back, err)
		}
	}
	if want := "enum rwk_dtype { " + strings.Join(names, ", ") + " };"; !strings.Contains(string(header), want) {
		t.Errorf("kernel.h does not have %q", want)
	}
	if F32.Size() != 4 || BF16.Size() != 2 || F16.Size() != 2 || DType(0).Size() != 0 {
		t.Error("wrong sizes")
	}
	if _, err := ParseDType("fp32"); err == nil || err.Error() != `unknown dtype "fp32": use f32, bf16 or f16` {
		t.Errorf("ParseDType of nonsense: %v", err)
	}
}
