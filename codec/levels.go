package codec

import "math"

func bits(x float32) uint32 { return math.Float32bits(x) }

func float(b uint32) float32 { return math.Float32frombits(b) }

func abs(x float32) float32 { return float(bits(x) &^ (1 << 31)) }

// largest returns the largest magnitude.
func largest(x []float32) (m float32) {
	for _, v := range x {
		m = max(m, abs(v))
	}
	return m
}

// reach returns the largest magnitude over its scale that a codec has a level for, as the exponent and the mantissa of an f32.
func (s Spec) reach() (exponent, mantissa uint32) {
	switch {
	case s.ID == E4M3:
		return 8, 0x600000 // 448
	case s.ID == E5M2:
		return 15, 0x600000 // 57344
	case s.ID == Int8 && s.Stochastic:
		return 6, 0x7e0000 // 127
	case s.ID == Int8:
		return 6, 0x7effff // just below 127.5, which would round to 128
	case s.Stochastic:
		return 2, 0x600000 // 7
	}
	return 2, 0x6fffff // just below 7.5
}

// scalePower returns the smallest power of two that brings the largest magnitude within reach, or 0 for a block of zeros. It
// is a normal number, and so is its inverse.
func scalePower(s Spec, x []float32) float32 {
	m := bits(largest(x))
	if m == 0 {
		return 0
	}
	exponent, mantissa := s.reach()
	e := (m + 0x7fffff - mantissa) >> 23
	return float((max(e, exponent+1) - exponent) << 23)
}

// inverse returns 1/scale of a power of two, or 0 for 0.
func inverse(scale float32) float32 {
	if scale == 0 {
		return 0
	}
	return float(254<<23 - bits(scale))
}

// integer rounds x to even; to 2^22 it is exact. The sum's lowest bits are the integer's, in two's complement.
const integer = 3 << 22

func codeInt(s Spec, x, scale, u float32) uint32 {
	y := x * inverse(scale)
	if s.Stochastic {
		most := 127.0 // y+u may round up to the next integer
		if s.ID == Int4 {
			most = 7
		}
		return uint32(int32(min(math.Floor(float64(float32(y+u))), most)))
	}
	return bits(float32(y + integer))
}

// minifloat is a float of 8 bits, of so many for the mantissa.
type minifloat struct {
	mantissa  uint32
	bias      uint32
	subnormal float32 // 2^23 times the smallest magnitude: adding it rounds to a multiple of that
}

var (
	e4m3 = minifloat{3, 7, 1 << 14}
	e5m2 = minifloat{2, 15, 1 << 7}
)

// code rounds to even. x is within reach.
func (f *minifloat) code(x, scale float32) uint32 {
	y := x * inverse(scale)
	sign, a := bits(y)>>31<<7, abs(y)
	drop, rebias := 23-f.mantissa, (127-f.bias)<<23
	if bits(a) < rebias+1<<23 {
		return sign | bits(float32(a+f.subnormal)) - bits(f.subnormal)
	}
	b := bits(a) - rebias
	return sign | (b+1<<(drop-1)-1+b>>drop&1)>>drop
}

// level widens a code. All exponents are those of numbers: the format's infinities and NaNs are read as the numbers that would
// follow, and no code is sent that stands for one.
func (f *minifloat) level(code uint32) float32 {
	a := float((code & 0x7f) << (23 - f.mantissa))
	return float(bits(a*float((254-f.bias)<<23)) | code>>7<<31)
}

func codeE4M3(_ Spec, x, scale, _ float32) uint32 { return e4m3.code(x, scale) }
func codeE5M2(_ Spec, x, scale, _ float32) uint32 { return e5m2.code(x, scale) }
func levelE4M3(code uint32) float32               { return e4m3.level(code) }
func levelE5M2(code uint32) float32               { return e5m2.level(code) }

// scaleMean returns the mean magnitude, at most bound. Element i goes to partial sum i mod 64, and the sums are added in halves.
func scaleMean(_ Spec, x []float32) float32 {
	var part partials
	for i, v := range x {
		part[i%len(part)] += abs(v)
	}
	return min(part.sum()/float32(len(x)), bound) // the sum may overflow
}

// partials are the partial sums of a vector loop, in f32.
type partials [64]float32

func (p *partials) sum() float32 {
	for half := len(p) / 2; half > 0; half /= 2 {
		for j := range half {
			p[j] += p[j+half]
		}
	}
	return p[0]
}

func codeSign(_ Spec, x, _, _ float32) uint32 { return bits(x) >> 31 }

// codeTwoBit is MXNet's 2bit (src/kvstore/gradient_compression-inl.h): the threshold from it on, by its sign, else 0.
func codeTwoBit(_ Spec, x, threshold, _ float32) uint32 {
	if abs(x) < threshold {
		return 0
	}
	return ternary(x)
}

// codeTernary is TernGrad's (Wen et al., NeurIPS 2017, equation 2): the largest magnitude with the probability that keeps the mean.
func codeTernary(_ Spec, x, scale, u float32) uint32 {
	if float32(u*scale) < abs(x) {
		return ternary(x)
	}
	return 0
}

// ternary returns the code of 1 or -1 by the sign of x, in two's complement.
func ternary(x float32) uint32 { return 1 | bits(x)>>31<<1 }

func levelTernary(code uint32) float32 { return float32(int8(code<<6) >> 6) }
