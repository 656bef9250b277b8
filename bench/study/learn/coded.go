package learn

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"

	"github.com/rackweave/rackweave/bench/study"
	"github.com/rackweave/rackweave/bench/study/task"
	"github.com/rackweave/rackweave/codec"
	"github.com/rackweave/rackweave/policy/ratecontrol"
)

// coded is the training that ways to shorten gradients are compared in.
type coded struct {
	name    string
	task    func(fold int) task.Task
	skewed  bool
	adam    bool      // else SGD with momentum
	rates   []float64 // learning rates; each way trains with its best one
	steps   int
	batch   int // samples of a worker
	payload int // elements
	every   int // steps between tests
	decay   int // the step from which the rate is a tenth. If 0, never
	target  float64
}

// codedSetting is such a training in a way.
type codedSetting struct {
	coded
	scheme
	rate float64
	fold int
	seed uint64
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
	rule, kind := fmt.Sprintf("SGD momentum %g", codedMomentum), "alike"
	if c.adam {
		rule = "Adam"
	}
	if c.skewed {
		kind = "of kinds of their own"
	}
	if c.decay > 0 {
		kind += fmt.Sprintf("; lr a tenth from step %d on", c.decay)
	}
	return fmt.Sprintf("%s, %s, lr the best of %v, %d workers in step with %d samples each, %s; %d steps, payloads of %d elements with "+
		"headers; the target is a loss of %g", c.name, rule, c.rates, codedWorkers, c.batch, kind, c.steps, c.payload, c.target)
}

// diverged counts as the loss of a training whose loss is larger, or not a number.
const diverged = 100

// codedWorker is a worker, with its way to the aggregator.
type codedWorker struct {
	task.Shuffled
	rule // of local steps; without them the first worker's is the aggregator's
	*codec.Stream
}

// codedRun is a training under way.
type codedRun struct {
	codedSetting
	task.Task
	round, step int
	local       int // steps of a worker in the round
	chance      *rand.Rand
	workers     []codedWorker
	answers     *codec.Stream // keeps what the workers hold
	params      []float32     // the aggregator's
	g, sum      []float32
	sent, got   int // bytes, of all workers

	controller *ratecontrol.Controller
	codecs     []codec.Spec // by its numbers
	chosen     []uint8      // of them, for each payload
	samples    []ratecontrol.Sample
}

// start prepares a training.
func (s codedSetting) start() (r *codedRun, err error) {
	t := s.task(s.fold)
	params := t.Fresh(random(s.seed, 1))
	n := len(params)
	r = &codedRun{
		codedSetting: s, Task: t, chance: random(s.seed, 2), params: params, g: make([]float32, n), sum: make([]float32, n),
		local:   max(1, s.interval(1, s.drift)),
		answers: codec.NewStream(s.Down, n, s.payload, codec.Key{Seed: s.seed, Rank: codedWorkers}),
	}
	copy(r.answers.Kept, params)
	r.answers.Sent = func(_ int, _ []float32, p []byte) { r.got += codedWorkers * len(p) }
	for w, samples := range t.Shards(codedWorkers, s.skewed) {
		stream := codec.NewStream(s.Up, n, s.payload, codec.Key{Seed: s.seed, Rank: uint32(w)})
		stream.Sent = r.count
		r.workers = append(r.workers, codedWorker{task.Shuffled{Samples: samples}, newRule(s.adam, s.rate, n), stream})
	}
	if s.Auto != "" {
		err = r.control()
	}
	return r, err
}

// train trains.
func (s codedSetting) train(ctx context.Context) (o study.Outcome, err error) {
	r, err := s.start()
	for err == nil && r.step < s.steps {
		before := r.step
		if r.exchange(); r.step/s.every > before/s.every || r.step == s.steps {
			r.look(&o)
			err = context.Cause(ctx)
		}
	}
	if err != nil {
		return o, err
	}
	bits := 8 / float64(len(r.params)*codedWorkers*s.steps)
	o.Up, o.Down, o.Pushes, o.Time = bits*float64(r.sent), bits*float64(r.got), float64(r.round), float64(r.step)
	o.Rate = s.rate
	return o, nil
}

// look tests the parameters that the workers hold.
func (r *codedRun) look(o *study.Outcome) {
	o.Loss, o.Accuracy = r.Test(r.answers.Kept)
	if !(o.Loss < diverged) {
		o.Loss = diverged
	}
	p := study.Point{Step: r.step, Bytes: float64(r.sent+r.got) / codedWorkers, Loss: o.Loss, Accuracy: o.Accuracy}
	o.Curve = append(o.Curve, p)
	if o.ToTarget == 0 && p.Loss <= r.target {
		o.ToTarget, o.Bytes = float64(p.Step), p.Bytes
	}
}

// exchange is a round: a step of all workers, or several.
func (r *codedRun) exchange() {
	clear(r.sum)
	factor := float32(1)
	if r.decay > 0 && r.step >= r.decay && r.workers[0].rule.rate == r.rate {
		for w := range r.workers {
			r.workers[w].rule.rate /= 10
		}
		if r.scheme.local == 0 {
			factor = 10 // residuals are gradients of the old rate
		}
	}
	steps, farthest := min(r.local, r.steps-r.step), 0.0
	for w := range r.workers {
		if r.scheme.local > 0 {
			farthest = max(farthest, r.walk(w, steps))
		} else {
			r.Gradient(r.answers.Kept, r.g, r.workers[w].Draw(r.chance, r.batch))
		}
		if r.controller != nil && w == 0 {
			r.begin()
		}
		for i, v := range r.send(w, factor) {
			r.sum[i] += v / codedWorkers
		}
	}
	if r.scheme.local > 0 {
		for i, v := range r.sum {
			r.params[i] -= v
		}
		r.local = r.interval(r.local, farthest)
	} else {
		r.workers[0].update(r.params, r.sum)
	}
	r.answers.Key.Step = uint32(r.step)
	r.answers.Parameters(r.params)
	r.round, r.step = r.round+1, r.step+steps
}

// send returns what arrives of a worker's gradient and factor times its residual.
func (r *codedRun) send(w int, factor float32) []float32 {
	s := r.workers[w].Stream
	s.Spec, s.Key.Step = r.Up, uint32(r.step)
	if r.step < r.raw {
		s.Spec = codec.Spec{}
	}
	if !r.feedback {
		clear(s.Kept)
	}
	x := s.Gradient(r.g, factor)
	if r.controller != nil {
		r.tell(ratecontrol.Event{Kind: ratecontrol.Measured, Rank: w, Samples: r.samples})
		r.samples = nil
	}
	return x
}

// count counts a payload.
func (r *codedRun) count(first int, x []float32, p []byte) {
	if r.sent += len(p); r.controller != nil {
		group := first / r.payload
		r.samples = append(r.samples, sample(group, r.chosen[group], x, p))
	}
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
