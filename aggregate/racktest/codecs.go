package racktest

import (
	"math"

	"github.com/rackweave/rackweave/codec"
)

// codecs are the streams of a job with codecs.
type codecs struct {
	codec.Pair
	workers, chunk int
	gradients      [][]*codec.Stream // by tensor and worker
	answers        []*codec.Stream   // by tensor
	apart          []bool            // by tensor: the next answer to parameters is raw, because the workers have other ones
	rates          []float32         // by tensor: the learning rate times the scale of its last gradient
}

// reach adds the streams of tensors up to the t-th of w.
func (k *codecs) reach(w [][]float32, t int) {
	for i := len(k.answers); i <= t; i++ {
		n := len(w[i])
		of := make([]*codec.Stream, k.workers)
		for rank := range of {
			of[rank] = codec.NewStream(k.Up, n, k.chunk, codec.Key{Tensor: uint32(i), Rank: uint32(rank)})
		}
		k.gradients = append(k.gradients, of)
		k.answers = append(k.answers, codec.NewStream(k.Down, n, k.chunk, codec.Key{Tensor: uint32(i), Rank: codec.AnswerRank}))
		k.rates, k.apart = append(k.rates, 0), append(k.apart, true)
	}
}

// factor returns the factor of the residuals in a tensor's next gradient, whose learning rate times scale is rate.
func (k *codecs) factor(t int, rate float32) float32 {
	was := k.rates[t]
	if rate == 0 || math.Abs(float64(rate)) > math.MaxFloat32 || rate != rate {
		return 1
	}
	k.rates[t] = rate
	return codec.Factor(was, rate)
}
