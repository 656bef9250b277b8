package data

import (
	"math"
	"math/rand/v2"
	"slices"

	"github.com/rackweave/rackweave/bench/study/samples"
)

type image = samples.Image

// problem is the images to train and to test with.
type problem struct{ train, test []image }

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
		digit := p.train[i].Digit
		groups[digit] = append(groups[digit], i)
	}
	return groups
}

// softmax is a regression: for each pixel the weights of the classes, and at the end their biases.
type softmax [(samples.Pixels + 1) * samples.Classes]float32

type perClass = [samples.Classes]float32

// of returns the weights of a pixel, or of its successor, the constant input of 1.
func (m *softmax) of(pixel int) *perClass { return (*perClass)(m[pixel*samples.Classes:]) }

// forward sets p to the probabilities of an image's classes, and returns the cross entropy.
func (m *softmax) forward(x *image, p *perClass) float64 {
	*p = perClass{}
	for pixel, ink := range &x.Ink {
		if ink > 0 {
			for k, w := range m.of(pixel) {
				p[k] += ink * w
			}
		}
	}
	for k, bias := range m.of(samples.Pixels) {
		p[k] += bias
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
func (m *softmax) add(at *softmax, x *image, factor float32) {
	var d perClass
	at.forward(x, &d)
	d[x.Digit]--
	for pixel, ink := range &x.Ink {
		if ink > 0 {
			w, f := m.of(pixel), factor*ink
			for k, v := range &d {
				w[k] += f * v
			}
		}
	}
	biases := m.of(samples.Pixels)
	for k, v := range &d {
		biases[k] += factor * v
	}
}

// measure returns the mean loss of images, and the share that is recognised.
func (m *softmax) measure(images []image) (loss, accuracy float64) {
	var p perClass
	right := 0
	for i := range images {
		loss += m.forward(&images[i], &p)
		if slices.Index(p[:], slices.Max(p[:])) == int(images[i].Digit) {
			right++
		}
	}
	return loss / float64(len(images)), float64(right) / float64(len(images))
}
