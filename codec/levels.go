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

// scalePower returns the smallest power of two that brings the largest magnitude within reach, or 0 for a block of zeros. It
// is a normal number, and so is its inverse.
func scalePower(t *properties, s Spec, x []float32) float32 {
	m, reach := bits(largest(x)), bits(t.reach)
	if s.Stochastic {
		reach = bits(t.whole)
	}
	if m == 0 {
		return 0
	}
	exponent, e := reach>>23-127, (m+0x7fffff-reach&0x7fffff)>>23
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

func codeInt(t *properties, s Spec, x, scale, u float32) uint32 {
	y := x * inverse(scale)
	if s.Stochastic { // y+u may round up to the next integer
		return uint32(int32(min(math.Floor(float64(float32(y+u))), float64(t.whole))))
	}
	return bits(float32(y + integer))
}

// minifloat is a float of 8 bits, of so many for the mantissa. least is the exponent of its smallest normal number, as in an f32.
type minifloat struct{ mantissa, least uint32 }

var e4m3, e5m2 = minifloat{3, 121}, minifloat{2, 113}

// code rounds to even, by adding 1.5 * 2^23 times the last place. x is within reach.
func (f minifloat) code(_ *properties, _ Spec, x, scale, _ float32) uint32 {
	y, drop := x*inverse(scale), 23-f.mantissa
	exponent := max(bits(y)&0x7f800000, f.least<<23)
	round := exponent + drop<<23 | 1<<22
	last := bits(float32(abs(y)+float(round))) - round
	return bits(y)>>31<<7 | last + exponent>>drop - f.least<<f.mantissa
}

// level widens a code. All exponents are those of numbers: the format's infinities and NaNs are read as the numbers that would
// follow, and no code is sent that stands for one.
func (f minifloat) level(code uint32) float32 {
	a := float((code & 0x7f) << (23 - f.mantissa))
	return float(bits(a*float((f.least+126)<<23)) | code>>7<<31)
}

// scaleMean returns the mean magnitude, at most bound. Element i goes to partial sum i mod 64, and the sums are added in halves.
func scaleMean(_ *properties, _ Spec, x []float32) float32 {
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

func codeSign(_ *properties, _ Spec, x, _, _ float32) uint32 { return bits(x) >> 31 }

// codeTwoBit is MXNet's 2bit (src/kvstore/gradient_compression-inl.h): the threshold from it on, by its sign, else 0.
func codeTwoBit(_ *properties, _ Spec, x, threshold, _ float32) uint32 {
	if abs(x) < threshold {
		return 0
	}
	return ternary(x)
}

// codeTernary is TernGrad's (Wen et al., NeurIPS 2017, equation 2): the largest magnitude with the probability that keeps the mean.
func codeTernary(_ *properties, _ Spec, x, scale, u float32) uint32 {
	if float32(u*scale) < abs(x) {
		return ternary(x)
	}
	return 0
}

// ternary returns the code of 1 or -1 by the sign of x, in two's complement.
func ternary(x float32) uint32 { return 1 | bits(x)>>31<<1 }

func levelTernary(code uint32) float32 { return float32(int8(code<<6) >> 6) }
