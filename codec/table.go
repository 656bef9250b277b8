package codec

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

//go:generate go test -run TestTheKernelsHaveThisTable -update

// ID is the number of a codec in headers.
type ID uint8

// These are the codecs. Raw stands for values as they are.
const (
	Raw ID = iota
	Int8
	Int4
	Sign
	TwoBit
	Ternary
	TopK
	E4M3
	E5M2

	codecs
)

// properties are all that is known of a codec.
type properties struct {
	name string
	bits int // of a code; 0 without codes
	// param is the meaning of the parameter that follows the name after a colon, if it takes one: its values from above 0 to hi.
	param      string
	hi, preset float64
	// reach is the largest magnitude that has a code at scale 1, if scales are powers of two, and whole the largest level, to which
	// stochastic rounding reaches.
	reach, whole float32
	// scale returns the scale of a block of finite elements.
	scale func(t *properties, s Spec, x []float32) float32
	// code returns the code of an element. u is uniform in [0, 1), for codecs that round stochastically.
	code  func(t *properties, s Spec, x, scale, u float32) uint32
	level func(code uint32) float32 // of a code
	most  float32                   // bounds the levels' magnitudes
}

var table = [codecs]properties{
	Raw: {name: "none"},
	// Above these, 127.5 and 7.5 would round to 128 and 8.
	Int8: {name: "int8", bits: 8, reach: 127.5 - 0x1p-17, whole: 127, scale: scalePower, code: codeInt,
		level: func(c uint32) float32 { return float32(int8(c)) }, most: 128},
	Int4: {name: "int4", bits: 4, reach: 7.5 - 0x1p-21, whole: 7, scale: scalePower, code: codeInt,
		level: func(c uint32) float32 { return float32(int8(c<<4) >> 4) }, most: 8},
	Sign: {name: "sign", bits: 1, scale: scaleMean, code: codeSign,
		level: func(c uint32) float32 { return 1 - 2*float32(c) }, most: 1},
	TwoBit: {name: "2bit", bits: 2, param: "threshold", hi: 1 << 125, preset: 0.5, code: codeTwoBit,
		scale: func(_ *properties, s Spec, _ []float32) float32 { return float32(s.Param) }, level: levelTernary, most: 2},
	Ternary: {name: "ternary", bits: 2, code: codeTernary,
		scale: func(_ *properties, _ Spec, x []float32) float32 { return largest(x) }, level: levelTernary, most: 2},
	TopK: {name: "topk", param: "share", hi: 1, preset: 0.01},
	E4M3: {name: "fp8-e4m3", bits: 8, reach: 448, whole: 448, scale: scalePower, code: e4m3.code, level: e4m3.level, most: 480},
	E5M2: {name: "fp8-e5m2", bits: 8, reach: 57344, whole: 57344, scale: scalePower, code: e5m2.code, level: e5m2.level, most: 114688},
}

func (id ID) String() string {
	if id < codecs {
		return table[id].name
	}
	return fmt.Sprintf("codec(%d)", uint8(id))
}

// Spec is a codec with its parameter.
type Spec struct {
	ID         ID
	Stochastic bool    // int8, int4: rounds up or down by chance, so that the mean is unbiased
	Param      float64 // 2bit: the threshold; topk: the share of the elements, to 1
}

// Parse returns the codec that text names: one of [Names], alone or with a parameter, as in int8:stochastic, 2bit:0.5 or topk:1%.
func Parse(text string) (Spec, error) {
	name, param, given := strings.Cut(text, ":")
	for id := range codecs {
		if t := &table[id]; t.name == name {
			return Spec{ID: id, Param: t.preset}.with(text, param, given)
		}
	}
	return Spec{}, fmt.Errorf("unknown codec %q: use one of %s", text, strings.Join(Names(), ", "))
}

// with returns the codec with the parameter of its text.
func (s Spec) with(text, param string, given bool) (Spec, error) {
	t := &table[s.ID]
	switch {
	case !given:
		return s, nil
	case (s.ID == Int8 || s.ID == Int4) && param == "stochastic":
		s.Stochastic = true
		return s, nil
	case t.param == "":
		return Spec{}, fmt.Errorf("codec %q: %s takes no parameter %q", text, t.name, param)
	}
	number, percent := strings.CutSuffix(param, "%")
	x, err := strconv.ParseFloat(number, 64)
	if percent {
		x /= 100
	}
	if err != nil || !(x > 0 && x <= t.hi) {
		return Spec{}, fmt.Errorf("codec %q: the %s is %q: use a number above 0 and up to %v, as in %s:%v", text, t.param, param, t.hi,
			t.name, t.preset)
	}
	s.Param = x
	return s, nil
}

// Names returns the names of all codecs.
func Names() (names []string) {
	for id := range codecs {
		names = append(names, table[id].name)
	}
	return names
}

func (s Spec) String() string {
	switch t := &table[s.ID]; {
	case s.Stochastic:
		return t.name + ":stochastic"
	case t.param != "":
		return t.name + ":" + strconv.FormatFloat(s.Param, 'g', -1, 64)
	default:
		return t.name
	}
}

// random reports whether payloads depend on a [Key].
func (s Spec) random() bool { return s.Stochastic || s.ID == Ternary }

// Bytes returns the length of the payload of so many finite elements in f32: the raw length if the codec would not shorten it.
func (s Spec) Bytes(elems int) int {
	n := HeaderBytes
	switch s.ID {
	case Raw:
		return 4 * elems
	case TopK:
		n += sparseBytes(elems, s.kept(elems))
	default:
		n += 4*blocks(elems) + (elems*table[s.ID].bits+7)/8
	}
	return min(n, 4*elems)
}

// TensorBytes returns the length of all payloads of a tensor that travels in chunks of so many elements.
func (s Spec) TensorBytes(elems, chunk uint64) uint64 {
	return elems/chunk*uint64(s.Bytes(int(chunk))) + uint64(s.Bytes(int(elems%chunk)))
}

// kept returns the number of elements that top-k sends, at least one.
func (s Spec) kept(elems int) int { return max(1, int(math.Round(s.Param*float64(elems)))) }

func blocks(elems int) int { return (elems + Block - 1) / Block }
