// Package task has the problems that studies train on: handwritten digits and a text, and the networks that learn them.
package task

import (
	"bytes"
	"compress/gzip"
	_ "embed"
	"io"
	"math/rand/v2"
	"strings"
	"sync"
)

// The digits are the test set of the UCI ML repository's "Optical Recognition of Handwritten Digits" (E. Alpaydin, C. Kaynak, 1998,
// CC BY 4.0), as scikit-learn's load_digits has them: per image 64 bytes of ink, 0 to 16, and the digit.
//
//go:embed digits.gz
var digits []byte

// The text is the beginning of Isaac Newton's Opticks (4th edition, 1730; in the public domain, from Go's test data): in lower
// case, with one space for all that is not among the letters of alphabet.
//
//go:embed opticks.gz
var opticks []byte

const (
	Images  = 1797
	Pixels  = 64 // of an image
	Classes = 10 // digits

	maxInk   = 16
	alphabet = "abcdefghijklmnopqrstuvwxyz ',-.;"
)

// Task is samples, and a network that learns them. It is for one goroutine.
type Task interface {
	// Fresh returns initial parameters.
	Fresh(*rand.Rand) []float32
	// Gradient sets g to the mean gradient of samples, at params.
	Gradient(params, g []float32, samples []int)
	// Test returns the mean loss of samples that no worker trains with, and the percentage that is right.
	Test(params []float32) (loss, accuracy float64)
	// Shards divides the samples to train with among workers, who are alike or, if skewed, have samples of their own kinds.
	Shards(workers int, skewed bool) [][]int
}

// Shuffled deals samples in one random order after another.
type Shuffled struct{ Samples, order []int }

// Draw returns the next n samples.
func (s *Shuffled) Draw(chance *rand.Rand, n int) (batch []int) {
	for range n {
		if len(s.order) == 0 {
			s.order = chance.Perm(len(s.Samples))
		}
		batch, s.order = append(batch, s.Samples[s.order[0]]), s.order[1:]
	}
	return batch
}

// divide cuts samples into equal parts.
func divide(samples []int, n int) (parts [][]int) {
	for w := range n {
		parts = append(parts, samples[w*len(samples)/n:(w+1)*len(samples)/n])
	}
	return parts
}

// Folds is the number of ways to divide samples into those to train with and those to test with.
const Folds = 5

// Image is a handwritten digit.
type Image struct {
	Ink   [Pixels]float32 // 0 to 1
	Digit uint8
}

// all returns the images, in the order of the data set.
var all = sync.OnceValue(func() []Image {
	raw := unpack(digits, Images*(Pixels+1))
	images := make([]Image, Images)
	for i := range images {
		row := raw[i*(Pixels+1):]
		for p := range Pixels {
			images[i].Ink[p] = float32(row[p]) / maxInk
		}
		images[i].Digit = row[Pixels]
	}
	return images
})

// newton returns the text, each letter as its place in the alphabet. The caller must not write to it.
var newton = sync.OnceValue(func() []byte {
	text := unpack(opticks, TextLength)
	for i, c := range text {
		text[i] = byte(strings.IndexByte(alphabet, c))
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
		panic("task: an embedded file is damaged: " + err.Error())
	}
	return raw
}
