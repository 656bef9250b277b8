package kernel

import (
	"encoding/binary"
	"testing"

	"github.com/rackweave/rackweave/aggregate/optim"
	"github.com/rackweave/rackweave/chunk"
)

// everyBitPattern is each 16-bit element once, or f32s around every boundary of both 16-bit types: each upper half with
// lower halves that round down, tie, and round up.
func everyBitPattern(d chunk.DType) []byte {
	var b []byte
	for h := range 1 << 16 {
		if d != chunk.F32 {
			b = binary.LittleEndian.AppendUint16(b, uint16(h))
			continue
		}
		for _, low := range []uint32{0, 1, 0x0fff, 0x1000, 0x1001, 0x3000, 0x7fff, 0x8000, 0x8001, 0xffff} {
			b = binary.LittleEndian.AppendUint32(b, uint32(h)<<16|low)
		}
	}
	return b
}

func TestCastsOfEveryBitPatternAreTheReferences(t *testing.T) {
	eachISA(t, func(t *testing.T, isa ISA) {
		for _, from := range dtypes {
			x := everyBitPattern(from)
			n := len(x) / from.Size()
			for _, to := range dtypes {
				want := make([]byte, n*to.Size())
				optim.Convert(want, to, x, from, n)
				for _, streaming := range []bool{false, true} {
					a := newArena(t, len(x)+len(want))
					src, dst := a.take(n, from), a.take(n, to)
					copy(src, x)
					Convert(isa, address(dst), uint8(to), address(src), uint8(from), uint64(n), streaming)
					if i := firstDifference(dst, want); i >= 0 {
						i /= to.Size()
						t.Fatalf("%v to %v, streaming %v: %x becomes %x, want %x", from, to, streaming,
							x[i*from.Size():][:from.Size()], dst[i*to.Size():][:to.Size()], want[i*to.Size():][:to.Size()])
					}
				}
			}
		}
	})
}

func TestCastsWriteTheirRangeAndNoMore(t *testing.T) {
	eachISA(t, func(t *testing.T, isa ISA) {
		a := newArena(t, 1<<14)
		for _, from := range dtypes {
			for _, to := range dtypes {
				for _, n := range lengths {
					for shift := range 9 {
						for _, streaming := range []bool{false, true} {
							a.reset()
							src := a.place(draw(rndFor(uint64(n)), n, true), from)
							around := a.take(n+shift+37, to)
							for i := range around {
								around[i] = 0xa5
							}
							want := append([]byte(nil), around...)
							at := shift * to.Size()
							optim.Convert(want[at:at+n*to.Size()], to, src, from, n)
							Convert(isa, address(around[at:]), uint8(to), address(src), uint8(from), uint64(n), streaming)
							if err := equalBytes(around, want); err != nil {
								t.Fatalf("%v to %v, %d at %d, streaming %v: %v", from, to, n, shift, streaming, err)
							}
						}
					}
				}
			}
		}
	})
}

func TestProbeLeavesWhatItUpdatesAndZeroesWhatItWrites(t *testing.T) {
	eachISA(t, func(t *testing.T, isa ISA) {
		const lines = 37
		a := newArena(t, 3*lines*64)
		read, update, write := a.take(lines*16, chunk.F32), a.take(lines*16, chunk.F32), a.take(lines*16, chunk.F32)
		for i := range update {
			read[i], update[i], write[i] = 1, byte(i), 2
		}
		p := Probe{Read: []uint64{address(read)}, Update: []uint64{address(update)}, Write: []uint64{address(write)},
			Bytes: lines*64 + 63}
		for _, threads := range []int{1, 2, 40} {
			p.Run(isa, threads)
		}
		for i := range update {
			if read[i] != 1 || update[i] != byte(i) || write[i] != 0 {
				t.Fatalf("byte %d: read %d, update %d, write %d", i, read[i], update[i], write[i])
			}
		}
		if want := uint64(4 * (lines*64 + 63)); p.Moved() != want {
			t.Errorf("moves %d bytes, want %d", p.Moved(), want)
		}
	})
}

func TestDTypesAreTheChunks(t *testing.T) {
	if chunk.F32 != F32 || chunk.BF16 != BF16 || chunk.F16 != F16 {
		t.Error("the element types differ from package chunk's")
	}
}
