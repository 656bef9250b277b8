// Package simulate trains in virtual time: a discrete-event simulation draws how long each step takes, gives the pushes to a
// policy of package policy in their order, and computes every gradient for real, on the parameters that the worker had fetched.
// The same setting gives the same training.
package simulate

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/rackweave/rackweave/bench/study"
	"github.com/rackweave/rackweave/bench/study/task"
	"github.com/rackweave/rackweave/hierarchy/outer"
	"github.com/rackweave/rackweave/policy"
	"github.com/rackweave/rackweave/pqueue"
)

// Cluster is workers with the time that a step takes each, in units of the fastest's.
type Cluster struct {
	Steps []float64
	// Straggle is the share of all steps that take straggleFactor times as long.
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
	// Unit is the time of a step of length 1, in virtual nanoseconds.
	Unit = 1_000_000
	// Jitter is the deviation of the logarithm of step times.
	Jitter = 0.1
	// Wire is the usual time from a gradient to the next step's parameters, beside waiting: latency, and the bytes at the link's
	// rate.
	Wire = Unit / 50
	// straggleFactor is the time of a straggling step over an ordinary one's.
	straggleFactor = 5
)

// StepTime draws how long a worker's next step takes, without what it sends.
func (c Cluster) StepTime(w int, r *rand.Rand) int64 {
	t := c.Steps[w] * math.Exp(Jitter*r.NormFloat64())
	if r.Float64() < c.Straggle {
		t *= straggleFactor
	}
	return int64(t * Unit)
}

// Clock returns the source of a worker's step times: the same in each training of a seed.
func Clock(seed uint64, w int) *rand.Rand { return rand.New(rand.NewPCG(seed, uint64(w)+3)) }

// Rows deals samples to workers.
type Rows interface {
	// Next returns a worker's next batch, of a number of samples. An asynchronous worker without samples waits for others, and one in
	// step takes part with nothing.
	Next(worker int) ([]int, error)
	// Done reports that the gradient of a worker's batch was given to the policy, and the time that it took.
	Done(worker int, took float64) error
}

// shared deals one random order after another to all workers: a faster one takes more.
type shared struct {
	task.Shuffled
	chance *rand.Rand
	each   int
}

func (s *shared) Next(int) ([]int, error) { return s.Draw(s.chance, s.each), nil }
func (s *shared) Done(int, float64) error { return nil }

// Setting is a training: the problem, the cluster, the policy.
type Setting struct {
	Cluster  Cluster
	Policy   policy.Spec
	Task     func(fold int) task.Task
	LR       float64
	Momentum float64
	Batch    int     // samples of all workers together
	Epochs   int     // samples to train with, in epochs of all workers together
	DecayAt  int     // the epoch from which the learning rate is a tenth. If 0, never
	Target   float64 // loss at which it ends. If 0, none
	Wire     int64   // time from a gradient to the next parameters
	Fold     int
	Seed     uint64
	// Rows deals the samples. If nil, workers share one random order after another.
	Rows Rows
	// Over reports the end. If nil, Epochs does.
	Over func() bool
	// Blind computes nothing, for as many steps of the fastest worker: only the policy's timing is measured. If 0, it computes.
	Blind float64
	// Taken has the times of steps that a real training took, by worker. If nil, they are drawn.
	Taken [][]int64
	// Length draws the time of a worker's step of the usual size. If nil, [Cluster.StepTime] does.
	Length func(worker int) int64
	// Core and Outer are set if workers stand for racks: the time of the whole model across the core, in steps of the fastest, and the
	// outer optimizer.
	Core  float64
	Outer outer.Optimizer
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
	chance  *rand.Rand
	had     []float32 // the parameters it fetched, or of a rack its own
	at      int64     // the end of a rack's last step
	version uint64    // updates that the parameters include
	pull    bool      // fetch parameters before the next step
	busy    bool
	begun   int // steps
	round   int
	batch   []int
	took    int64 // of its step
}

type key struct {
	w    int
	step uint64
}

// training is a run.
type training struct {
	Setting
	task    task.Task
	images  int // of an epoch
	r       *policy.Runner
	now     int64
	agenda  *pqueue.Queue[arrival]
	workers []trainee
	params  []float32
	speed   []float32 // momentum
	sum     []float32
	pushed  map[key][]float32
	free    [][]float32 // gradients that were applied
	samples int
	acts    []policy.Act
	out     study.Outcome
}

// Run trains.
func Run(ctx context.Context, s Setting) (study.Outcome, error) {
	n := len(s.Cluster.Steps)
	if n == 0 || s.Batch < n || s.Epochs < 1 {
		return study.Outcome{}, fmt.Errorf("training needs workers, a batch of at least a sample each, and an epoch: it has %d, %d and %d",
			n, s.Batch, s.Epochs)
	}
	t := &training{
		Setting: s, task: s.Task(s.Fold), agenda: pqueue.New(arrival.before), workers: make([]trainee, n),
		pushed: make(map[key][]float32),
	}
	t.params = t.task.Fresh(rand.New(rand.NewPCG(s.Seed, 1)))
	t.speed, t.sum = make([]float32, len(t.params)), make([]float32, len(t.params))
	samples := t.task.Shards(1, false)[0]
	if t.images = len(samples); t.Rows == nil {
		t.Rows = &shared{task.Shuffled{Samples: samples}, rand.New(rand.NewPCG(s.Seed, 2)), s.Batch / n}
	}
	for w := range t.workers {
		t.workers[w] = trainee{chance: Clock(s.Seed, w), had: slices.Clone(t.params), pull: true}
	}
	if s.Core > 0 {
		return t.runRacks(ctx)
	}
	var err error
	if t.r, err = policy.NewRunner(s.Policy, n); err != nil {
		return study.Outcome{}, err
	}
	for w := range t.workers {
		if err := t.event(policy.Event{Kind: policy.Join, W: w}); err != nil {
			return study.Outcome{}, err
		}
	}
	if err = t.begin(); err == nil {
		err = t.loop(ctx)
	}
	if err != nil {
		return study.Outcome{}, err
	}
	t.out.Updates = float64(t.r.Updates())
	return t.finish(), nil
}

// over reports whether the training has ended.
func (t *training) over() bool {
	switch {
	case t.Blind > 0:
		return t.time() >= t.Blind
	case t.Over != nil:
		return t.Over()
	}
	return t.samples >= t.Epochs*t.images
}

// loop handles pushes.
func (t *training) loop(ctx context.Context) error {
	epoch, measured := 1, 0
	for pushes := 0; !t.over(); pushes++ {
		if pushes%1024 == 0 && ctx.Err() != nil {
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
		t.samples += len(t.workers[a.w].batch)
		if err := t.push(a.w); err != nil {
			return err
		}
		if t.Blind == 0 && t.samples >= measured+t.Batch {
			measured = t.samples
			if t.look() {
				return nil
			}
		}
		if t.samples >= epoch*t.images {
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
		t.pushed[key{w, step}] = t.gradient(worker)
	}
	tau := t.r.Updates() - worker.version
	t.out.Pushes++
	if err := t.event(policy.Event{Kind: policy.Push, W: w, Step: step, At: t.now, Tau: tau}); err != nil {
		return err
	}
	if err := t.Rows.Done(w, float64(worker.took)/Unit); err != nil {
		return err
	}
	return t.begin()
}

// gradient returns that of a worker's batch. Every sample has the same weight, also in a batch of another size than the others.
func (t *training) gradient(worker *trainee) (g []float32) {
	if n := len(t.free); n > 0 {
		g, t.free = t.free[n-1], t.free[:n-1]
	} else {
		g = make([]float32, len(t.params))
	}
	t.task.Gradient(worker.had, g, worker.batch)
	if weight := t.share(worker); weight != 1 {
		for i := range g {
			g[i] *= float32(weight)
		}
	}
	return g
}

// share returns the size of a worker's batch over that of an equal part.
func (t *training) share(worker *trainee) float64 {
	return float64(len(worker.batch)) / float64(t.Batch/len(t.workers))
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
			t.drop(key{a.W, a.Step})
		case policy.Cancel:
			t.workers[a.W].round++
			t.workers[a.W].busy = false
		case policy.Release:
			t.workers[a.W].pull = a.Pull
		case policy.Switch:
			t.out.Switched = float64(t.samples) / float64(t.images)
		}
	}
	return nil
}

func (t *training) drop(k key) {
	t.free = append(t.free, t.pushed[k])
	delete(t.pushed, k)
}

// begin starts the step of every worker that may and has not.
func (t *training) begin() (err error) {
	for w := range t.workers {
		worker := &t.workers[w]
		if worker.busy || t.r.Held(w) {
			continue
		}
		if t.Blind == 0 {
			if worker.batch, err = t.Rows.Next(w); err != nil {
				return err
			}
			if len(worker.batch) == 0 && t.r.Stream() {
				continue
			}
		}
		worker.busy = true
		if worker.pull {
			copy(worker.had, t.params)
			worker.version = t.r.Updates()
		}
		for o := range t.workers {
			t.out.MaxLead = max(t.out.MaxLead, float64(t.r.Clock(w))-float64(t.r.Clock(o)))
		}
		worker.took = t.stepTime(w)
		t.agenda.Push(arrival{t.now + worker.took, w, worker.round})
	}
	return nil
}

// stepTime returns the time of a worker's next step. After the steps of a real training, it is that of the last one.
func (t *training) stepTime(w int) int64 {
	worker := &t.workers[w]
	if t.Taken != nil {
		steps := t.Taken[w]
		worker.begun++
		return steps[min(worker.begun, len(steps))-1]
	}
	var took int64
	if t.Length != nil {
		took = t.Length(w)
	} else {
		took = t.Cluster.StepTime(w, worker.chance)
	}
	if t.Blind == 0 {
		took = int64(float64(took) * t.share(worker))
	}
	return took + t.Wire
}

// apply makes an update: plain SGD, or with momentum as torch.optim.SGD's.
func (t *training) apply(a policy.Act) {
	if t.Blind > 0 {
		return
	}
	clear(t.sum)
	for _, p := range a.Parts {
		k, weight := key{p.W, p.Step}, float32(p.Weight)
		for i, v := range t.pushed[k] {
			t.sum[i] += weight * v
		}
		t.drop(k)
	}
	rate := t.LR
	if t.DecayAt > 0 && t.samples >= t.DecayAt*t.images {
		rate /= 10
	}
	lr, momentum := float32(rate*a.Rate), float32(t.Momentum)
	for i, v := range t.sum {
		t.speed[i] = momentum*t.speed[i] + v
		t.params[i] -= lr * t.speed[i]
	}
}

// look measures the loss, and reports whether there is a target and it is reached.
func (t *training) look() bool {
	if t.Target == 0 {
		return false
	}
	loss, _ := t.task.Test(t.params)
	t.out.Losses = append(t.out.Losses, loss)
	if loss > t.Target {
		return false
	}
	t.out.ToTarget = t.time()
	return true
}

func (t *training) time() float64 { return float64(t.now) / Unit }

// epoch reports the loss to a policy that asks for it.
func (t *training) epoch() error {
	if t.Blind > 0 || t.Policy.Name() != "strategy-switch" {
		return nil
	}
	loss, _ := t.task.Test(t.params)
	return t.event(policy.Event{Kind: policy.Loss, At: t.now, Value: loss})
}

func (t *training) finish() study.Outcome {
	t.out.Time = t.time()
	if t.Blind == 0 {
		t.out.Loss, t.out.Accuracy = t.task.Test(t.params)
	}
	return t.out
}
