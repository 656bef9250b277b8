package bench

import (
	"context"
	"fmt"
	"math"
	"strings"

	"github.com/rackweave/rackweave/aggregate/optim"
	"github.com/rackweave/rackweave/bench/report"
	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/client"
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
		for r := range s.recodes {
			for _, c := range s.recodes[r] {
				if c.Step == step && c.Tensor == tensor {
					up[r].Spec = c.To
				}
			}
		}
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

// answersOf returns a function that replaces a step's result by what workers decode. They begin with the initial parameters.
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

// recode is a change of the codec of a tensor's gradients by a controller.
type recode struct {
	Step, Tensor int // of the first gradient
	To           codec.Spec
}

// took records which codec a tensor's gradient of a step had, if plain Go must follow a controller.
func (x *exchanger) took(step, tensor int) error {
	if !x.s.Verify || !strings.HasPrefix(x.w.Compress(), "auto") {
		return nil
	}
	if x.coded == nil {
		x.coded = make([]codec.Spec, len(x.ops))
	}
	c, err := x.w.Codec(tensor)
	if err == nil && c != x.coded[tensor] {
		x.coded[tensor], x.recodes = c, append(x.recodes, recode{step, tensor, c})
	}
	return err
}

// codecs returns what the job's codecs made of the exchanges since before.
func (x *exchanger) codecs(ctx context.Context, before client.Stats) (*report.Codecs, error) {
	c := &report.Codecs{Names: x.w.Compress()}
	if c.Names == "none" {
		return c, nil
	}
	now, err := x.w.Stats()
	if err != nil {
		return nil, err
	}
	each := func(bytes, raw uint64) report.Coded {
		return report.Coded{Bytes: bytes / uint64(x.s.Steps()), Raw: raw / uint64(x.s.Steps())}
	}
	c.Gradients = each(now.SentBytes-before.SentBytes, now.SentRawBytes-before.SentRawBytes)
	c.Answers = each(now.ReceivedBytes-before.ReceivedBytes, now.ReceivedRawBytes-before.ReceivedRawBytes)
	energy := 0.0
	for t := range x.ops {
		energy += optim.SumSq(x.b.f32(x.b.src, t))
	}
	c.Residual = math.Sqrt(now.Residual / energy)
	return c, x.distortions(ctx, c)
}

// distortions asks each aggregator what the codecs lost.
func (x *exchanger) distortions(ctx context.Context, c *report.Codecs) error {
	var up, down struct{ energy, lost float64 }
	for server := range strings.SplitSeq(x.s.Server, ",") {
		cfg := client.Config{Server: server, CA: x.s.CA, Job: x.s.Job, Token: x.s.Token, Insecure: x.s.Insecure}
		status, err := client.Status(ctx, cfg)
		if err != nil {
			return err
		}
		for _, j := range status.Jobs {
			for _, m := range j.Members {
				if j.Name == x.s.Job {
					up.energy, up.lost = up.energy+m.Gradients.GetEnergy(), up.lost+m.Gradients.GetLost()
					down.energy, down.lost = down.energy+m.Answers.GetEnergy(), down.lost+m.Answers.GetLost()
				}
			}
		}
	}
	// Nothing is lost of nothing.
	c.Gradients.Distortion, c.Answers.Distortion = up.lost/max(up.energy, 1e-300), down.lost/max(down.energy, 1e-300)
	return nil
}
