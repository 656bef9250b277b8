package optim

import (
	"math"
	"testing"

	"github.com/rackweave/rackweave/chunk"
)

// halves are the two 16-bit formats, described by the widths of their fields.
var halves = []struct {
	name           string
	expBits, frac  int
	narrow         func(float32) uint16
	widen          func(uint16) float32
	infinite       uint16
	quietsOnWiden  bool
	upperFracShift int
}{
	{"bf16", 8, 7, BF16, FromBF16, 0x7f80, false, 16},
	{"f16", 5, 10, F16, FromF16, 0x7c00, true, 13},
}

// valueOf returns the value of a finite 16-bit number by the definition of IEEE 754.
func valueOf(h uint16, expBits, frac int) float64 {
	bias := 1<<(expBits-1) - 1
	exp := int(h>>frac) & (1<<expBits - 1)
	m := int(h) & (1<<frac - 1)
	if exp == 0 {
		exp = 1
	} else {
		m |= 1 << frac
	}
	return math.Ldexp(float64(m), exp-bias-frac)
}

func TestWideningIsExactAndNarrowingBringsItBack(t *testing.T) {
	for _, f := range halves {
		for h := uint16(0); h < f.infinite; h++ {
			for _, sign := range []uint16{0, 0x8000} {
				want := valueOf(h, f.expBits, f.frac)
				if sign != 0 {
					want = -want
				}
				x := f.widen(h | sign)
				if float64(x) != want || math.Signbit(float64(x)) != (sign != 0) {
					t.Fatalf("%s %#04x is %v, want %v", f.name, h|sign, x, want)
				}
				if back := f.narrow(x); back != h|sign {
					t.Fatalf("%s %#04x comes back as %#04x", f.name, h|sign, back)
				}
			}
		}
	}
}

// Between each two neighbours lies a tie. It rounds to the even one, and a value a bit nearer to either rounds to that one. The
// neighbour of the largest number is infinity, as if it were finite.
func TestNarrowingRoundsToNearestEven(t *testing.T) {
	for _, f := range halves {
		for h := uint16(0); h < f.infinite; h++ {
			tie64 := (valueOf(h, f.expBits, f.frac) + valueOf(h+1, f.expBits, f.frac)) / 2
			tie := float32(tie64)
			if float64(tie) != tie64 {
				t.Fatalf("%s: the tie above %#04x is no f32", f.name, h)
			}
			even := h + h&1
			for _, c := range []struct {
				x    float32
				want uint16
			}{
				{tie, even}, {math.Nextafter32(tie, 0), h}, {math.Nextafter32(tie, float32(math.Inf(1))), h + 1},
			} {
				if got := f.narrow(c.x); got != c.want {
					t.Fatalf("%s: %v becomes %#04x, want %#04x", f.name, c.x, got, c.want)
				}
				if got := f.narrow(-c.x); got != c.want|0x8000 {
					t.Fatalf("%s: %v becomes %#04x, want %#04x", f.name, -c.x, got, c.want|0x8000)
				}
			}
		}
	}
}

func TestInfinitiesAndNaNsStayWhatTheyAre(t *testing.T) {
	for _, f := range halves {
		quiet := uint16(1) << (f.frac - 1)
		for _, sign := range []uint16{0, 0x8000} {
			inf := f.infinite | sign
			if got := f.widen(inf); !math.IsInf(float64(got), 1-2*int(sign>>15)) || f.narrow(got) != inf {
				t.Errorf("%s: %#04x widens to %v", f.name, inf, got)
			}
			for payload := uint16(1); payload < 1<<f.frac; payload++ {
				want := uint32(sign)<<16 | 0x7f800000 | uint32(payload)<<f.upperFracShift
				if f.quietsOnWiden {
					want |= 1 << 22
				}
				x := f.widen(inf | payload)
				if got := math.Float32bits(x); got != want {
					t.Fatalf("%s: %#04x widens to %#08x, want %#08x", f.name, inf|payload, got, want)
				}
				if got := f.narrow(x); got != inf|payload|quiet {
					t.Fatalf("%s: the NaN %#04x comes back as %#04x", f.name, inf|payload, got)
				}
			}
			hidden := math.Float32frombits(uint32(sign)<<16 | 0x7f800001) // the payload is in the bits that are cut off
			if got := f.narrow(hidden); got != inf|quiet {
				t.Errorf("%s: a NaN becomes %#04x, want %#04x", f.name, got, inf|quiet)
			}
		}
	}
}

func TestWhatIsTooLargeBecomesInfinite(t *testing.T) {
	for _, x := range []float32{65520, 1e6, math.MaxFloat32} {
		if F16(x) != 0x7c00 || F16(-x) != 0xfc00 {
			t.Errorf("f16 of %v is %#04x", x, F16(x))
		}
	}
	if BF16(math.MaxFloat32) != 0x7f80 {
		t.Errorf("bf16 of the largest f32 is %#04x", BF16(math.MaxFloat32))
	}
}

func TestConvertCopiesEqualTypesAndCastsOthers(t *testing.T) {
	src := []byte{0x01, 0x00, 0x81, 0x7f} // as f32, a NaN that signals; as bf16, a subnormal and a NaN that signals
	for _, c := range []struct {
		from, to chunk.DType
		n        int
		want     string
	}{
		{chunk.F32, chunk.F32, 1, "\x01\x00\x81\x7f"},
		{chunk.BF16, chunk.BF16, 2, "\x01\x00\x81\x7f"},
		{chunk.F32, chunk.BF16, 1, "\xc1\x7f"},
		{chunk.BF16, chunk.F32, 2, "\x00\x00\x01\x00\x00\x00\x81\x7f"},
		{chunk.BF16, chunk.F16, 2, "\x00\x00\x08\x7e"},
	} {
		dst := make([]byte, c.n*c.to.Size())
		Convert(dst, c.to, src, c.from, c.n)
		if string(dst) != c.want {
			t.Errorf("%v to %v: %x, want %x", c.from, c.to, dst, c.want)
		}
	}
}
