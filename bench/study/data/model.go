package data

import (
	"math"
	"math/rand/v2"
	"slices"

	"github.com/rackweave/rackweave/bench/study/samples"
)

// problem is the images to train and to test with.
type problem struct{ train, test []samples.Image }

// An imbalanced problem has few images of the rare digits to train with. Its test is balanced.
const (
	rareFrom = 7 // 7, 8 and 9 are rare
	rareRows = 6 // of each
)

// newProblem divides the images into two thirds to train and a third to test with, in one way for all seeds.
func newProblem(imbalanced bool) *problem {
	p, all := &problem{}, samples.Digits()
	var rows [samples.Classes]int
	for i, k := range rand.New(rand.NewPCG(1, 0)).Perm(len(all)) {
		x := all[k]
		if i < len(all)/3 {
			p.test = append(p.test, x)
			continue
		}
		if rows[x.Digit]++; !imbalanced || x.Digit < rareFrom || rows[x.Digit] <= rareRows {
			p.train = append(p.train, x)
		}
	}
	return p
}

// classes returns the images to train with by their digit.
func (p *problem) classes() [][]int {
	groups := make([][]int, samples.Classes)
	for i := range p.train {
		groups[p.train[i].Digit] = append(groups[p.train[i].Digit], i)
	}
	return groups
}

// softmax is a regression: for every pixel and, in the end, a constant input of 1, the weights of the classes.
type softmax [(samples.Pixels + 1) * samples.Classes]float32

// forward sets p to the probabilities of an image's classes, and returns the cross entropy.
func (m *softmax) forward(x *samples.Image, p *[samples.Classes]float32) float64 {
	copy(p[:], m[samples.Pixels*samples.Classes:])
	for i, ink := range x.Ink {
		if ink == 0 {
			continue
		}
		for k, w := range (*[samples.Classes]float32)(m[i*samples.Classes:]) {
			p[k] += ink * w
		}
	}
	highest, own, sum := slices.Max(p[:]), p[x.Digit], float32(0)
	for k, v := range p {
		p[k] = float32(math.Exp(float64(v - highest)))
		sum += p[k]
	}
	for k := range p {
		p[k] /= sum
	}
	return math.Log(float64(sum)) - float64(own-highest)
}

// add adds to m a factor times the gradient, at other parameters, of an image's loss.
func (m *softmax) add(at *softmax, x *samples.Image, factor float32) {
	var d [samples.Classes]float32
	at.forward(x, &d)
	d[x.Digit]--
	for k := range d {
		d[k] *= factor
	}
	for i, ink := range x.Ink {
		if ink == 0 {
			continue
		}
		w := (*[samples.Classes]float32)(m[i*samples.Classes:])
		for k, v := range d {
			w[k] += ink * v
		}
	}
	for k, v := range d {
		m[samples.Pixels*samples.Classes+k] += v
	}
}

// measure returns the mean loss of images, and the share that is recognised.
func (m *softmax) measure(images []samples.Image) (loss, accuracy float64) {
	var p [samples.Classes]float32
	right := 0
	for i := range images {
		loss += m.forward(&images[i], &p)
		if slices.Index(p[:], slices.Max(p[:])) == int(images[i].Digit) {
			right++
		}
	}
	return loss / float64(len(images)), float64(right) / float64(len(images))
}
