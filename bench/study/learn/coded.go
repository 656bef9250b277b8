package learn

import (
	"context"
	"fmt"
	"iter"
	"math"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/rackweave/rackweave/codec"
)

// task is a network, and what it learns.
type task interface {
	size() int // parameters
	fresh(*rand.Rand) []float32
	// gradient sets g to the mean gradient of samples.
	gradient(params, g []float32, samples []int)
	test(params []float32) (loss, accuracy float64)
	// shards divides the samples among workers, who are alike or, if skewed, have samples of their own kinds.
	shards(workers int, skewed bool) [][]int
}

// coded is the training that ways to shorten gradients are compared in.
type coded struct {
	name    string
	task    func(fold int) task
	skewed  bool
	adam    bool      // else SGD with momentum
	rates   []float64 // of which each way takes its best
	steps   int
	batch   int // samples of a worker
	payload int // elements
	every   int // steps between tests
	target  float64
}

const (
	codedWorkers  = 4
	codedMomentum = 0.9
	// Rates are chosen with seeds and test samples that do not count afterwards.
	tuningSeeds = 2
	tuningFold  = 3
	tuningSeed  = 1000
)

func (c *coded) describe() string {
	rule := fmt.Sprintf("SGD momentum %g", codedMomentum)
	if c.adam {
		rule = "Adam"
	}
	kind := "alike"
	if c.skewed {
		kind = "of kinds of their own"
	}
	return fmt.Sprintf("%s, %s, lr the best of %v, %d workers in step with %d samples each, %s; %d steps, payloads of %d elements with headers",
		c.name, rule, c.rates, codedWorkers, c.batch, kind, c.steps, c.payload)
}

// scheme is a way to send gradients and answers: CODEC[/ANSWERS], and whether losses are fed back.
type scheme struct {
	codec.Pair
	name     string
	feedback bool
}

const noFeedback = " without feedback"

func parseScheme(way string) (s scheme, err error) {
	text, without := strings.CutSuffix(way, noFeedback)
	if !strings.Contains(text, "/") {
		text += "/none"
	}
	s = scheme{name: way, feedback: !without}
	s.Pair, err = codec.ParsePair(text, true)
	return s, err
}

// diverged counts as the loss of a training whose loss is larger, or not a number.
const diverged = 100

// Point is a moment of a training.
type Point struct {
	Step           int
	Bytes          float64 // that a worker sent and received until then
	Loss, Accuracy float64
}

// trained is the result of a training.
type trained struct {
	Curve    []Point // the last is the end
	Up, Down float64 // bits for an element of a gradient, and of an answer
}

func (t trained) end() Point { return t.Curve[len(t.Curve)-1] }

// reached returns the moment at which the loss was at most a target, or nil.
func (t *trained) reached(target float64) *Point {
	for i := range t.Curve {
		if t.Curve[i].Loss <= target {
			return &t.Curve[i]
		}
	}
	return nil
}

// shard is a worker's samples, in the order of its epoch.
type shard struct {
	samples []int
	order   []int
	next    int
}

func (s *shard) draw(chance *rand.Rand, n int) (batch []int) {
	for range n {
		if s.next == len(s.order) {
			s.order, s.next = chance.Perm(len(s.samples)), 0
		}
		batch = append(batch, s.samples[s.order[s.next]])
		s.next++
	}
	return batch
}

// codedRun is a training under way.
type codedRun struct {
	*coded
	scheme
	task
	seed      uint64
	step      int
	chance    *rand.Rand
	shards    []shard
	params    []float32 // the aggregator's
	reference []float32 // what the workers hold
	residuals [][]float32
	g         []float32
	sum       []float32
	decoded   []float32
	payload   []byte
	rule      rule
	sent, got int // bytes, of all workers
}

func (c *coded) train(ctx context.Context, s scheme, rate float64, seed uint64, fold int) (o trained, err error) {
	t := c.task(fold)
	n := t.size()
	r := &codedRun{
		coded: c, scheme: s, task: t, seed: seed, chance: rand.New(rand.NewPCG(seed, 2)),
		params: t.fresh(rand.New(rand.NewPCG(seed, 1))), g: make([]float32, n), sum: make([]float32, n), decoded: make([]float32, n),
		payload: make([]byte, 4*c.payload), rule: newRule(c.adam, rate, n),
	}
	r.reference = slices.Clone(r.params)
	for _, samples := range t.shards(codedWorkers, c.skewed) {
		r.shards = append(r.shards, shard{samples: samples})
		r.residuals = append(r.residuals, make([]float32, n))
	}
	for r.step < c.steps {
		if ctx.Err() != nil {
			return o, context.Cause(ctx)
		}
		if err := r.exchange(); err != nil {
			return o, err
		}
		if r.step++; r.step%c.every == 0 || r.step == c.steps {
			loss, accuracy := t.test(r.reference)
			if !(loss < diverged) {
				loss = diverged
			}
			o.Curve = append(o.Curve, Point{r.step, float64(r.sent+r.got) / codedWorkers, loss, accuracy})
		}
	}
	bits := 8 / float64(n*codedWorkers*c.steps)
	o.Up, o.Down = bits*float64(r.sent), bits*float64(r.got)
	return o, nil
}

// exchange is a step of all workers.
func (r *codedRun) exchange() error {
	clear(r.sum)
	for w := range r.shards {
		r.task.gradient(r.reference, r.g, r.shards[w].draw(r.chance, r.batch))
		if err := r.send(w); err != nil {
			return err
		}
		for i, v := range r.decoded {
			r.sum[i] += v / codedWorkers
		}
	}
	r.rule.update(r.params, r.sum)
	for first, end := range r.payloads() {
		r.got += codedWorkers * r.Down.EncodeChange(r.payload, r.params[first:end], r.reference[first:end], r.key(codedWorkers, first))
	}
	return nil
}

// payloads yields the bounds of each payload.
func (r *codedRun) payloads() iter.Seq2[int, int] {
	return func(yield func(first, end int) bool) {
		for first := 0; first < len(r.params); first += r.coded.payload {
			if !yield(first, min(first+r.coded.payload, len(r.params))) {
				return
			}
		}
	}
}

// send sets decoded to what arrives of a worker's gradient and its residual.
func (r *codedRun) send(w int) error {
	for first, end := range r.payloads() {
		var residual []float32
		if r.feedback {
			residual = r.residuals[w][first:end]
		}
		p := r.payload[:r.Up.Encode(r.payload, r.g[first:end], residual, 1, r.key(w, first))]
		r.sent += len(p)
		if err := codec.Decode(r.decoded[first:end], p); err != nil {
			return err
		}
	}
	return nil
}

func (r *codedRun) key(rank, first int) codec.Key {
	return codec.Key{Seed: r.seed, Step: uint32(r.step), Rank: uint32(rank), First: uint64(first)}
}

// rule is torch's SGD with momentum or Adam, with the usual constants.
type rule struct {
	adam        bool
	rate        float64
	steps       int
	speed, size []float32
}

func newRule(adam bool, rate float64, n int) rule {
	return rule{adam: adam, rate: rate, speed: make([]float32, n), size: make([]float32, n)}
}

func (r *rule) update(params, g []float32) {
	if !r.adam {
		for i, v := range g {
			r.speed[i] = codedMomentum*r.speed[i] + v
			params[i] -= float32(r.rate) * r.speed[i]
		}
		return
	}
	const b1, b2, epsilon = 0.9, 0.999, 1e-8
	r.steps++
	rate := float32(r.rate / (1 - math.Pow(b1, float64(r.steps))))
	unbias := 1 / (1 - math.Pow(b2, float64(r.steps)))
	for i, v := range g {
		r.speed[i] = b1*r.speed[i] + (1-b1)*v
		r.size[i] = b2*r.size[i] + (1-b2)*v*v
		params[i] -= rate * r.speed[i] / float32(math.Sqrt(float64(r.size[i])*unbias)+epsilon)
	}
}
