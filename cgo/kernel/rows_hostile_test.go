package kernel

import (
	"encoding/binary"
	"math/rand/v2"
	"strconv"
	"testing"

	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/codec"
)

// listed returns the rows of a message, and whether they are what its header says.
func listed(h codec.Rows, p []byte) (ids []uint32, ok bool) {
	word := func(i int) uint32 { return binary.LittleEndian.Uint32(p[codec.RowsHeader+4*i:]) }
	if !h.Bitmap {
		for i := range int(h.Count) {
			ids = append(ids, word(i))
		}
	} else {
		for i := range (int(h.To-h.From) + 31) / 32 * 32 {
			if word(i/32)>>(i%32)&1 != 0 {
				ids = append(ids, h.From+uint32(i))
			}
		}
	}
	for i, id := range ids {
		if id < h.From || id >= h.To || i > 0 && id <= ids[i-1] {
			return nil, false
		}
	}
	return ids, len(ids) == int(h.Count)
}

// mergeAnything merges a message beside one that lists all rows, and changes its ids while that goes on. Every message lies between
// the ends of its memory.
func mergeAnything(t *testing.T, p, changes []byte, width, rows int, part uint32) {
	t.Helper()
	h, err := codec.ParseRows(p, uint32(len(p)), 4*width)
	if err != nil || h.Kind > codec.RowsWanted || h.From != 0 || h.To != uint32(rows) {
		return
	}
	rnd := rndFor(uint64(len(p)))
	s := newSparse(t, rnd, rows, 1+rnd.IntN(rows), width)
	r := s.describe()
	r.What, r.SrcType, r.OutType, r.Cap = SumRows, F32, F32, uint32(rows)
	r.Scalar[0], r.Scalar[1] = 1, 1e9
	r.Block = address(newArena(t, rows*4*(1+width)).take(rows*(1+width), chunk.F32))
	var all []uint32
	for row := range uint32(rows) {
		all = append(all, row)
	}
	other := codec.AppendRows(nil, codec.RowsWanted, 0, uint32(rows), all, make([]byte, 4*rows*width))
	a := newArena(t, len(p))
	src := []RowSource{source(newArena(t, len(other)), other, 4*width), source(a, p, 4*width)}
	mem := a.mem[a.free:]
	want, ok := listed(h, p)
	changed := false
	reached, wrong := uint32(0), -1
	for reached < r.Rows && wrong < 0 {
		reached, wrong = r.Merge(Scalar, src, nil, reached, min(r.Rows, reached+part))
		if src[1].at > h.Count || wrong == 0 {
			t.Fatalf("%d of %d rows were taken, and source %d is wrong", src[1].at, h.Count, wrong)
		}
		if len(changes) > 0 && h.Offset() > codec.RowsHeader {
			mem[codec.RowsHeader+int(changes[0])%(h.Offset()-codec.RowsHeader)] ^= 1 << (changes[0] % 8)
			changes, changed = changes[1:], true
		}
	}
	if r.Count != reached {
		t.Fatalf("%d rows were merged, of %d", r.Count, reached)
	}
	if !changed && ok != (wrong < 0) {
		t.Fatalf("source %d is wrong, the message of rows %v is right: %v", wrong, want, ok)
	}
	if wrong < 0 && src[1].at != h.Count {
		t.Fatalf("%d of %d rows were taken", src[1].at, h.Count)
	}
}

func FuzzRows(f *testing.F) {
	values := make([]byte, 4*3*40)
	f.Add(codec.AppendRows(nil, codec.RowsWanted, 0, 40, []uint32{3, 4, 39}, values[:4*3*3]), []byte{}, uint8(7))
	bits := []uint32{0, 1, 2, 3, 5, 8, 39}
	f.Add(codec.AppendRows(nil, codec.RowsGradient, 0, 40, bits, values[:4*3*7]), []byte{4, 9, 200}, uint8(3))
	f.Fuzz(func(t *testing.T, p, changes []byte, part uint8) {
		mergeAnything(t, p, changes, 3, 40, uint32(part%41)+1)
	})
}

func TestAListThatLiesIsReported(t *testing.T) {
	rnd := rand.New(rand.NewPCG(33, 0))
	wrong := 0
	for trial := range 500 {
		const rows, width = 300, 2
		ids := []uint32{}
		few := 3 + trial%2*60 // of so many rows one, by ids or by bitmap
		for row := range uint32(rows) {
			if len(ids) == 0 || rnd.IntN(few) == 0 {
				ids = append(ids, row)
			}
		}
		p := codec.AppendRows(nil, codec.RowsGradient, 0, rows, ids, make([]byte, 4*width*len(ids)))
		h, err := codec.ParseRows(p, uint32(len(p)), 4*width)
		if err != nil {
			t.Fatal(err)
		}
		for range 1 + rnd.IntN(2) {
			p[codec.RowsHeader+rnd.IntN(h.Offset()-codec.RowsHeader)] ^= 1 << rnd.IntN(8)
		}
		if _, ok := listed(h, p); !ok {
			wrong++
		}
		changes := make([]byte, rnd.IntN(2)*10)
		for i := range changes {
			changes[i] = byte(rnd.Uint32())
		}
		part := 1 + rnd.Uint32N(rows)
		t.Run(strconv.Itoa(trial), func(t *testing.T) { mergeAnything(t, p, changes, width, rows, part) })
	}
	if wrong == 0 {
		t.Error("no change made a list wrong: the test does not see what may change")
	}
}
