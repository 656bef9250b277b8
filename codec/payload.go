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
	Version     = 1

	flagBitmap = 1 // top-k: a bitmap instead of indexes
)

// ErrPayload is wrapped by the error for a payload that does not decode.
var ErrPayload = errors.New("invalid compressed payload")

// Header is the first 16 bytes of a compressed payload, in little-endian order.
type Header struct {
	ID    ID     // byte 0; byte 1 is the version, byte 2 the flags, and byte 3 is 0
	Flags uint8  //
	Count uint32 // bytes 4 to 8: of elements that have a value
	// bytes 8 to 16: the sums of squares of the elements, and of what the codec loses of them
	Energy, Lost float32
}

func (h *Header) encode(p []byte) {
	p[0], p[1], p[2], p[3] = uint8(h.ID), Version, h.Flags, 0
	binary.LittleEndian.PutUint32(p[4:], h.Count)
	putFloat(p[8:], h.Energy)
	putFloat(p[12:], h.Lost)
}

// Check returns the header of a payload for a chunk of so many elements. The error wraps [ErrPayload] unless it decodes to a
// finite value for every element.
func Check(p []byte, elems int) (h Header, err error) {
	invalid := func(format string, args ...any) (Header, error) {
		return Header{}, fmt.Errorf("%w of %d bytes for %d elements: "+format, append([]any{ErrPayload, len(p), elems}, args...)...)
	}
	if len(p) < HeaderBytes || len(p) >= 4*elems {
		return invalid("use %d bytes or more, and less than raw values take", HeaderBytes)
	}
	h = Header{ID: ID(p[0]), Flags: p[2], Count: binary.LittleEndian.Uint32(p[4:]), Energy: getFloat(p[8:]), Lost: getFloat(p[12:])}
	rest := p[HeaderBytes:]
	switch {
	case p[1] != Version:
		return invalid("version %d: use %d", p[1], Version)
	case h.ID == Raw || h.ID >= codecs:
		return invalid("unknown codec %d", p[0])
	case p[3] != 0 || h.Flags != 0 && (h.ID != TopK || h.Flags != flagBitmap):
		return invalid("flags %#x %#x", h.Flags, p[3])
	case !(h.Energy >= 0) || !(h.Lost >= 0):
		return invalid("sums of squares %v and %v", h.Energy, h.Lost)
	case h.ID == TopK:
		if err := h.checkSparse(rest, elems); err != nil {
			return invalid("%w", err)
		}
		return h, nil
	case h.Count != uint32(elems) || len(rest) != 4*blocks(elems)+(elems*table[h.ID].bits+7)/8:
		return invalid("%v has %d elements", h.ID, h.Count)
	}
	for b := range blocks(elems) {
		if s := getFloat(rest[4*b:]); !(s >= 0 && s <= math.MaxFloat32/table[h.ID].most) {
			return invalid("the scale of block %d is %v", b, s)
		}
	}
	return h, nil
}

// Encode writes the payload of a gradient and its residual to p, which has room for raw values, and returns the payload's length.
// It sends the sum raw if the codec does not make it shorter, and the gradient alone, raw, if the sum has an element that is not
// finite, or of 2^126 or more. If e is nil, only the gradient counts.
func (s Spec) Encode(p []byte, g, e []float32, key Key) int {
	x := add(g, e)
	n := s.Bytes(len(x))
	if !bounded(x) {
		x, n = g, 4*len(x)
	}
	if n == 4*len(x) {
		for i, v := range x {
			putFloat(p[4*i:], v)
		}
		return n
	}
	h := Header{ID: s.ID, Count: uint32(len(x))}
	clear(p[:n])
	if s.ID == TopK {
		s.encodeSparse(&h, p[HeaderBytes:n], x)
	} else {
		s.encodeDense(p[HeaderBytes:n], x, key)
	}
	decoded := make([]float32, len(x))
	decode(decoded, &h, p[HeaderBytes:n])
	var energy, lost partials
	for i, v := range x {
		d := v - decoded[i]
		energy[i%len(energy)] += float32(v * v)
		lost[i%len(lost)] += float32(d * d)
	}
	h.Energy, h.Lost = energy.sum(), lost.sum()
	h.encode(p)
	return n
}

// Commit makes e the residual after the payload of a gradient was answered. If the gradient went alone, the residual
// stays.
func Commit(e, g []float32, p []byte) error {
	x, sent := add(g, e), make([]float32, len(g))
	if err := Decode(sent, p); err != nil || !bounded(x) {
		return err
	}
	for i := range e {
		e[i] = x[i] - sent[i]
	}
	return nil
}

func add(g, e []float32) []float32 {
	x := slices.Clone(g)
	for i, r := range e {
		x[i] += r
	}
	return x
}

// bounded reports whether all elements are finite, and so far from the largest numbers that no code stands for a larger one.
func bounded(x []float32) bool {
	for _, v := range x {
		if !(abs(v) < 1<<126) {
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
		scale := t.scale(s, block)
		putFloat(scales[4*b:], scale)
		for i, v := range block {
			var u float32
			if s.Random() {
				u = key.uniform(b*Block + i)
			}
			bit := (b*Block + i) * t.bits
			codes[bit/8] |= uint8(t.code(s, v, scale, u)&(1<<t.bits-1)) << (bit % 8)
		}
	}
}

// Decode writes the values of a payload, raw or compressed, to dst. The error wraps [ErrPayload].
func Decode(dst []float32, p []byte) error {
	if len(p) == 4*len(dst) {
		for i := range dst {
			dst[i] = getFloat(p[4*i:])
		}
		return nil
	}
	h, err := Check(p, len(dst))
	if err == nil {
		decode(dst, &h, p[HeaderBytes:])
	}
	return err
}

func decode(dst []float32, h *Header, rest []byte) {
	if h.ID == TopK {
		h.decodeSparse(dst, rest)
		return
	}
	t := &table[h.ID]
	codes := rest[4*blocks(len(dst)):]
	for i := range dst {
		bit := i * t.bits
		code := uint32(codes[bit/8]) >> (bit % 8) & (1<<t.bits - 1)
		dst[i] = t.level(code) * getFloat(rest[i/Block*4:])
	}
}

func putFloat(p []byte, x float32) { binary.LittleEndian.PutUint32(p, bits(x)) }

func getFloat(p []byte) float32 { return float(binary.LittleEndian.Uint32(p)) }
