package codec

import (
	"encoding/binary"
	"fmt"
	"math"
	mathbits "math/bits"
	"slices"
)

// usesBitmap reports whether a bitmap is shorter than k indexes of 16 bits, or names elements that they cannot.
func usesBitmap(elems, k int) bool { return bitmap(elems) < 2*k || elems > 1<<16 }

func bitmap(elems int) int { return (elems + 7) / 8 }

// sparseBytes returns the length of k values and their indexes.
func sparseBytes(elems, k int) int {
	if usesBitmap(elems, k) {
		return 4*k + bitmap(elems)
	}
	return 6 * k
}

// encodeSparse writes the values of the largest magnitudes, of equal ones those of the lowest indexes, and then their indexes.
func (s Spec) encodeSparse(h *Header, p []byte, x []float32) {
	order := make([]uint64, len(x)) // the bits of a magnitude, which falls from first to last, then the index
	for i, v := range x {
		order[i] = uint64(^bits(abs(v)))<<32 | uint64(i)
	}
	slices.Sort(order)
	k := s.kept(len(x))
	kept := make([]int, k)
	for n := range kept {
		kept[n] = int(uint32(order[n]))
	}
	slices.Sort(kept)
	h.Count = uint32(k)
	if usesBitmap(len(x), k) {
		h.Flags = flagBitmap
	}
	for n, i := range kept {
		putFloat(p[4*n:], x[i])
		if h.Flags == flagBitmap {
			p[4*k+i/8] |= 1 << (i % 8)
		} else {
			binary.LittleEndian.PutUint16(p[4*k+2*n:], uint16(i))
		}
	}
}

func (f Form) checkSparse(rest []byte, elems int) error {
	k := int(f.Count())
	if k > elems || len(rest) != sparseBytes(elems, k) || usesBitmap(elems, k) != (f.flags() == flagBitmap) {
		return fmt.Errorf("topk of %d elements, flags %#x", k, f.flags())
	}
	for n := range k {
		if v := getFloat(rest[4*n:]); !(abs(v) <= math.MaxFloat32) {
			return fmt.Errorf("value %d is %v", n, v)
		}
	}
	rest = rest[4*k:]
	if f.flags() == flagBitmap {
		set := 0
		for _, b := range rest {
			set += mathbits.OnesCount8(b)
		}
		if set != k || elems%8 != 0 && rest[elems/8]>>(elems%8) != 0 {
			return fmt.Errorf("the bitmap has %d elements, some of them maybe past the last, and there are %d values", set, k)
		}
		return nil
	}
	for n, before := 0, -1; n < k; n++ {
		i := int(binary.LittleEndian.Uint16(rest[2*n:]))
		if i <= before || i >= elems {
			return fmt.Errorf("index %d follows index %d", i, before)
		}
		before = i
	}
	return nil
}

func (f Form) decodeSparse(dst []float32, rest []byte) {
	clear(dst)
	k := int(f.Count())
	if f.flags() != flagBitmap {
		for n := range k {
			dst[binary.LittleEndian.Uint16(rest[4*k+2*n:])] = 0 + getFloat(rest[4*n:])
		}
		return
	}
	n := 0
	for i := range dst {
		if rest[4*k+i/8]>>(i%8)&1 != 0 {
			dst[i] = 0 + getFloat(rest[4*n:])
			n++
		}
	}
}
