package aggregate

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/rackweave/rackweave/aggregate/reduce"
	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/policy"
)

// pace runs a stream job's synchronization policy: it hears of every worker's steps, and says who may begin the next. Policies that
// apply gradients alone hear of a step when the last lane has applied it; those that apply sets (sets.go), when it is announced.
// Nothing waits for the policy.
type pace struct {
	rates atomic.Pointer[policy.Policy] // whose Rate holds; any goroutine may call it
	log   func(policy.Act)              // nil: nobody asks
	sets  bool                          // the job has accumulators, which policies of sets need

	mu      sync.Mutex
	spec    policy.Spec // that rates is of
	since   uint64      // the first step that it decides about
	runner  *policy.Runner
	workers []pacedWorker
	queue   sets
	acts    []policy.Act
}

// pacedWorker is a worker's step.
type pacedWorker struct {
	standing  reduce.Standing // of the gradients of its step, when it began
	announced bool
	step      uint64 // that it announced last
	ended     int    // lanes that have
	waits     bool   // all have, and it was not answered
	fresh     bool   // what its pushpulls get is as new as its next step needs
	pull      bool   // the policy says so
	after     uint64 // sets whose updates it waits for
	version   uint64 // updates when it got its parameters
}

// Pace is how far a worker is.
type Pace struct {
	Step  uint64 // it computes, or waits to compute
	Waits bool   // its step is done, and the policy holds it
	For   []int  // while it waits: the workers whose steps it waits for
	Since int64  // while it waits: ns of the engine's clock
	policy.Stats
}

func newPace(spec policy.Spec, workers, lanes int, later func(func(paced))) (*pace, error) {
	r, err := policy.NewRunner(spec, workers)
	if err != nil {
		return nil, err
	}
	p := &pace{
		sets: !spec.Stream(), runner: r, workers: make([]pacedWorker, workers), queue: sets{lanes: lanes, later: later},
	}
	p.takeRate()
	for rank := range p.workers {
		if err := p.tell(policy.Event{Kind: policy.Join, W: rank}); err != nil {
			return nil, err
		}
	}
	for rank := range p.workers {
		p.begin(rank)
	}
	return p, nil
}

// standing is what becomes of the gradients of a step that begins now.
func (p *pace) standing() reduce.Standing {
	if p == nil || p.runner.Stream() {
		return reduce.Alone
	}
	return reduce.Undecided
}

// takeRate lets the learning rate follow the policy that decides now.
func (p *pace) takeRate() {
	p.spec = p.runner.Spec()
	now := policy.New(p.spec, len(p.workers), 0)
	p.rates.Store(&now)
}

// rate is the policy's factor of the learning rate for a gradient of this staleness.
func (p *pace) rate(tau uint64) float64 { return (*p.rates.Load()).Rate(tau) }

// tell has the policy decide, and carries out what it says.
func (p *pace) tell(e policy.Event) (err error) {
	stream := p.runner.Stream()
	p.acts, err = p.runner.On(e, p.acts[:0])
	p.carryOut(stream)
	return err
}

// carryOut carries out acts, the first of which are of a policy that applies gradients alone, or of one that applies sets.
func (p *pace) carryOut(stream bool) {
	for i := range p.acts {
		switch a := &p.acts[i]; a.Kind {
		case policy.Admit:
			p.admit(a.W, a.Step, a.Rate)
		case policy.Apply:
			if p.log != nil {
				p.log(*a)
			}
			if !stream {
				for _, part := range a.Parts[p.queue.admitted():] {
					p.admit(part.W, part.Step, part.Weight*float64(len(a.Parts)))
				}
				p.queue.decide(a)
			}
		case policy.Drop:
			p.queue.leaveOut(a.W)
		case policy.Release:
			w := &p.workers[a.W]
			w.after, w.pull = p.queue.decided, w.pull || a.Pull
		case policy.Switch:
			stream, p.since = a.To.Stream(), a.Step
		}
	}
	if p.runner.Spec() != p.spec {
		p.takeRate()
	}
}

func (p *pace) admit(rank int, step uint64, weight float64) {
	w := &p.workers[rank]
	p.queue.admit(rank, step, weight, w.waits && w.step == step)
}

// change lets another policy decide, from a step on that no worker has begun.
func (p *pace) change(spec policy.Spec, now int64) (was policy.Spec, err error) {
	if !spec.Stream() && !p.sets {
		return was, fmt.Errorf("policy %v applies sets of gradients, for which the job has no memory: "+
			"begin it with such a policy, for instance bsp", spec)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	was = p.spec
	stream := p.runner.Stream()
	if p.acts, err = p.runner.Change(spec, now, p.acts[:0]); err != nil {
		return was, err
	}
	p.carryOut(stream)
	for rank := range p.workers {
		p.workers[rank].fresh = false // by what the old policy asks
	}
	p.answer()
	return was, nil
}

// begin takes note that a worker begins a step. Its pushpulls will do for the step after if it is allowed that one already: then
// the updates that this one must see are applied in every lane.
func (p *pace) begin(rank int) {
	w := &p.workers[rank]
	w.fresh, w.standing = p.runner.Allowed(rank) > p.runner.Clock(rank), p.standing()
}

// announce takes note of the step that a worker says it pushes. It is the worker's push to a policy that applies sets.
func (p *pace) announce(rank int, record *chunk.TensorRecord, now int64) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	w := &p.workers[rank]
	clock := p.runner.Clock(rank)
	step := nearest(record.Step, clock)
	switch {
	case w.announced || w.waits:
		return fmt.Errorf("%w: worker %d announced step %d before it ended step %d", policy.ErrEvent, rank, step, w.step)
	case w.standing == reduce.Alone && step != clock:
		return fmt.Errorf("%w: worker %d announced step %d: its next is %d", policy.ErrEvent, rank, step, clock)
	}
	w.announced, w.step = true, step
	switch {
	case w.standing == reduce.Alone:
		return nil
	case step < p.since: // it was cancelled, and the policy has changed since
		p.queue.leaveOut(rank)
		return nil
	}
	if err := p.tell(policy.Event{Kind: policy.Push, W: rank, Step: step, At: now, Tau: p.made() - w.version}); err != nil {
		return err
	}
	p.answer()
	return nil
}

// nearest is the step near clock that a record means, which counts modulo 2^32.
func nearest(stated uint32, clock uint64) uint64 {
	ahead := int64(int32(stated - uint32(clock)))
	if ahead < 0 && uint64(-ahead) > clock {
		return uint64(stated)
	}
	return clock + uint64(ahead)
}

// made is how many updates were made, of those that the policy has decided.
func (p *pace) made() uint64 { return p.runner.Updates() - (p.queue.decided - p.queue.made) }

// end takes note that a lane has applied all of a worker's step, or taken it into a set.
func (p *pace) end(rank int, now int64) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	w := &p.workers[rank]
	if w.ended++; w.ended < p.queue.lanes {
		return nil
	}
	if !w.announced {
		return fmt.Errorf("%w: worker %d ended step %d, which it did not announce", policy.ErrEvent, rank, p.runner.Clock(rank))
	}
	w.announced, w.ended, w.waits = false, 0, true
	if w.standing == reduce.Alone {
		tau := p.runner.Updates() - w.version
		if err := p.tell(policy.Event{Kind: policy.Push, W: rank, Step: p.runner.Clock(rank), At: now, Tau: tau}); err != nil {
			return err
		}
		w.version = p.runner.Updates()
	} else {
		p.queue.ended(rank, w.step)
	}
	p.answer()
	return nil
}

// updated takes note that a lane has made a set's update. The last one lets those go on who wait for it.
func (p *pace) updated() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.queue.updated() {
		p.answer()
	}
}

// finish takes note that a worker ends no more steps.
func (p *pace) finish(rank int, now int64) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.runner.Live(rank) {
		return nil
	}
	p.workers[rank].waits = false
	if err := p.tell(policy.Event{Kind: policy.Finish, W: rank, At: now}); err != nil {
		return err
	}
	p.answer()
	return nil
}

// loss tells the policy the validation loss that a worker reports.
func (p *pace) loss(rank int, value float64, now int64) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.tell(policy.Event{Kind: policy.Loss, W: rank, At: now, Value: value}); err != nil {
		return err
	}
	p.answer()
	return nil
}

// answer lets those go on who wait and are not held.
func (p *pace) answer() {
	for rank := range p.workers {
		w := &p.workers[rank]
		if !w.waits || p.runner.Held(rank) || p.queue.made < w.after {
			continue
		}
		answer := chunk.TensorRecord{Step: uint32(p.runner.Clock(rank))}
		if p.runner.Stream() && !w.fresh || !p.runner.Stream() && w.pull {
			answer.Flags, w.version = chunk.RecordPull, p.made()
		}
		w.waits, w.pull = false, false
		p.begin(rank)
		next := w.standing
		p.queue.later(func(s paced) { s.letGo(rank, answer, next) })
	}
}

func (p *pace) look(rank int) Pace {
	p.mu.Lock()
	defer p.mu.Unlock()
	w := &p.workers[rank]
	at := Pace{Step: p.runner.Clock(rank), Waits: w.waits || w.announced && p.runner.Held(rank), Stats: p.runner.Stats(rank)}
	if at.Waits && p.runner.Held(rank) {
		at.For, at.Since = p.runner.Awaited(nil), p.runner.HeldSince(rank)
	}
	return at
}
