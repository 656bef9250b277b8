package codec

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// specs are all codecs, none first, and some with other parameters.
var specs = func() (out []Spec) {
	for _, text := range append(Names(), "int8:stochastic", "int4:stochastic", "topk:0.1") {
		s, err := Parse(text)
		if err != nil {
			panic(err)
		}
		out = append(out, s)
	}
	return out
}()

// lengths of chunks: the usual, the smallest, one that ends in a block, in a byte, and a single element.
var lengths = []int{8192, 1024, 700, 517, 513, 64, 9, 1}

func gaussian(n int, seed uint64) []float32 {
	r, x := rand.New(rand.NewPCG(seed, 1)), make([]float32, n)
	for i := range x {
		x[i] = float32(r.NormFloat64())
	}
	return x
}

func (s Spec) sent(t *testing.T, g, e []float32, key Key) (p []byte, sent []float32) {
	t.Helper()
	p = make([]byte, 4*len(g))
	p = p[:s.Encode(p, g, slices.Clone(e), 1, key)]
	sent = make([]float32, len(g))
	if err := Decode(sent, p); err != nil {
		t.Fatalf("%v: %v", s, err)
	}
	return p, sent
}

func TestNamesAreParsedAndPrinted(t *testing.T) {
	for _, s := range specs {
		if again, err := Parse(s.String()); err != nil || again != s {
			t.Errorf("%v is parsed as %v, %v", s, again, err)
		}
	}
	for text, want := range map[string]string{
		"int3": "use one of none, int8, int4, sign, 2bit, ternary, topk, fp8-e4m3, fp8-e5m2", "sign:1": "takes no parameter",
		"topk:0": "use a number above 0 and up to 1, as in topk:0.01", "topk:2": "above 0", "topk:x": "above 0", "topk:101%": "above 0",
		"2bit:-1": "above 0", "2bit:NaN": "above 0", "2bit:Inf": "above 0", "int8:up": "takes no parameter", "topk:": "above 0",
	} {
		if _, err := Parse(text); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), text) {
			t.Errorf("%q: %v, want an error with %q", text, err, want)
		}
	}
}

func TestPayloadsHaveTheLengthThatIsPredicted(t *testing.T) {
	for _, s := range specs {
		for _, n := range lengths {
			p, _ := s.sent(t, gaussian(n, 1), nil, Key{})
			if len(p) != s.Bytes(n) || len(p) > 4*n {
				t.Errorf("%v, %d elements: %d bytes, predicted %d", s, n, len(p), s.Bytes(n))
			}
		}
	}
	for name, most := range map[string]float64{"int8": 0.255, "int4": 0.13, "sign": 0.035, "topk:1%": 0.0165} {
		s, _ := Parse(name)
		if share := float64(s.Bytes(8192)) / 32768; share > most {
			t.Errorf("%v: %.4f of raw, want at most %v", s, share, most)
		}
	}
}

// The notes' figures, but for scales that are powers of two.
func TestDistortionOfAGaussianIsAsMeasured(t *testing.T) {
	for name, want := range map[string][2]float64{
		"int8": {5e-5, 2e-4}, "int4": {0.02, 0.06}, "int4:stochastic": {0.06, 0.2}, "sign": {0.35, 0.38}, "ternary": {1.4, 2.4},
		"topk:1%": {0.91, 0.94}, "topk:10%": {0.54, 0.58}, "fp8-e4m3": {3e-4, 1.2e-3}, "fp8-e5m2": {1.5e-3, 5e-3},
	} {
		s, err := Parse(name)
		if err != nil {
			t.Fatal(err)
		}
		x := gaussian(1<<16, 2)
		p, sent := s.sent(t, x, nil, Key{})
		var lost, energy float64
		for i := range x {
			d := float64(x[i]) - float64(sent[i])
			lost, energy = lost+d*d, energy+float64(x[i])*float64(x[i])
		}
		for _, is := range []float64{lost / energy, s.Distortion()} {
			if is < want[0] || is > want[1] {
				t.Errorf("%s: distortion %.5f, want %v", name, is, want)
			}
		}
		h := HeaderOf(p)
		if math.Abs(float64(h.Energy)/energy-1) > 1e-5 || math.Abs(float64(h.Lost)/lost-1) > 1e-4 {
			t.Errorf("%s: the header says %v of %v, want %v of %v", name, h.Lost, h.Energy, lost, energy)
		}
	}
}

// What was sent and what is left add up to what was given: exactly, where every sum is exact.
func TestPayloadsAndTheResidualAddUpToTheGradients(t *testing.T) {
	for _, s := range specs {
		for _, n := range lengths {
			r := rand.New(rand.NewPCG(uint64(n), 3))
			e, given, got := make([]float32, n), make([]float32, n), make([]float32, n)
			for step := range 20 {
				g := make([]float32, n)
				for i := range g {
					g[i] = float32(r.IntN(65)-32) / 16
					given[i] += g[i]
				}
				key := Key{Seed: 9, Step: uint32(step)}
				_, sent := s.sent(t, g, e, key)
				s.Encode(make([]byte, 4*n), g, e, 1, key)
				for i := range sent {
					got[i] += sent[i]
				}
				if s.ID == Raw && slices.ContainsFunc(e, func(x float32) bool { return x != 0 }) {
					t.Fatal("raw values leave a residual")
				}
			}
			for i := range given {
				tolerance := 0.0
				if s.ID == Sign {
					tolerance = 1e-4 // a mean is rounded
				}
				if math.Abs(float64(given[i]-got[i]-e[i])) > tolerance {
					t.Fatalf("%v, %d elements: element %d: given %v, sent %v, residual %v", s, n, i, given[i], got[i], e[i])
				}
			}
		}
	}
}

func TestStochasticCodecsAreUnbiased(t *testing.T) {
	const draws = 4000
	x := []float32{0.3, -0.3, 0.001, -1, 0.9, 0.5, 0.77, -0.123, 0}
	for _, name := range []string{"int8:stochastic", "int4:stochastic", "ternary"} {
		s, _ := Parse(name)
		sum, squares := make([]float64, len(x)), make([]float64, len(x))
		padded := append(slices.Clone(x), make([]float32, 64)...) // or it would be sent raw
		for step := range draws {
			_, sent := s.sent(t, padded, nil, Key{Seed: 5, Step: uint32(step), Rank: 3})
			for i := range x {
				sum[i] += float64(sent[i])
				squares[i] += float64(sent[i]) * float64(sent[i])
			}
		}
		for i, v := range x {
			mean := sum[i] / draws
			deviation := math.Sqrt(max(squares[i]/draws-mean*mean, 0) / draws)
			if math.Abs(mean-float64(v)) > 5*deviation+1e-7 {
				t.Errorf("%s: the mean of %v is %v, its deviation %v", name, v, mean, deviation)
			}
		}
	}
}

// Random123's kat_vectors.
func TestPhiloxGivesTheKnownAnswer(t *testing.T) {
	for i, want := range []uint32{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8} {
		if got := (Key{}).uniform(uint64(i)); got != float32(want>>8)/(1<<24) {
			t.Errorf("word %d gives %v", i, got)
		}
	}
}

// Every value is as near as the codec's levels allow, from the smallest to the largest numbers.
func TestRoundingIsToTheNearestLevel(t *testing.T) {
	for _, s := range specs {
		codes := table[s.ID].bits
		if table[s.ID].reach == 0 || s.Stochastic {
			continue
		}
		for exponent := -149; exponent < 124; exponent += 7 {
			x := gaussian(Block, uint64(exponent+200))
			largest := float32(0)
			for i := range x {
				x[i] = float32(math.Ldexp(float64(x[i])/8, exponent))
				largest = max(largest, abs(x[i]))
			}
			_, sent := s.sent(t, x, nil, Key{})
			scale := float64(scalePower(&table[s.ID], s, x))
			for i, v := range x {
				least := math.Inf(1)
				for code := range uint32(1) << codes {
					if math.Abs(float64(table[s.ID].level(code))) <= 57344 {
						least = min(least, math.Abs(float64(table[s.ID].level(code))*scale-float64(v)))
					}
				}
				if is := math.Abs(float64(sent[i]) - float64(v)); is > least && is > math.Ldexp(1, -149) {
					t.Fatalf("%v: %v of at most %v is sent as %v, scale %v: %v is nearer", s, v, largest, sent[i], scale, least)
				}
			}
		}
	}
}

// What is added before the floor may round up to a level that the code does not have.
func TestStochasticRoundingStaysWithinReach(t *testing.T) {
	for _, s := range []Spec{{ID: Int8, Stochastic: true}, {ID: Int4, Stochastic: true}} {
		most := table[s.ID].most - 1
		if code := codeInt(&table[s.ID], s, most, 1, 1-0x1p-24); table[s.ID].level(code&(1<<table[s.ID].bits-1)) != most {
			t.Errorf("%v: %v has code %#x", s, most, code)
		}
	}
}

func TestTheMeanOfLargeMagnitudesIsFinite(t *testing.T) {
	p, _ := Spec{ID: Sign}.sent(t, slices.Repeat([]float32{0x1p125}, 700), nil, Key{})
	if _, err := Check(p, 700); err != nil || len(p) == 2800 {
		t.Errorf("%d bytes, %v", len(p), err)
	}
}

func TestTopKTakesTheLargestAndOfEqualOnesTheFirst(t *testing.T) {
	for _, k := range []int{1, 2, 3, 7, 100, 300} {
		n := 1000
		x := make([]float32, n)
		r := rand.New(rand.NewPCG(uint64(k), 1))
		for i := range x {
			x[i] = float32(r.IntN(9) - 4)
		}
		s := Spec{ID: TopK, Param: float64(k) / float64(n)}
		p, sent := s.sent(t, x, nil, Key{})
		if form, _ := Check(p, n); int(form.Count()) != k {
			t.Errorf("%d elements are sent, want %d", form.Count(), k)
		}
		left := slices.Clone(x) // take the largest one by one
		want := make([]float32, n)
		for range k {
			best := 0
			for i := range left {
				if abs(left[i]) > abs(left[best]) {
					best = i
				}
			}
			want[best], left[best] = x[best], 0
		}
		if !slices.Equal(sent, want) {
			t.Errorf("k=%d: sent %v, want %v", k, sent[:20], want[:20])
		}
	}
}

func TestTwoBitSendsMXNetsValues(t *testing.T) {
	s, _ := Parse("2bit:0.5")
	x := append([]float32{0.5, -0.5, 0.49, -0.49, 3, -3, 0}, make([]float32, 60)...)
	_, sent := s.sent(t, x, nil, Key{})
	if want := []float32{0.5, -0.5, 0, 0, 0.5, -0.5, 0}; !slices.Equal(sent[:7], want) {
		t.Errorf("sent %v, want %v", sent[:7], want)
	}
}

// A residual that is in other units is rescaled before it is added.
func TestTheFactorRescalesTheResidual(t *testing.T) {
	for _, s := range specs {
		g, e := gaussian(700, 1), gaussian(700, 2)
		half := slices.Clone(e)
		for i := range half {
			half[i] /= 2
		}
		p, want := make([]byte, 2800), make([]byte, 2800)
		n, m := s.Encode(p, g, e, 0.5, Key{}), s.Encode(want, g, half, 1, Key{})
		if !slices.Equal(p[:n], want[:m]) || !slices.Equal(e, half) {
			t.Errorf("%v: half of a residual is not the residual's half", s)
		}
	}
}

// The reference follows the parameters, on both sides with the same bits, and is them after a raw payload.
func TestChangesLeadTheReferenceToTheParameters(t *testing.T) {
	for _, s := range specs {
		w, reference := gaussian(700, 1), make([]float32, 700)
		copied := slices.Clone(reference)
		first, last := 0.0, 0.0
		for step := range 40 {
			p := make([]byte, 4*len(w))
			p = p[:s.EncodeChange(p, w, reference, Key{Step: uint32(step)})]
			change := make([]float32, len(w))
			if err := Decode(change, p); err != nil {
				t.Fatal(err)
			}
			last = 0
			for i, d := range change {
				if copied[i] += d; len(p) == 4*len(w) {
					copied[i] = d
				}
				last += float64(w[i]-reference[i]) * float64(w[i]-reference[i])
			}
			if step == 0 {
				first = last
			}
			if !slices.Equal(copied, reference) {
				t.Fatalf("%v, step %d: the references differ", s, step)
			}
		}
		if s.ID != Ternary && s.ID != TwoBit && last > first { // whose steps are large
			t.Errorf("%v: the reference misses by %v, by %v after the first step", s, last, first)
		}
		w[3] = float32(math.Inf(1))
		if n := s.EncodeChange(make([]byte, 4*len(w)), w, reference, Key{}); n != 4*len(w) || !slices.Equal(w, reference) {
			t.Errorf("%v: parameters that are not finite are sent in %d bytes", s, n)
		}
	}
}

func TestNoDecodedValueIsNegativeZero(t *testing.T) {
	for _, s := range specs[1:] {
		n := 700
		p, _ := s.sent(t, make([]float32, n), nil, Key{})
		if s.ID == TopK {
			putFloat(p[HeaderBytes:], float32(math.Copysign(0, -1)))
		} else {
			for i := range p[HeaderBytes+4*blocks(n):] {
				p[HeaderBytes+4*blocks(n)+i] = 0x80 >> (i % 8)
			}
			putFloat(p[HeaderBytes:], 0)
		}
		got := make([]float32, n)
		if err := Decode(got, p); err != nil {
			t.Fatal(err)
		}
		if slices.ContainsFunc(got, func(x float32) bool { return bits(x) == 1<<31 }) {
			t.Errorf("%v: has -0", s)
		}
	}
}

func TestAGradientThatIsNotFiniteTravelsRawAndLeavesTheResidual(t *testing.T) {
	for _, bad := range []float32{float32(math.NaN()), float32(math.Inf(1)), float32(math.Inf(-1)), 1 << 126, -math.MaxFloat32} {
		for _, s := range specs {
			g, e := gaussian(600, 4), gaussian(600, 5)
			g[599] = bad
			before := slices.Clone(e)
			p, sent := s.sent(t, g, e, Key{})
			if len(p) != 2400 || !slices.Equal(sent[:599], g[:599]) || bits(sent[599]) != bits(bad) {
				t.Fatalf("%v: sends %d bytes", s, len(p))
			}
			if s.Encode(p, g, e, 1, Key{}); !slices.Equal(e, before) {
				t.Fatalf("%v: the residual has changed", s)
			}
		}
	}
}

// Or products would not be exact.
func TestScalesOfManyLevelsArePowersOfTwo(t *testing.T) {
	for _, s := range specs[1:] {
		p, _ := s.sent(t, gaussian(700, 1), nil, Key{})
		putFloat(p[HeaderBytes:], 1.5)
		if _, err := Check(p, 700); (err == nil) != (s.ID == Sign || s.ID == TwoBit || s.ID == Ternary || s.ID == TopK) {
			t.Errorf("%v: %v", s, err)
		}
	}
}

// The bits are fixed: a change of a hash is another version of the format.
func TestTheFormatIsTheSame(t *testing.T) {
	hashes := map[string]string{
		"none": "90796ab7", "int8": "e2fe7f85", "int4": "34811f15", "sign": "91290f7b", "2bit:0.5": "5ae63a51", "ternary": "edc19843",
		"topk:0.01": "0fcd6aa1", "fp8-e4m3": "f07efada", "fp8-e5m2": "8e4f1445", "int8:stochastic": "5c237fd7",
		"int4:stochastic": "55972dfe", "topk:0.1": "d9ff0be2",
	}
	for _, s := range specs {
		h := sha256.New()
		for _, n := range lengths {
			p, _ := s.sent(t, gaussian(n, 7), gaussian(n, 8), Key{Seed: 1 << 40, Step: 2, Tensor: 3, Rank: 4})
			h.Write(p)
		}
		if got := fmt.Sprintf("%x", h.Sum(nil)[:4]); got != hashes[s.String()] {
			t.Errorf("payloads of %v hash to %s, want %q", s, got, hashes[s.String()])
		}
	}
}

func TestBrokenPayloadsAreRefused(t *testing.T) {
	for _, s := range specs[1:] {
		n := 700
		whole, _ := s.sent(t, gaussian(n, 1), nil, Key{})
		for name, change := range map[string]func(p []byte) []byte{
			"short":    func(p []byte) []byte { return p[:len(p)-1] },
			"long":     func(p []byte) []byte { return append(p, 0) },
			"no bytes": func(p []byte) []byte { return nil },
			"header":   func(p []byte) []byte { return p[:HeaderBytes-1] },
			"codec":    func(p []byte) []byte { p[0] = byte(codecs); return p },
			"raw":      func(p []byte) []byte { p[0] = 0; return p },
			"version":  func(p []byte) []byte { p[1]++; return p },
			"flags":    func(p []byte) []byte { p[2] ^= 2; return p },
			"reserved": func(p []byte) []byte { p[3] = 2; return p },
			"count":    func(p []byte) []byte { p[4]++; return p },
			"energy":   func(p []byte) []byte { putFloat(p[8:], float32(math.NaN())); return p },
			"lost":     func(p []byte) []byte { putFloat(p[12:], -1); return p },
			"scale":    func(p []byte) []byte { putFloat(p[16:], float32(math.NaN())); return p },
			"infinite": func(p []byte) []byte { putFloat(p[16:], float32(math.Inf(1))); return p },
		} {
			dst := slices.Repeat([]float32{42}, n)
			err := Decode(dst, change(slices.Clone(whole)))
			if !errors.Is(err, ErrPayload) || slices.ContainsFunc(dst, func(x float32) bool { return x != 42 }) {
				t.Errorf("%v, %s: %v", s, name, err)
			}
		}
	}
}

func FuzzDecode(f *testing.F) {
	for _, s := range specs {
		p := make([]byte, 4*600)
		f.Add(p[:s.Encode(p, gaussian(600, 1), nil, 1, Key{})], uint16(600))
	}
	f.Fuzz(func(t *testing.T, p []byte, elems uint16) {
		n := int(elems)%9000 + 1
		dst := make([]float32, n)
		if err := Decode(dst, p); err != nil {
			if !errors.Is(err, ErrPayload) {
				t.Error(err)
			}
		} else if len(p) != 4*n && slices.ContainsFunc(dst, func(x float32) bool { return !(abs(x) <= math.MaxFloat32) }) {
			t.Error("a payload was accepted that has values that are not finite")
		}
	})
}
