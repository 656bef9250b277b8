package learn

import (
	"math/rand/v2"
	"slices"
)

// recognition is the task to recognise digits.
type recognition struct{ images, tests []image }

func newRecognition(fold int) task {
	train, test := split(fold)
	return &recognition{train, test}
}

func (r *recognition) fresh(chance *rand.Rand) []float32 { return newNetwork(chance)[:] }

func (r *recognition) gradient(params, g []float32, samples []int) {
	batch := make([]*image, len(samples))
	for i, s := range samples {
		batch[i] = &r.images[s]
	}
	(*network)(params).gradient((*network)(g), batch)
}

func (r *recognition) test(params []float32) (loss, accuracy float64) {
	return (*network)(params).test(r.tests)
}

// shards deals images by their order. Skewed, each worker has two or three of the digits.
func (r *recognition) shards(n int, skewed bool) [][]int {
	order := make([]int, len(r.images))
	for i := range order {
		order[i] = i
	}
	if skewed {
		slices.SortStableFunc(order, func(a, b int) int { return int(r.images[a].Digit) - int(r.images[b].Digit) })
	}
	return divide(order, n)
}
