package learn

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"

	"github.com/rackweave/rackweave/hierarchy/outer"
	"github.com/rackweave/rackweave/policy"
	"github.com/rackweave/rackweave/pqueue"
)

// Cluster is workers with the time that a step takes each, in units of the fastest's.
type Cluster struct {
	Steps []float64
	// Straggle is the share of steps that take straggleFactor times as long, whoever's they are.
	Straggle float64
}

// String returns the workers' step times, and the share of steps that straggle: "1,1,1,1~0.05".
func (c Cluster) String() string {
	text := strings.ReplaceAll(strings.Trim(fmt.Sprint(c.Steps), "[]"), " ", ",")
	if c.Straggle > 0 {
		text += fmt.Sprintf("~%g", c.Straggle)
	}
	return text
}

const (
	// unit is the time of a step of length 1, in virtual nanoseconds.
	unit = 1_000_000
	// jitter is the deviation of the logarithm of step times.
	jitter = 0.1
	// straggleFactor is the time of a straggling step over an ordinary one's.
	straggleFactor = 5
	// wire is the time from a gradient to the next step's parameters, beside waiting: latency, and the bytes at the link's rate.
	wire = unit / 50
)

// stepTime draws how long a worker's next step takes.
func (c Cluster) stepTime(w int, r *rand.Rand) int64 {
	t := c.Steps[w] * math.Exp(jitter*r.NormFloat64())
	if r.Float64() < c.Straggle {
		t *= straggleFactor
	}
	return int64(t*unit) + wire
}

// Setting is a training to run: the problem, the cluster, the policy.
type Setting struct {
	Cluster  Cluster
	Policy   policy.Spec
	LR       float64
	Momentum float64
	Batch    int     // samples of all workers together
	Epochs   int     // samples to train with, in epochs of all workers together
	DecayAt  int     // the epoch from which the learning rate is a tenth. If 0, never
	Target   float64 // loss at which it ends. If 0, none
	Fold     int
	Seed     uint64
	// Blind computes nothing, for as many steps of the fastest worker: only the policy's timing is measured. If 0, it computes.
	Blind float64
	// Steps of the fastest worker that a real training takes.
	Steps int
	// Taken has the times of steps that a real training took, by worker. If nil, they are drawn.
	Taken [][]int64
	// Core and Outer are set if workers stand for racks: the time of the whole model across the core, in steps of the fastest, and the
	// outer optimizer.
	Core  float64
	Outer outer.Optimizer
	// Of a study of codecs, which has no clusters and no policies: its training, and the way to send gradients. Otherwise nil.
	coded *coded
	scheme
}

// way returns the name of the policy, of how racks meet, or of the way to send gradients.
func (s *Setting) way() string {
	switch {
	case s.coded != nil:
		return s.name
	case s.Outer.Every > 0:
		return s.Outer.String()
	}
	return s.Policy.String()
}

// Outcome is the result of a training.
type Outcome struct {
	ToTarget float64 // when the loss reached the target, in steps of the fastest worker. If 0, it did not
	Time     float64 // of the whole training
	Accuracy float64 // at the end
	Loss     float64
	Pushes   uint64
	Updates  uint64
	MaxLead  uint64    // by which a worker began a step ahead of another
	Crossed  float64   // models that crossed the core, from each rack
	Switched float64   // epoch at which Strategy-Switch switched. If 0, it did not
	Losses   []float64 // on the way to the target
	// Of a training with codecs: bits for an element of a gradient, and of an answer, the bytes to the target, and the way. Its times
	// are in steps.
	Up, Down float64
	Bytes    float64
	Curve    []Point
}

// arrival is a push that will be there at a time.
type arrival struct {
	at    int64
	w     int
	round int // of the worker's steps: one that was cancelled is of an earlier round
}

func (a arrival) before(b arrival) bool { return a.at < b.at || a.at == b.at && a.w < b.w }

// trainee is a worker.
type trainee struct {
	chance  *rand.Rand // its step times: the same under every policy
	had     network    // the parameters it fetched, or of a rack its own
	at      int64      // the end of a rack's last step
	version uint64     // updates that they include
	pull    bool       // fetch parameters before the next step
	busy    bool
	begun   int // steps
	round   int
	batch   []*image
}

type key struct {
	w    int
	step uint64
}

// training is a run.
type training struct {
	Setting
	r       *policy.Runner
	train   []image
	test    []image
	now     int64
	agenda  *pqueue.Queue[arrival]
	workers []trainee
	params  *network
	speed   network // momentum
	pushed  map[key]*network
	chance  *rand.Rand // the order of images
	order   []int
	next    int
	samples int
	acts    []policy.Act
	out     Outcome
}

// Run trains.
func Run(ctx context.Context, s Setting) (Outcome, error) {
	if s.coded != nil {
		return s.coded.train(ctx, &s)
	}
	n := len(s.Cluster.Steps)
	if n == 0 || s.Batch < n || s.Epochs < 1 {
		return Outcome{}, fmt.Errorf("learning needs workers, a batch of at least a sample each, and an epoch: it has %d, %d and %d", n,
			s.Batch, s.Epochs)
	}
	t := &training{
		Setting: s, agenda: pqueue.New(arrival.before), workers: make([]trainee, n), pushed: make(map[key]*network),
		chance: rand.New(rand.NewPCG(s.Seed, 2)), params: newNetwork(rand.New(rand.NewPCG(s.Seed, 1))),
	}
	t.train, t.test = split(s.Fold)
	for w := range t.workers {
		t.workers[w] = trainee{chance: rand.New(rand.NewPCG(s.Seed, uint64(w)+3)), had: *t.params, pull: true}
	}
	if s.Core > 0 {
		return t.runRacks(ctx)
	}
	var err error
	if t.r, err = policy.NewRunner(s.Policy, n); err != nil {
		return Outcome{}, err
	}
	for w := range t.workers {
		if err := t.event(policy.Event{Kind: policy.Join, W: w}); err != nil {
			return Outcome{}, err
		}
	}
	t.begin()
	if err := t.loop(ctx); err != nil {
		return Outcome{}, err
	}
	t.out.Updates = t.r.Updates()
	return t.finish(), nil
}

// loop handles pushes until enough samples were computed.
func (t *training) loop(ctx context.Context) error {
	each := t.Batch / len(t.workers)
	enough := t.Epochs * len(t.train)
	epoch, measured := 1, 0
	for t.Blind == 0 && t.samples < enough || t.time() < t.Blind {
		if t.out.Pushes%1024 == 0 && ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if t.agenda.Len() == 0 {
			return fmt.Errorf("%v on %v: all workers are held at step %d", t.Policy, t.Cluster, t.r.Clock(0))
		}
		a := t.agenda.Pop()
		if a.round != t.workers[a.w].round {
			continue
		}
		t.now = a.at
		t.samples += each
		if err := t.push(a.w); err != nil {
			return err
		}
		if t.Blind == 0 && t.samples >= measured+t.Batch {
			measured = t.samples
			if t.look() {
				return nil
			}
		}
		if t.samples >= epoch*len(t.train) {
			if err := t.epoch(); err != nil {
				return err
			}
			epoch++
		}
	}
	return nil
}

// push computes a gradient and gives it to the policy.
func (t *training) push(w int) error {
	worker := &t.workers[w]
	worker.busy, worker.pull = false, true
	step := t.r.Clock(w)
	if t.Blind == 0 {
		g := new(network)
		worker.had.gradient(g, worker.batch)
		t.pushed[key{w, step}] = g
	}
	tau := t.r.Updates() - worker.version
	t.out.Pushes++
	if err := t.event(policy.Event{Kind: policy.Push, W: w, Step: step, At: t.now, Tau: tau}); err != nil {
		return err
	}
	t.begin()
	return nil
}

// event tells the policy, and does what it says.
func (t *training) event(e policy.Event) (err error) {
	if t.acts, err = t.r.On(e, t.acts[:0]); err != nil {
		return err
	}
	for _, a := range t.acts {
		switch a.Kind {
		case policy.Apply:
			t.apply(a)
		case policy.Drop:
			delete(t.pushed, key{a.W, a.Step})
		case policy.Cancel:
			t.workers[a.W].round++
			t.workers[a.W].busy = false
		case policy.Release:
			t.workers[a.W].pull = a.Pull
		case policy.Switch:
			t.out.Switched = float64(t.samples) / float64(len(t.train))
		}
	}
	return nil
}

// begin starts the step of every worker that may and has not.
func (t *training) begin() {
	for w := range t.workers {
		worker := &t.workers[w]
		if worker.busy || t.r.Held(w) {
			continue
		}
		worker.busy = true
		if worker.pull {
			worker.had, worker.version = *t.params, t.r.Updates()
		}
		for o := range t.workers {
			if c, other := t.r.Clock(w), t.r.Clock(o); c > other {
				t.out.MaxLead = max(t.out.MaxLead, c-other)
			}
		}
		if t.Blind == 0 {
			worker.batch = t.draw(worker.batch[:0])
		}
		t.agenda.Push(arrival{t.now + t.stepTime(w), w, worker.round})
	}
}

// stepTime returns the time of a worker's next step. After the steps of a real training, it is that of the last one.
func (t *training) stepTime(w int) int64 {
	worker := &t.workers[w]
	if t.Taken == nil {
		return t.Cluster.stepTime(w, worker.chance)
	}
	steps := t.Taken[w]
	worker.begun++
	return steps[min(worker.begun, len(steps))-1]
}

// draw takes the next images of the epoch, which all workers share: who is faster takes more.
func (t *training) draw(to []*image) []*image {
	for range t.Batch / len(t.workers) {
		if t.next == len(t.order) {
			t.order, t.next = t.chance.Perm(len(t.train)), 0
		}
		to = append(to, &t.train[t.order[t.next]])
		t.next++
	}
	return to
}

// apply makes an update: plain SGD, or with momentum as torch.optim.SGD's.
func (t *training) apply(a policy.Act) {
	if t.Blind > 0 {
		return
	}
	var sum network
	for _, p := range a.Parts {
		g := t.pushed[key{p.W, p.Step}]
		weight := float32(p.Weight)
		for i := range sum {
			sum[i] += weight * g[i]
		}
		delete(t.pushed, key{p.W, p.Step})
	}
	rate := t.LR
	if t.DecayAt > 0 && t.samples >= t.DecayAt*len(t.train) {
		rate /= 10
	}
	lr, momentum := float32(rate*a.Rate), float32(t.Momentum)
	for i := range sum {
		t.speed[i] = momentum*t.speed[i] + sum[i]
		t.params[i] -= lr * t.speed[i]
	}
}

// look measures the loss, and reports whether there is a target and it is reached.
func (t *training) look() bool {
	if t.Target == 0 {
		return false
	}
	loss, _ := t.params.test(t.test)
	t.out.Losses = append(t.out.Losses, loss)
	if loss > t.Target {
		return false
	}
	t.out.ToTarget = t.time()
	return true
}

func (t *training) time() float64 { return float64(t.now) / unit }

// epoch reports the loss to a policy that asks for it.
func (t *training) epoch() error {
	if t.Blind > 0 || t.Policy.Name() != "strategy-switch" {
		return nil
	}
	loss, _ := t.params.test(t.test)
	return t.event(policy.Event{Kind: policy.Loss, At: t.now, Value: loss})
}

func (t *training) finish() Outcome {
	t.out.Time = t.time()
	if t.Blind == 0 {
		t.out.Loss, t.out.Accuracy = t.params.test(t.test)
	}
	return t.out
}
