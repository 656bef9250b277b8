package optim

import (
	"encoding/binary"
	"math"

	"github.com/rackweave/rackweave/chunk"
)

// BF16 rounds x to bfloat16, to nearest even. A NaN keeps its sign and upper payload bits and becomes quiet.
func BF16(x float32) uint16 {
	b := math.Float32bits(x)
	if b&0x7fffffff > 0x7f800000 {
		return uint16(b>>16) | 0x40
	}
	return uint16((b + 0x7fff + b>>16&1) >> 16)
}

// FromBF16 widens a bfloat16, exactly.
func FromBF16(h uint16) float32 { return math.Float32frombits(uint32(h) << 16) }

// F16 rounds x to IEEE half precision, to nearest even. It keeps subnormals, and rounds values that are too large to infinity. A
// NaN keeps its sign and upper payload bits and becomes quiet.
func F16(x float32) uint16 {
	b := math.Float32bits(x)
	sign, b := uint16(b>>16&0x8000), b&0x7fffffff
	switch {
	case b > 0x7f800000: // NaN
		return sign | 0x7e00 | uint16(b>>13&0x3ff)
	case b >= 0x477ff000: // 65520 and more round to infinity
		return sign | 0x7c00
	case b < 0x38800000: // below 2^-14: adding 0.5 rounds to a multiple of 2^-24
		return sign | uint16(math.Float32bits(math.Float32frombits(b)+0.5)-math.Float32bits(0.5))
	}
	b -= (127 - 15) << 23
	return sign | uint16((b+0xfff+b>>13&1)>>13)
}

// FromF16 widens a half, exactly; a NaN becomes quiet.
func FromF16(h uint16) float32 {
	sign, exp, frac := uint32(h&0x8000)<<16, uint32(h>>10&0x1f), uint32(h&0x3ff)
	switch {
	case exp == 0x1f && frac != 0:
		return math.Float32frombits(sign | 0x7fc00000 | frac<<13)
	case exp == 0x1f:
		return math.Float32frombits(sign | 0x7f800000)
	case exp == 0: // ±frac·2^-24, which f32 holds exactly
		return math.Float32frombits(math.Float32bits(float32(frac)*(1.0/(1<<24))) | sign)
	}
	return math.Float32frombits(sign | (exp+127-15)<<23 | frac<<13)
}

// Decode widens len(dst) elements of type d from src, as they lie in memory or on the wire (little-endian).
func Decode(dst []float32, src []byte, d chunk.DType) {
	for i := range dst {
		switch d {
		case chunk.F32:
			dst[i] = math.Float32frombits(binary.LittleEndian.Uint32(src[4*i:]))
		case chunk.BF16:
			dst[i] = FromBF16(binary.LittleEndian.Uint16(src[2*i:]))
		case chunk.F16:
			dst[i] = FromF16(binary.LittleEndian.Uint16(src[2*i:]))
		default:
			panic("optim: invalid wire type " + d.String())
		}
	}
}

// Encode narrows src to elements of type d in dst, rounding to nearest even.
func Encode(dst []byte, src []float32, d chunk.DType) {
	for i, x := range src {
		switch d {
		case chunk.F32:
			binary.LittleEndian.PutUint32(dst[4*i:], math.Float32bits(x))
		case chunk.BF16:
			binary.LittleEndian.PutUint16(dst[2*i:], BF16(x))
		case chunk.F16:
			binary.LittleEndian.PutUint16(dst[2*i:], F16(x))
		default:
			panic("optim: invalid wire type " + d.String())
		}
	}
}

// Convert casts n elements. It copies equal types bit for bit, and casts others through f32.
func Convert(dst []byte, to chunk.DType, src []byte, from chunk.DType, n int) {
	if to == from {
		copy(dst, src[:n*from.Size()])
		return
	}
	x := make([]float32, n)
	Decode(x, src, from)
	Encode(dst, x, to)
}
