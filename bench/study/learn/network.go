package learn

import (
	"math"
	"math/rand/v2"
	"slices"
)

// The network has one hidden layer of rectified linear units, and a softmax of the classes.
const (
	hidden     = 32
	biases1    = pixels * hidden
	weights2   = biases1 + hidden
	biases2    = weights2 + hidden*classes
	parameters = biases2 + classes
)

// network is the parameters, or a gradient of them. Weights are ordered by input.
type network [parameters]float32

// newNetwork draws initial parameters.
func newNetwork(r *rand.Rand) *network {
	var n network
	for i := range biases1 {
		n[i] = float32(r.NormFloat64() * math.Sqrt(2.0/pixels))
	}
	for i := weights2; i < biases2; i++ {
		n[i] = float32(r.NormFloat64() * math.Sqrt(1.0/hidden))
	}
	return &n
}

// activations are those of one image.
type activations struct {
	hidden [hidden]float32
	output [classes]float32 // probabilities
}

// forward returns the loss of an image: the cross entropy.
func (n *network) forward(x *image, a *activations) float64 {
	h := &a.hidden
	copy(h[:], n[biases1:weights2])
	multiply(h[:], x.Ink[:], n[:biases1])
	out := &a.output
	copy(out[:], n[biases2:])
	for j, v := range h {
		h[j] = max(v, 0)
	}
	multiply(out[:], h[:], n[weights2:biases2])
	highest := slices.Max(out[:])
	own := out[x.Digit] - highest
	sum := 0.0
	var e [classes]float64
	for k, v := range out {
		e[k] = math.Exp(float64(v - highest))
		sum += e[k]
	}
	for k := range out {
		out[k] = float32(e[k] / sum)
	}
	return math.Log(sum) - float64(own)
}

// gradient sets g to the mean gradient of a mini-batch.
func (n *network) gradient(g *network, batch []*image) {
	*g = network{}
	scale := 1 / float32(len(batch))
	var a activations
	for _, x := range batch {
		n.forward(x, &a)
		d := a.output
		d[x.Digit]--
		var dh [hidden]float32
		for k := range d {
			d[k] *= scale
			g[biases2+k] += d[k]
		}
		for j, h := range a.hidden {
			if h == 0 {
				continue
			}
			w, gw := n[weights2+j*classes:weights2+(j+1)*classes], g[weights2+j*classes:weights2+(j+1)*classes]
			var sum float32
			for k := range d {
				gw[k] += h * d[k]
				sum += w[k] * d[k]
			}
			dh[j] = sum
			g[biases1+j] += sum
		}
		for p, ink := range x.Ink {
			if ink == 0 {
				continue
			}
			row := g[p*hidden : (p+1)*hidden]
			for j := range dh {
				row[j] += ink * dh[j]
			}
		}
	}
}

// test returns the mean loss, and the share of images that are recognised.
func (n *network) test(images []image) (loss, accuracy float64) {
	var a activations
	right := 0
	for i := range images {
		x := &images[i]
		loss += n.forward(x, &a)
		if slices.Index(a.output[:], slices.Max(a.output[:])) == int(x.Digit) {
			right++
		}
	}
	return loss / float64(len(images)), float64(right) / float64(len(images))
}
