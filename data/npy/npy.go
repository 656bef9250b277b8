// Package npy reads and writes the headers of numpy's .npy files, versions 1 to 3 of the format.
package npy

import (
	"encoding/binary"
	"fmt"
	"io"
	"math/bits"
	"regexp"
	"strconv"
	"strings"
)

const (
	magic = "\x93NUMPY"
	// maxHeader is numpy's own limit of a header that it does not trust.
	maxHeader = 10000
	// align is numpy's alignment of the elements in the file.
	align = 64
	// maxElem bounds the bytes of an element: strings have a length.
	maxElem = 1 << 20
)

// Header describes an array. Its elements follow in the file, those of the last dimension next to each other unless Fortran is set.
type Header struct {
	Order   byte // '<' little-endian, '>' big-endian, '|' neither
	Kind    byte // 'b' bool, 'i', 'u', 'f', 'S' bytes, 'U' characters of 4 bytes, 'O' Python objects, …
	Size    int  // of an element, in bytes
	Fortran bool
	Shape   []uint64
}

// Elems returns the number of elements.
func (h *Header) Elems() uint64 {
	n := uint64(1)
	for _, d := range h.Shape {
		n *= d
	}
	return n
}

// Bytes returns the header as it stands in a file.
func (h *Header) Bytes() []byte {
	var shape strings.Builder
	for _, d := range h.Shape {
		fmt.Fprintf(&shape, "%d,", d)
	}
	fortran := "False"
	if h.Fortran {
		fortran = "True"
	}
	size := h.Size
	if h.Kind == 'U' {
		size /= 4
	}
	dict := fmt.Sprintf("{'descr': '%c%c%d', 'fortran_order': %s, 'shape': (%s), }", h.Order, h.Kind, size, fortran, shape.String())
	const before = len(magic) + 4
	dict += strings.Repeat(" ", align-1-(before+len(dict))%align) + "\n"
	return append(binary.LittleEndian.AppendUint16([]byte(magic+"\x01\x00"), uint16(len(dict))), dict...)
}

var (
	descr   = regexp.MustCompile(`'descr':\s*'([<>|=]?)([a-zA-Z])(\d*)'`)
	fortran = regexp.MustCompile(`'fortran_order':\s*(True|False)`)
	shape   = regexp.MustCompile(`'shape':\s*\(([\d, ]*)\)`)
)

// Read reads a header. The elements follow.
func Read(r io.Reader) (*Header, error) {
	head := make([]byte, len(magic)+4)
	if _, err := io.ReadFull(r, head); err != nil {
		return nil, fmt.Errorf("the file ends in the header of an array: %w", err)
	}
	version := head[len(magic)]
	if string(head[:len(magic)]) != magic || version < 1 || version > 3 {
		return nil, fmt.Errorf("%q at the beginning: an .npy array of version 1 to 3 begins with %q", head[:len(magic)+2], magic)
	}
	n := int(binary.LittleEndian.Uint16(head[len(magic)+2:]))
	if version > 1 {
		var high [2]byte
		if _, err := io.ReadFull(r, high[:]); err != nil {
			return nil, fmt.Errorf("the file ends in the header of an array: %w", err)
		}
		n |= int(binary.LittleEndian.Uint16(high[:])) << 16
	}
	if n > maxHeader {
		return nil, fmt.Errorf("an .npy header of %d bytes: it can have %d", n, maxHeader)
	}
	text := make([]byte, n)
	if _, err := io.ReadFull(r, text); err != nil {
		return nil, fmt.Errorf("the file ends in the header of an array: %w", err)
	}
	return parse(string(text))
}

func parse(text string) (*Header, error) {
	d, f, s := descr.FindStringSubmatch(text), fortran.FindStringSubmatch(text), shape.FindStringSubmatch(text)
	if d == nil || f == nil || s == nil {
		return nil, fmt.Errorf("the .npy header %.200q: it has no simple descr, fortran_order and shape (arrays of records have none)", text)
	}
	h := &Header{Order: '<', Kind: d[2][0], Fortran: f[1] == "True"}
	if d[1] != "" && d[1] != "=" {
		h.Order = d[1][0]
	}
	if d[3] != "" {
		size, err := strconv.Atoi(d[3])
		if err != nil || size > maxElem {
			return nil, fmt.Errorf("elements of %s bytes: they can have %d", d[3], maxElem)
		}
		h.Size = size
	}
	if h.Kind == 'U' {
		h.Size *= 4
	}
	total := uint64(max(h.Size, 1))
	for dim := range strings.SplitSeq(s[1], ",") {
		if dim = strings.TrimSpace(dim); dim == "" {
			continue
		}
		n, err := strconv.ParseUint(dim, 10, 63)
		if err != nil {
			return nil, fmt.Errorf("the dimension %q of shape (%s)", dim, s[1])
		}
		high, low := bits.Mul64(total, max(n, 1))
		if high != 0 || low > 1<<62 {
			return nil, fmt.Errorf("an array of shape (%s) with elements of %d bytes: no file is as large", s[1], h.Size)
		}
		total = low
		h.Shape = append(h.Shape, n)
	}
	return h, nil
}
