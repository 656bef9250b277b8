package task

import (
	"math"
	"math/rand/v2"
	"slices"
)

// Split divides the images into those to train with and so many to test with, which begin at another image in each fold.
func Split(fold, tests int) (train, test []Image) {
	order, first := rand.New(rand.NewPCG(1, 0)).Perm(Images), fold*Images/Folds
	for i := range Images {
		to := &train
		if i < tests {
			to = &test
		}
		*to = append(*to, all()[order[(first+i)%Images]])
	}
	return train, test
}

// Digits is the task to recognise handwritten digits, by layers of rectified linear units, if any, and a softmax of the classes.
type Digits struct {
	train, test []Image
	layers      []layer
	size        int
	values      [][]float32 // that go into each layer, and the probabilities of the classes
	slopes      [][]float32 // of the loss, by them
}

// layer is a matrix ordered by input, and then biases, at a place of the parameters.
type layer struct{ weights, biases, end int }

// NewDigits returns the task to learn images with so many units in each hidden layer.
func NewDigits(train, test []Image, hidden ...int) *Digits {
	d, in := &Digits{train: train, test: test, values: [][]float32{nil}, slopes: [][]float32{nil}}, Pixels
	for _, out := range append(slices.Clip(hidden), Classes) {
		l := layer{d.size, d.size + in*out, d.size + in*out + out}
		d.layers, d.values, d.slopes = append(d.layers, l), append(d.values, make([]float32, out)), append(d.slopes, make([]float32, out))
		in, d.size = out, l.end
	}
	return d
}

// Fresh draws the weights of a network. A regression, without hidden layers, begins at 0.
func (d *Digits) Fresh(r *rand.Rand) []float32 {
	params, last := make([]float32, d.size), len(d.layers)-1
	for i, l := range d.layers {
		variance := 2.0 // of a unit's input, half of which is cut off
		if i == last {
			variance = 1
		}
		in := float64(l.biases-l.weights) / float64(l.end-l.biases)
		for k := l.weights; k < l.biases && last > 0; k++ {
			params[k] = float32(r.NormFloat64() * math.Sqrt(variance/in))
		}
	}
	return params
}

// forward fills in the values for an image, and returns its loss: the cross entropy.
func (d *Digits) forward(params []float32, x *Image) float64 {
	d.values[0] = x.Ink[:]
	for i, l := range d.layers {
		if i > 0 {
			for k, v := range d.values[i] {
				d.values[i][k] = max(v, 0)
			}
		}
		copy(d.values[i+1], params[l.biases:l.end])
		multiply(d.values[i+1], d.values[i], params[l.weights:l.biases])
	}
	out, sum := d.values[len(d.layers)], 0.0
	highest := slices.Max(out)
	own := out[x.Digit] - highest
	var e [Classes]float64
	for k, v := range out {
		e[k] = math.Exp(float64(v - highest))
		sum += e[k]
	}
	for k := range out {
		out[k] = float32(e[k] / sum)
	}
	return math.Log(sum) - float64(own)
}

func (d *Digits) Gradient(params, g []float32, samples []int) {
	clear(g)
	for _, s := range samples {
		x, last := &d.train[s], len(d.layers)
		d.forward(params, x)
		for k, chance := range d.values[last] {
			if k == int(x.Digit) {
				chance--
			}
			d.slopes[last][k] = chance * (1 / float32(len(samples)))
		}
		for i := last - 1; i >= 0; i-- {
			l, slope := d.layers[i], d.slopes[i+1]
			add(g[l.biases:l.end], 1, slope)
			for k, v := range d.values[i] {
				first := l.weights + k*len(slope)
				if v != 0 {
					add(g[first:first+len(slope)], v, slope)
				}
				if i == 0 {
					continue
				}
				var sum float32
				for j, w := range params[first : first+len(slope)] {
					sum += w * slope[j]
				}
				if v == 0 { // the unit is cut off
					sum = 0
				}
				d.slopes[i][k] = sum
			}
		}
	}
}

func (d *Digits) Test(params []float32) (loss, accuracy float64) {
	right := 0
	for i := range d.test {
		x := &d.test[i]
		loss += d.forward(params, x)
		if out := d.values[len(d.layers)]; slices.Index(out, slices.Max(out)) == int(x.Digit) {
			right++
		}
	}
	n := float64(len(d.test))
	return loss / n, 100 * float64(right) / n
}

// Shards deals images by their order. Skewed, each worker has two or three of the digits.
func (d *Digits) Shards(n int, skewed bool) [][]int {
	order := make([]int, len(d.train))
	for i := range order {
		order[i] = i
	}
	if skewed {
		slices.SortStableFunc(order, func(a, b int) int { return int(d.train[a].Digit) - int(d.train[b].Digit) })
	}
	return divide(order, n)
}
