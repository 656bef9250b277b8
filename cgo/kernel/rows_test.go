package kernel

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"unsafe"

	"github.com/rackweave/rackweave/aggregate/optim"
	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/codec"
)

const (
	rowArrays   = 4 // weights, two states, and the accumulator
	accumulator = 3
)

// sparse is a lane's part of a sparse tensor, by the kernels and by the plain reference.
type sparse struct {
	rows, perChunk, width int
	pitch                 int // in elements
	mem                   []byte
	plain                 []float32 // what mem should hold
	touched, heat         []uint64
	accumulated           map[int]bool // what touched should have
}

func (s *sparse) elems(k int) int { return min(s.perChunk, s.rows-k*s.perChunk) * s.width }

// newSparse draws a tensor whose memory ends at the guard page of an arena.
func newSparse(t testing.TB, rnd *rand.Rand, rows, perChunk, width int) *sparse {
	s := &sparse{rows: rows, perChunk: perChunk, width: width, accumulated: map[int]bool{}}
	s.pitch = (rowArrays*(perChunk*width+16) + rnd.IntN(3)*16) / 16 * 16
	chunks := (rows + perChunk - 1) / perChunk
	n := (chunks-1)*s.pitch + (rowArrays-1)*((s.elems(chunks-1)+15)/16*16) + s.elems(chunks-1)
	n = (n + 15) / 16 * 16
	s.plain = draw(rnd, n, false)
	for i := range s.plain {
		s.plain[i] = abs32(s.plain[i]) // second moments are positive
	}
	s.mem = newArena(t, 4*n).place(s.plain, chunk.F32)
	words := (rows + 63) / 64
	s.heat = unsafe.Slice((*uint64)(unsafe.Pointer(&newArena(t, 8*chunks).take(2*chunks, chunk.F32)[0])), chunks)
	s.touched = unsafe.Slice((*uint64)(unsafe.Pointer(&newArena(t, 8*words).take(2*words, chunk.F32)[0])), words)
	return s
}

func abs32(x float32) float32 { return float32(math.Abs(float64(x))) }

func (s *sparse) describe() Rows {
	return Rows{Base: address(s.mem), Pitch: uint64(4 * s.pitch), Touched: uint64(uintptr(unsafe.Pointer(&s.touched[0]))),
		Heat: uint64(uintptr(unsafe.Pointer(&s.heat[0]))),
		Rows: uint32(s.rows), PerChunk: uint32(s.perChunk), Width: uint32(s.width), Accumulator: accumulator}
}

// array returns the part of an array that holds a row.
func (s *sparse) array(i, row int) []float32 {
	k := row / s.perChunk
	return s.plain[k*s.pitch+i*((s.elems(k)+15)/16*16)+row%s.perChunk*s.width:][:s.width]
}

func (s *sparse) update(rule optim.Rule, k *optim.Scalars, row int, grads [][]float32) []float32 {
	var states [optim.MaxStates][]float32
	states[0], states[1] = s.array(1, row), s.array(2, row)
	optim.Update(rule, k, s.array(0, row), states, grads, nil)
	return s.array(0, row)
}

// check tells where the memory differs from the reference.
func (s *sparse) check() error {
	if err := sameBits(decoded(s.mem, chunk.F32), s.plain); err != nil {
		return err
	}
	for row := range s.rows {
		if got := s.touched[row/64]>>(row%64)&1 != 0; got != s.accumulated[row] {
			return fmt.Errorf("row %d touched: %v, want %v", row, got, s.accumulated[row])
		}
	}
	return nil
}

// pushed holds one rank's rows with their ids, which ascend, and the messages that carry them.
type pushed struct {
	rows     map[int][]float32
	messages []RowSource
}

// push draws a rank's rows, and puts the messages with them into the arena.
func (s *sparse) push(rnd *rand.Rand, a *arena, share float64, d chunk.DType) pushed {
	p := pushed{rows: map[int][]float32{}}
	for from, to := 0, 0; from < s.rows; from = to {
		to = min(s.rows, from+1+rnd.IntN(s.rows+10))
		var ids []uint32
		var values []byte
		for row := from; row < to; row++ {
			if rnd.Float64() >= share {
				continue
			}
			ids = append(ids, uint32(row))
			mem := make([]byte, s.width*d.Size())
			optim.Encode(mem, draw(rnd, s.width, false), d)
			values, p.rows[row] = append(values, mem...), decoded(mem, d)
		}
		p.messages = append(p.messages, source(a, codec.AppendRows(nil, codec.RowsWanted, uint32(from), uint32(to), ids, values),
			s.width*d.Size()))
	}
	return p
}

// source places a message in an arena, 4 bytes aligned, and begins it.
func source(a *arena, p []byte, rowBytes int) RowSource {
	h, err := codec.ParseRows(p, uint32(len(p)), rowBytes)
	if err != nil {
		panic(err)
	}
	mem := a.take((len(p)+3)/4, chunk.F32)
	copy(mem, p)
	at := address(mem)
	src := RowSource{IDs: at + codec.RowsHeader, Rows: at + uint64(h.Offset()), Count: h.Count, From: h.From, To: h.To}
	if h.Bitmap {
		src.Form = 1
	}
	src.Begin()
	return src
}

// block is a result block, and what the blocks before it had.
type block struct {
	mem  []byte
	outs [][]byte // if any, the rows go here
	cap  int
	ids  []uint32
	rows []byte
}

func (b *block) drain(r *Rows) {
	size := int(r.Width) * chunk.DType(r.OutType).Size()
	for i := range int(r.Count) {
		b.ids = append(b.ids, binary.LittleEndian.Uint32(b.mem[4*i:]))
		from := b.mem
		if n := len(b.outs); n > 0 {
			from = b.outs[i%n]
		}
		b.rows = append(b.rows, from[4*b.cap+i*size:][:size]...)
	}
	r.Count = 0
}

// merge merges what all ranks push, up to the frontier of their messages, as an aggregator does.
func merge(t *testing.T, isa ISA, rnd *rand.Rand, r *Rows, b *block, pushes []pushed) {
	t.Helper()
	next := make([]int, len(pushes))
	src := make([]RowSource, len(pushes))
	for j := range pushes {
		src[j] = pushes[j].messages[0]
	}
	var outs []uint64
	for _, out := range b.outs {
		outs = append(outs, address(out))
	}
	for done := uint32(0); done < r.Rows; {
		frontier := r.Rows
		for j := range src {
			if src[j].To <= done {
				next[j]++
				src[j] = pushes[j].messages[next[j]]
			}
			frontier = min(frontier, src[j].To)
		}
		reached, wrong := r.Merge(isa, src, outs, done, done+1+rnd.Uint32N(frontier-done))
		if wrong >= 0 {
			t.Fatalf("source %d is wrong: %+v", wrong, src[wrong])
		}
		if r.Block != 0 && (reached == done || rnd.IntN(9) == 0) {
			if reached == done && int(r.Count) != b.cap {
				t.Fatalf("nothing was merged from row %d on, and the block has %d rows of %d", done, r.Count, b.cap)
			}
			b.drain(r)
		}
		done = reached
	}
	if r.Block != 0 {
		b.drain(r)
	}
}

func (b *block) check(rows [][]float32, ids []uint32, d chunk.DType) error {
	if !slices.Equal(b.ids, ids) {
		return fmt.Errorf("blocks have rows %v, want %v", b.ids, ids)
	}
	want := make([]byte, len(b.rows))
	optim.Encode(want, slices.Concat(rows...), d)
	return sameBits(decoded(b.rows, d), decoded(want, d))
}

func TestMergedRowsAreTheReferencesBits(t *testing.T) {
	rules := []optim.Rule{optim.SGDMXNet, optim.SGDTorch, optim.AdamTorch, optim.AdagradMXNet, optim.FtrlMXNet}
	eachISA(t, func(t *testing.T, isa ISA) {
		rnd := rand.New(rand.NewPCG(31, uint64(isa)))
		for trial := range fewer(150, 50) {
			width := []int{1, 3, 64, 1000}[trial%4]
			rows := 1 + rnd.IntN(400)
			if width == 1000 {
				rows = 1 + rnd.IntN(20)
			}
			s := newSparse(t, rnd, rows, 1+rnd.IntN(rows+5), width)
			srcType, outType := dtypes[rnd.IntN(3)], dtypes[rnd.IntN(3)]
			rule := rules[rnd.IntN(len(rules))]
			h := rule.Defaults()
			h.Momentum, h.WD = float64(rnd.IntN(2))*0.9, float64(rnd.IntN(2))*0.1
			scalars := optim.Derive(rule, h, 3)
			r := s.describe()
			r.What, r.Rule, r.SrcType, r.OutType, r.Scalar = uint8(trial/4%3), uint8(rule), uint8(srcType), uint8(outType), scalars
			r.Standard = uint8(rnd.IntN(2))
			name := fmt.Sprintf("trial %d: %d x %v[%d] to %v, what %d, %v, standard %d", trial, rows, srcType, width, outType, r.What,
				rule, r.Standard)
			b := &block{cap: 1 + rnd.IntN(rows)}
			if r.What != AccumulateRows && rnd.IntN(4) != 0 {
				take := func() []byte { // ends with its memory
					mem := newArena(t, b.cap*(4+width*outType.Size())).mem
					return mem[(len(mem)-b.cap*(4+width*outType.Size()))/4*4:]
				}
				b.mem = take()
				for range rnd.IntN(4) {
					b.outs = append(b.outs, take())
				}
				r.Block, r.Cap = address(b.mem), uint32(b.cap)
			}
			for range 2 {
				b.ids, b.rows = nil, nil
				var pushes []pushed
				for range 1 + rnd.IntN(6) {
					share := []float64{0.01, 0.1, 0.9, 1, 0}[rnd.IntN(5)]
					pushes = append(pushes, s.push(rnd, newArena(t, 4*(rows+1)*(width+64)), share, srcType))
				}
				merge(t, isa, rnd, &r, b, pushes)
				var results [][]float32
				var ids []uint32
				for row := range rows {
					var grads [][]float32
					for _, p := range pushes {
						if g, ok := p.rows[row]; ok {
							grads = append(grads, g)
						}
					}
					none := len(grads) == 0
					if none && (r.Standard == 0 || r.What != UpdateRows) {
						continue
					} else if none {
						grads = [][]float32{make([]float32, width)}
					}
					var out []float32
					switch r.What {
					case UpdateRows:
						out = s.update(rule, &scalars, row, grads)
					case SumRows:
						out = make([]float32, width)
						optim.Update(optim.Sum, &scalars, nil, [optim.MaxStates][]float32{}, grads, out)
					case AccumulateRows:
						optim.SumInto(s.array(accumulator, row), grads, s.accumulated[row])
						s.accumulated[row] = true
					}
					if !none {
						results, ids = append(results, slices.Clone(out)), append(ids, uint32(row))
					}
				}
				if err := s.check(); err != nil {
					t.Fatalf("%s: %v", name, err)
				}
				if r.Block != 0 {
					if err := b.check(results, ids, outType); err != nil {
						t.Fatalf("%s: %v", name, err)
					}
				}
			}
			if r.What == AccumulateRows {
				s.apply(t, isa, rnd, &r, rule, &scalars, name)
			}
		}
	})
}

// apply measures what was accumulated, and applies or drops it, in parts.
func (s *sparse) apply(t *testing.T, isa ISA, rnd *rand.Rand, r *Rows, rule optim.Rule, scalars *optim.Scalars, name string) {
	t.Helper()
	var sumSq float64
	drop := rnd.IntN(4) == 0
	for row := range s.rows {
		if s.accumulated[row] {
			sumSq += optim.SumSq(s.array(accumulator, row))
		}
		switch {
		case drop:
		case s.accumulated[row]:
			s.update(rule, scalars, row, [][]float32{s.array(accumulator, row)})
		case r.Standard == 1:
			s.update(rule, scalars, row, [][]float32{make([]float32, s.width)})
		}
	}
	s.accumulated = nil
	whats := []uint8{MeasureRows, ApplyRows}
	if drop {
		whats[1] = DropRows
	}
	for _, r.What = range whats {
		for from, to := 0, 0; from < s.rows; from = to {
			to = min(s.rows, from+rnd.IntN(s.rows+10))
			r.Apply(isa, uint32(from), uint32(to))
		}
	}
	if err := s.check(); err != nil {
		t.Fatalf("%s: applied, drop %v: %v", name, drop, err)
	}
	if r.SumSq != sumSq {
		t.Fatalf("%s: the sum of squares is %v, want %v", name, r.SumSq, sumSq)
	}
}

func TestGatheredRowsAreThoseOfTheIds(t *testing.T) {
	eachISA(t, func(t *testing.T, isa ISA) {
		rnd := rand.New(rand.NewPCG(32, uint64(isa)))
		for _, width := range []int{1, 3, 64, 1000} {
			for _, d := range dtypes {
				s := newSparse(t, rnd, 100, 1+rnd.IntN(110), width)
				r := s.describe()
				count := rnd.IntN(60)
				ids, want := newArena(t, 4*count+4).take(count, chunk.F32), []float32{}
				for i := range count {
					row := rnd.IntN(s.rows)
					binary.LittleEndian.PutUint32(ids[4*i:], uint32(row))
					want = append(want, s.array(0, row)...)
				}
				dst, rounded := newArena(t, 4*count*width+4).take(count*width, d), make([]byte, count*width*d.Size())
				optim.Encode(rounded, want, d)
				if wrong := r.Gather(isa, address(ids), uint32(count), address(dst), uint8(d)); wrong >= 0 {
					t.Fatalf("id %d of %d is wrong", wrong, count)
				}
				if err := equalBytes(dst, rounded); err != nil {
					t.Fatalf("%d rows of %v[%d]: %v", count, d, width, err)
				}
				if count > 0 {
					bad := rnd.IntN(count)
					binary.LittleEndian.PutUint32(ids[4*bad:], uint32(s.rows))
					if wrong := r.Gather(isa, address(ids), uint32(count), address(dst), uint8(d)); wrong != bad {
						t.Errorf("id %d of %d is wrong: got %d", bad, count, wrong)
					}
				}
			}
		}
	})
}
