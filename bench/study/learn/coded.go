package learn

import (
	"context"
	"fmt"
	"iter"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/rackweave/rackweave/codec"
	"github.com/rackweave/rackweave/policy/ratecontrol"
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
	decay   int // the step from which the rate is a tenth. If 0, never
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
	rate := fmt.Sprintf("lr the best of %v", c.rates)
	if len(c.rates) == 1 {
		rate = fmt.Sprintf("lr %v", c.rates[0])
	}
	if c.decay > 0 {
		rate += fmt.Sprintf(", a tenth of it from step %d on", c.decay)
	}
	return fmt.Sprintf("%s, %s, %s, %d workers in step with %d samples each, %s; %d steps, payloads of %d elements with headers",
		c.name, rule, rate, codedWorkers, c.batch, kind, c.steps, c.payload)
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
	rules     []rule // the aggregator's or, with local steps, the workers'
	control   *control
	round     int
	decayed   bool
	local     int       // steps of a worker in the round
	own       []float32 // a worker's parameters during them
	sent, got int       // bytes, of all workers
}

// start prepares a training.
func (c *coded) start(s scheme, rate float64, seed uint64, fold int) (r *codedRun, err error) {
	t := c.task(fold)
	n := t.size()
	r = &codedRun{
		coded: c, scheme: s, task: t, seed: seed, chance: rand.New(rand.NewPCG(seed, 2)),
		params: t.fresh(rand.New(rand.NewPCG(seed, 1))), g: make([]float32, n), sum: make([]float32, n), decoded: make([]float32, n),
		payload: make([]byte, 4*c.payload), own: make([]float32, n),
		local: max(1, s.interval(1, s.drift)),
	}
	if s.control != nil {
		if r.control, err = newControl(&s, r); err != nil {
			return nil, err
		}
	}
	r.reference = slices.Clone(r.params)
	for _, samples := range t.shards(codedWorkers, c.skewed) {
		r.shards = append(r.shards, shard{samples: samples})
		r.residuals = append(r.residuals, make([]float32, n))
		r.rules = append(r.rules, newRule(c.adam, rate, n))
	}
	return r, nil
}

func (c *coded) train(ctx context.Context, s scheme, rate float64, seed uint64, fold int) (o trained, err error) {
	r, err := c.start(s, rate, seed, fold)
	if err != nil {
		return o, err
	}
	for r.step < c.steps {
		if ctx.Err() != nil {
			return o, context.Cause(ctx)
		}
		before := r.step
		if err := r.exchange(); err != nil {
			return o, err
		}
		if r.step/c.every > before/c.every || r.step == c.steps {
			loss, accuracy := r.task.test(r.reference)
			if !(loss < diverged) {
				loss = diverged
			}
			o.Curve = append(o.Curve, Point{r.step, float64(r.sent+r.got) / codedWorkers, loss, accuracy})
		}
	}
	bits := 8 / float64(len(r.params)*codedWorkers*c.steps)
	o.Up, o.Down = bits*float64(r.sent), bits*float64(r.got)
	return o, nil
}

// exchange is a round: a step of all workers, or several.
func (r *codedRun) exchange() error {
	clear(r.sum)
	factor := float32(1)
	if r.decay > 0 && r.step >= r.decay && !r.decayed {
		r.decayed = true
		for w := range r.rules {
			r.rules[w].rate /= 10
		}
		if r.scheme.local == 0 {
			factor = 10 // residuals are gradients of the old rate
		}
	}
	steps, farthest := min(r.local, r.steps-r.step), 0.0
	for w := range r.shards {
		if r.scheme.local > 0 {
			farthest = max(farthest, r.walk(w, steps))
		} else {
			r.task.gradient(r.reference, r.g, r.shards[w].draw(r.chance, r.batch))
		}
		if r.control != nil && w == 0 {
			r.control.begin(r.round, r.probe)
		}
		if err := r.send(w, factor); err != nil {
			return err
		}
		for i, v := range r.decoded {
			r.sum[i] += v / codedWorkers
		}
	}
	if r.scheme.local > 0 {
		for i, v := range r.sum {
			r.params[i] -= v
		}
		r.local = r.interval(r.local, farthest)
	} else {
		r.rules[0].update(r.params, r.sum)
	}
	for first, end := range r.payloads() {
		r.got += codedWorkers * r.Down.EncodeChange(r.payload, r.params[first:end], r.reference[first:end], r.key(codedWorkers, first))
	}
	r.round, r.step = r.round+1, r.step+steps
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

// send sets decoded to what arrives of a worker's gradient and factor times its residual.
func (r *codedRun) send(w int, factor float32) error {
	var samples []ratecontrol.Sample
	for first, end := range r.payloads() {
		var residual []float32
		if r.feedback {
			residual = r.residuals[w][first:end]
		}
		spec, group, number := r.Up, first/r.coded.payload, uint8(0)
		if r.control != nil {
			number = r.control.now.Codecs[group]
			spec = r.control.codecs[number]
		}
		if r.step < r.raw {
			spec = codec.Spec{}
		}
		p := r.payload[:spec.Encode(r.payload, r.g[first:end], residual, factor, r.key(w, first))]
		r.sent += len(p)
		if err := codec.Decode(r.decoded[first:end], p); err != nil {
			return err
		}
		if r.control != nil {
			samples = append(samples, sample(group, number, r.decoded[first:end], p))
		}
	}
	if r.control != nil {
		r.control.on(ratecontrol.Event{Kind: ratecontrol.Measured, Rank: w, Samples: samples}, nil)
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
