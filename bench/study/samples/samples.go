// Package samples has the data that studies train with: handwritten digits and a text.
package samples

import (
	"bytes"
	"compress/gzip"
	_ "embed"
	"io"
	"sync"
)

// The digits are the test set of the UCI ML repository's "Optical Recognition of Handwritten Digits" (E. Alpaydin, C. Kaynak, 1998,
// CC BY 4.0), as scikit-learn's load_digits has them: per image 64 bytes of ink, 0 to 16, and the digit.
//
//go:embed digits.gz
var digits []byte

// The text is the beginning of Isaac Newton's Opticks (4th edition, 1730; in the public domain, from Go's test data): in lower
// case, with one space for all that is not among the letters of Alphabet.
//
//go:embed opticks.gz
var opticks []byte

const (
	Images  = 1797 // of Digits
	Pixels  = 64   // of an image
	Classes = 10   // digits

	maxInk = 16

	// Alphabet has the letters of Opticks, which has Letters of them.
	Alphabet = "abcdefghijklmnopqrstuvwxyz ',-.;"
	Letters  = 1 << 17
)

// Image is a handwritten digit.
type Image struct {
	Ink   [Pixels]float32 // 0 to 1
	Digit uint8
}

// Digits returns all images, in the order of the data set. The caller must not write to them.
var Digits = sync.OnceValue(func() []Image {
	raw := unpack(digits, Images*(Pixels+1))
	all := make([]Image, Images)
	for i := range all {
		row := raw[i*(Pixels+1):]
		for p := range Pixels {
			all[i].Ink[p] = float32(row[p]) / maxInk
		}
		all[i].Digit = row[Pixels]
	}
	return all
})

// Opticks returns the text, each letter as its place in Alphabet. The caller must not write to it.
var Opticks = sync.OnceValue(func() []byte {
	text := unpack(opticks, Letters)
	for i, c := range text {
		text[i] = byte(bytes.IndexByte([]byte(Alphabet), c))
	}
	return text
})

// unpack returns the bytes of an embedded file that has n of them.
func unpack(packed []byte, n int) []byte {
	raw := make([]byte, n)
	z, err := gzip.NewReader(bytes.NewReader(packed))
	if err == nil {
		_, err = io.ReadFull(z, raw)
	}
	if err != nil {
		panic("samples: an embedded file is damaged: " + err.Error())
	}
	return raw
}
