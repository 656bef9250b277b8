package learn

import (
	"bytes"
	"compress/gzip"
	_ "embed"
	"io"
	"math/rand/v2"
	"sync"
)

// The digits are the test set of the UCI ML repository's "Optical Recognition of Handwritten Digits" (E. Alpaydin, C. Kaynak, 1998,
// CC BY 4.0), as scikit-learn's load_digits has them: per image 64 bytes of ink, 0 to 16, and the digit.
//
//go:embed digits.gz
var packed []byte

const (
	images  = 1797
	pixels  = 64
	classes = 10
	maxInk  = 16
)

// image is a handwritten digit.
type image struct {
	ink   [pixels]float32 // 0 to 1
	digit uint8
}

// digits returns all images, in the order of the data set.
var digits = sync.OnceValue(func() []image {
	raw := unpack(packed, images*(pixels+1))
	all := make([]image, images)
	for i := range all {
		row := raw[i*(pixels+1):]
		for p := range pixels {
			all[i].ink[p] = float32(row[p]) / maxInk
		}
		all[i].digit = row[pixels]
	}
	return all
})

// unpack returns the bytes of an embedded file that has n of them.
func unpack(packed []byte, n int) []byte {
	raw := make([]byte, n)
	z, err := gzip.NewReader(bytes.NewReader(packed))
	if err == nil {
		_, err = io.ReadFull(z, raw)
	}
	if err != nil {
		panic("learn: an embedded file is damaged: " + err.Error())
	}
	return raw
}

// Folds is the number of ways to divide the images.
const Folds = 5

const testImages = 540

// split divides the images into those to train with and those to test with. Test sets of different folds begin at different images.
func split(fold int) (train, test []image) {
	order := rand.New(rand.NewPCG(1, 0)).Perm(images)
	first := fold * images / Folds
	all := digits()
	for i := range images {
		to := &train
		if i < testImages {
			to = &test
		}
		*to = append(*to, all[order[(first+i)%images]])
	}
	return train, test
}
