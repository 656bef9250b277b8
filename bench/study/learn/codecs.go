package learn

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/rackweave/rackweave/codec"
)

// codedChunk is the number of parameters that a payload has, the smallest chunk's.
const codedChunk = 1024

// coding is the way in which workers shorten their gradients.
type coding struct {
	codec.Spec
	feedback bool // what a payload lost is added to the next gradient
	skewed   bool // each worker has the images of a few digits only
}

const noFeedback = " without feedback"

// of returns the coding that a way names, on the same images.
func (c *coding) of(way string) (*coding, error) {
	name, without := strings.CutSuffix(way, noFeedback)
	spec, err := codec.Parse(name)
	return &coding{spec, !without, c.skewed}, err
}

func (c *coding) String() string {
	if c.feedback {
		return c.Spec.String()
	}
	return c.Spec.String() + noFeedback
}

// shard is a worker's images, in the order of its epoch.
type shard struct {
	images []image
	order  []int
	next   int
}

// runCoded trains workers in step, whose payloads are decoded before they are added in the order of ranks.
func (t *training) runCoded(ctx context.Context) (Outcome, error) {
	n, steps, sent := len(t.workers), uint32(0), 0
	shards := t.shards(n)
	residuals := make([]network, n)
	var g, sum, decoded network
	payload := make([]byte, 4*codedChunk)
	for t.samples < t.Epochs*len(t.train) {
		if ctx.Err() != nil {
			return Outcome{}, context.Cause(ctx)
		}
		sum = network{}
		for w := range t.workers {
			t.params.gradient(&g, t.drawFrom(&shards[w], t.Batch/n))
			for first := 0; first < parameters; first += codedChunk {
				end := min(first+codedChunk, parameters)
				var e []float32
				if t.Coding.feedback {
					e = residuals[w][first:end]
				}
				key := codec.Key{Seed: t.Seed, Step: steps, Rank: uint32(w), First: uint64(first)}
				p := payload[:t.Coding.Encode(payload, g[first:end], e, 1, key)]
				sent += len(p)
				if err := codec.Decode(decoded[first:end], p); err != nil {
					return Outcome{}, err
				}
			}
			for i, v := range decoded {
				sum[i] += v
			}
		}
		for i, v := range sum {
			t.speed[i] = float32(t.Momentum)*t.speed[i] + v/float32(n)
			t.params[i] -= float32(t.LR) * t.speed[i]
		}
		t.samples += t.Batch / n * n
		t.now += unit
		steps++
	}
	t.out.Pushes, t.out.Updates = uint64(steps)*uint64(n), uint64(steps)
	t.out.Bits = 8 * float64(sent) / float64(parameters) / float64(t.out.Pushes)
	return t.finish(), nil
}

// shards divides the images among workers: by their order, or by digit if they are skewed.
func (t *training) shards(n int) []shard {
	train := slices.Clone(t.train)
	if t.Coding.skewed {
		slices.SortStableFunc(train, func(a, b image) int { return int(a.digit) - int(b.digit) })
	}
	all := make([]shard, n)
	for w := range all {
		all[w].images = train[w*len(train)/n : (w+1)*len(train)/n]
	}
	return all
}

// drawFrom takes a worker's next images.
func (t *training) drawFrom(s *shard, n int) (batch []*image) {
	for range n {
		if s.next == len(s.order) {
			s.order, s.next = t.chance.Perm(len(s.images)), 0
		}
		batch = append(batch, &s.images[s.order[s.next]])
		s.next++
	}
	return batch
}

// tellCodecs compares with f32: codecs that lose at most three tenths of a point, with 95 % confidence, and the others.
func tellCodecs(p *plan) {
	var near, others []string
	for i := range p.rows {
		r := &p.rows[i]
		if to := &near; r.Way != "none" {
			if r.Gain.Mean-r.Gain.Half < -0.3 {
				to = &others
			}
			*to = append(*to, fmt.Sprintf("%s (%.2f bits)", r.Way, r.Bits))
		}
	}
	p.find("at most 0.3 points below f32, with 95%% confidence: %s", strings.Join(near, ", "))
	p.find("maybe more: %s", strings.Join(others, ", "))
}
