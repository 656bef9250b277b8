package bench

import (
	"fmt"

	"github.com/rackweave/rackweave/aggregate/optim"
	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/codec"
)

// checkCodecs reports what cannot be compressed.
func (s *Spec) checkCodecs() error {
	p, err := codec.ParsePair(s.Compress, s.Policy == "" || s.Policy == "bsp")
	if err == nil && p != (codec.Pair{}) && s.DType != chunk.F32 {
		return fmt.Errorf("codecs %v and %v on the wire: codecs shorten f32: use one of the two", p, s.DType)
	}
	return err
}

// stream returns one sender's end of a tensor in plain Go, or nil if the codec leaves everything as it is.
func (s *Spec) stream(c codec.Spec, tensor int, rank uint32) *codec.Stream {
	if c.ID == codec.Raw {
		return nil
	}
	return codec.NewStream(c, int(s.Model.Tensors[tensor].Elems()), s.ChunkBytes/4, codec.Key{Tensor: uint32(tensor), Rank: rank})
}

// gradientsOf returns all ranks' gradients of a tensor in a step, as the aggregator reads them. Steps come in order.
func (s *Spec) gradientsOf(tensor int) func(step int) [][]float32 {
	grads := make([][]float32, s.Workers)
	up := make([]*codec.Stream, s.Workers)
	for r := range grads {
		grads[r] = make([]float32, s.Model.Tensors[tensor].Elems())
		up[r] = s.stream(s.codecs.Up, tensor, uint32(r))
	}
	return func(step int) [][]float32 {
		for r := range grads {
			Gradient(grads[r], s.Seed, r, tensor, step)
			onWire(s.DType, grads[r])
			if up[r] != nil {
				copy(grads[r], up[r].Gradient(grads[r], 1))
			}
		}
		return grads
	}
}

// answersOf returns what makes of a step's result the one that workers have. They have the initial parameters.
func (s *Spec) answersOf(rule optim.Rule, tensor int, initial []float32) func(result []float32) {
	down := s.stream(s.codecs.Down, tensor, codec.AnswerRank)
	switch {
	case down == nil:
		return func([]float32) {}
	case rule == optim.Sum:
		return func(sum []float32) { copy(sum, down.Gradient(sum, 1)) }
	}
	copy(down.Kept, initial)
	return func(w []float32) { copy(w, down.Parameters(w)) }
}
