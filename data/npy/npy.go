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

// Magic begins an .npy file.
const Magic = "\x93NUMPY"

const (
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
	fortran, size, shape := "False", h.Size, ""
	if h.Fortran {
		fortran = "True"
	}
	if h.Kind == 'U' {
		size /= 4
	}
	for _, d := range h.Shape {
		shape += fmt.Sprintf("%d,", d)
	}
	dict := fmt.Sprintf("{'descr': '%c%c%d', 'fortran_order': %s, 'shape': (%s), }", h.Order, h.Kind, size, fortran, shape)
	dict += strings.Repeat(" ", align-1-(len(Magic)+4+len(dict))%align) + "\n"
	return append(binary.LittleEndian.AppendUint16([]byte(Magic+"\x01\x00"), uint16(len(dict))), dict...)
}

var (
	descr   = regexp.MustCompile(`'descr':\s*'([<>|=]?)([a-zA-Z])(\d*)'`)
	fortran = regexp.MustCompile(`'fortran_order':\s*(True|False)`)
	shape   = regexp.MustCompile(`'shape':\s*\(([\d, ]*)\)`)
)

// Read reads a header. The elements follow.
func Read(r io.Reader) (*Header, error) {
	raw := make([]byte, maxHeader)
	take := func(n int) ([]byte, error) {
		if _, err := io.ReadFull(r, raw[:n]); err != nil {
			return nil, fmt.Errorf("the file ends in the header of an array: %w", err)
		}
		return raw[:n], nil
	}
	head, err := take(len(Magic) + 2)
	if err != nil {
		return nil, err
	}
	wide := 2 // bytes of the length
	switch version := head[len(Magic)]; {
	case string(head[:len(Magic)]) != Magic || version < 1 || version > 3:
		return nil, fmt.Errorf("%q at the beginning: an .npy array of version 1 to 3 begins with %q", head, Magic)
	case version > 1:
		wide = 4
	}
	length, err := take(wide)
	if err != nil {
		return nil, err
	}
	n := binary.LittleEndian.Uint32(append(length[:wide:wide], 0, 0))
	if n > maxHeader {
		return nil, fmt.Errorf("an .npy header of %d bytes: it can have %d", n, maxHeader)
	}
	text, err := take(int(n))
	if err != nil {
		return nil, err
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
	for _, dim := range strings.FieldsFunc(s[1], func(r rune) bool { return r == ',' || r == ' ' }) {
		n, err := strconv.ParseUint(dim, 10, 63)
		high, low := bits.Mul64(total, max(n, 1))
		if err != nil || high != 0 || low > 1<<62 {
			return nil, fmt.Errorf("an array of shape (%s) with elements of %d bytes: no file is as large", s[1], h.Size)
		}
		total = low
		h.Shape = append(h.Shape, n)
	}
	return h, nil
}
