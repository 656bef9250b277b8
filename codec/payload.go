package codec

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
)

const (
	HeaderBytes = 16
	Block       = 512 // elements with one scale
	version     = 1

	flagBitmap = 1 // top-k: a bitmap instead of indexes
	flagMore   = 1 // of byte 3
	flagHash   = 2 // of byte 3, in answers: 4 bytes with the hash of the reference follow
)

// ErrPayload is wrapped by the error for a payload that does not decode.
var ErrPayload = errors.New("invalid compressed payload")

// Header is the first 16 bytes of a compressed payload, in little-endian order.
type Header struct {
	ID    ID     // byte 0; byte 1 is the version, and byte 2 the flags
	Flags uint8  //
	More  bool   // bit 0 of byte 3; see the package's doc
	Count uint32 // bytes 4 to 8: of elements that have a value
	// bytes 8 to 16: the sums of squares of the elements, and of what the codec loses of them
	Energy, Lost float32
}

// HeaderOf returns the header of a compressed payload.
func HeaderOf(p []byte) Header {
	return Header{ID: ID(p[0]), Flags: p[2], More: p[3]&flagMore != 0, Count: binary.LittleEndian.Uint32(p[4:]),
		Energy: getFloat(p[8:]), Lost: getFloat(p[12:])}
}

func (h *Header) form() Form { return Form(h.ID) | Form(h.Flags)<<8 | Form(h.Count)<<32 }

func (h *Header) encode(p []byte) {
	p[0], p[1], p[2], p[3] = uint8(h.ID), version, h.Flags, 0
	binary.LittleEndian.PutUint32(p[4:], h.Count)
	putFloat(p[8:], h.Energy)
	putFloat(p[12:], h.Lost)
}

// Form is all that a reader must know of a payload: its codec in bits 0 to 7, its flags in bits 8 to 15, and in the upper 32 the
// number of elements that have a value. The form of raw values is 0. It is made once, because memory that another writes may
// change after [Check].
type Form uint64

func (f Form) ID() ID        { return ID(f) }
func (f Form) flags() uint8  { return uint8(f >> 8) }
func (f Form) Count() uint32 { return uint32(f >> 32) }

// Check returns the form of a payload for a chunk of so many elements. The error wraps [ErrPayload] unless the payload is raw, or
// decodes to a finite value for every element.
func Check(p []byte, elems int) (Form, error) {
	if len(p) == 4*elems {
		return 0, nil
	}
	invalid := func(format string, args ...any) (Form, error) {
		return 0, fmt.Errorf("%w of %d bytes for %d elements: "+format, append([]any{ErrPayload, len(p), elems}, args...)...)
	}
	if len(p) < HeaderBytes || len(p) > 4*elems {
		return invalid("use %d bytes or more, and no more than raw values take", HeaderBytes)
	}
	h := HeaderOf(p)
	rest := p[HeaderBytes:]
	form := h.form()
	switch {
	case p[1] != version:
		return invalid("version %d: use %d", p[1], version)
	case h.ID == Raw || h.ID >= codecs:
		return invalid("unknown codec %d", p[0])
	case p[3] > flagMore || h.Flags != 0 && (h.ID != TopK || h.Flags != flagBitmap):
		return invalid("flags %#x %#x", h.Flags, p[3])
	case !(h.Energy >= 0) || !(h.Lost >= 0):
		return invalid("sums of squares %v and %v", h.Energy, h.Lost)
	case h.ID == TopK:
		if err := form.checkSparse(rest, elems); err != nil {
			return invalid("%w", err)
		}
		return form, nil
	case h.Count != uint32(elems) || len(rest) != 4*blocks(elems)+(elems*table[h.ID].bits+7)/8:
		return invalid("%v has %d elements", h.ID, h.Count)
	}
	for b := range blocks(elems) {
		s := getFloat(rest[4*b:])
		if !(s >= 0 && s <= math.MaxFloat32/table[h.ID].most) {
			return invalid("the scale of block %d is %v", b, s)
		}
		if table[h.ID].most > 2 && bits(s)<<9 != 0 {
			return invalid("the scale of block %d is %v, not a power of two", b, s)
		}
	}
	return form, nil
}

// Encode writes the payload of x = g + factor*residual to p, which has room for raw values, and returns the payload's length.
// The residual becomes what the payload lost of x. If x has an element that is not finite, or of 2^126 or more, Encode sends g,
// raw, and leaves the residual. If the codec does not make x shorter, Encode sends x raw. If the residual is nil, only g counts.
func (s Spec) Encode(p []byte, g, residual []float32, factor float32, key Key) int {
	x := slices.Clone(g)
	for i, e := range residual {
		x[i] = g[i] + float32(factor*e)
	}
	if !bounded(x) {
		return putRaw(p, g)
	}
	n, decoded := s.encode(p, x, key)
	for i := range residual {
		residual[i] = x[i] - decoded[i]
	}
	return n
}

// Factor returns the factor of a residual that is sent at another rate than it was left at. A rate is the learning rate times the
// scale of the gradients. The factor is 1 unless both are known.
func Factor(was, rate float32) float32 {
	if f := abs(was / rate); f >= 0x1p-126 && f <= math.MaxFloat32 {
		return was / rate
	}
	return 1
}

// EncodeChange writes the payload of x = w - reference to p, as [Spec.Encode] does, and adds the payload's values to the reference.
// If x has an element that is not finite, or of 2^126 or more, or the codec does not make x shorter, EncodeChange sends w, raw,
// which becomes the reference.
func (s Spec) EncodeChange(p []byte, w, reference []float32, key Key) int {
	x := slices.Clone(w)
	for i, r := range reference {
		x[i] = w[i] - r
	}
	if !bounded(x) || s.Bytes(len(x)) == 4*len(x) {
		copy(reference, w)
		return putRaw(p, w)
	}
	n, decoded := s.encode(p, x, key)
	for i := range reference {
		reference[i] += decoded[i]
	}
	return n
}

// encode writes the payload of finite elements, and returns its length and values.
func (s Spec) encode(p []byte, x []float32, key Key) (n int, decoded []float32) {
	if n = s.Bytes(len(x)); n == 4*len(x) {
		return putRaw(p, x), x
	}
	h := Header{ID: s.ID, Count: uint32(len(x))}
	clear(p[:n])
	if s.ID == TopK {
		s.encodeSparse(&h, p[HeaderBytes:n], x)
	} else {
		s.encodeDense(p[HeaderBytes:n], x, key)
	}
	decoded = make([]float32, len(x))
	h.form().decode(decoded, p[HeaderBytes:n])
	var energy, lost partials
	for i, v := range x {
		d := v - decoded[i]
		energy[i%len(energy)] += float32(v * v)
		lost[i%len(lost)] += float32(d * d)
	}
	h.Energy, h.Lost = energy.sum(), lost.sum()
	h.encode(p)
	return n, decoded
}

// bound is so far from the largest number that no code of a smaller element stands for one that is not finite.
const bound = 1 << 126

// bounded reports whether all elements are below the bound.
func bounded(x []float32) bool {
	for _, v := range x {
		if !(abs(v) < bound) {
			return false
		}
	}
	return true
}

func (s Spec) encodeDense(p []byte, x []float32, key Key) {
	t := &table[s.ID]
	scales, codes := p[:4*blocks(len(x))], p[4*blocks(len(x)):]
	for b := range blocks(len(x)) {
		block := x[b*Block : min((b+1)*Block, len(x))]
		scale := t.scale(t, s, block)
		putFloat(scales[4*b:], scale)
		for i, v := range block {
			var u float32
			if s.random() {
				u = key.uniform(uint64(b*Block + i))
			}
			bit := (b*Block + i) * t.bits
			codes[bit/8] |= uint8(t.code(t, s, v, scale, u)&(1<<t.bits-1)) << (bit % 8)
		}
	}
}

// Decode writes the values of a payload, raw or compressed, to dst. The error wraps [ErrPayload].
func Decode(dst []float32, p []byte) error {
	form, err := Check(p, len(dst))
	switch {
	case err != nil:
		return err
	case form != 0:
		form.decode(dst, p[HeaderBytes:])
	default:
		for i := range dst {
			dst[i] = getFloat(p[4*i:])
		}
	}
	return nil
}

// decode writes the values of what follows the header. It adds 0 to each, so that none is -0.
func (f Form) decode(dst []float32, rest []byte) {
	if f.ID() == TopK {
		f.decodeSparse(dst, rest)
		return
	}
	t := &table[f.ID()]
	codes := rest[4*blocks(len(dst)):]
	for i := range dst {
		bit := i * t.bits
		code := uint32(codes[bit/8]) >> (bit % 8) & (1<<t.bits - 1)
		dst[i] = 0 + float32(t.level(code)*getFloat(rest[i/Block*4:]))
	}
}

// putRaw writes raw values and returns their length.
func putRaw(p []byte, x []float32) int {
	for i, v := range x {
		putFloat(p[4*i:], v)
	}
	return 4 * len(x)
}

func putFloat(p []byte, x float32) { binary.LittleEndian.PutUint32(p, bits(x)) }

func getFloat(p []byte) float32 { return float(binary.LittleEndian.Uint32(p)) }
