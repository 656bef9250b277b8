package pace

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/rackweave/rackweave/aggregate/reduce"
	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/policy"
)

// Gate runs the synchronization policy of a job in mode stream. It receives every worker's steps, and releases workers to their
// next. A policy that applies gradients alone receives a step when the last lane has applied it. A policy that applies sets
// receives it when the worker announces it. Any goroutine may use a gate, and none waits in it.
type Gate struct {
	spec atomic.Pointer[policy.Spec] // of the policy that decides now; any goroutine may read it
	log  func(policy.Act)            // receives every update that the policy decides, in order; may be nil
	sets bool                        // the job has accumulators, which policies of sets need

	mu      sync.Mutex
	since   uint64 // the first step that the policy decides
	runner  *policy.Runner
	workers []worker
	queue   sets
	begun   bool // a worker has announced a step
	acts    []policy.Act
}

// worker is the state of a worker's step.
type worker struct {
	standing  reduce.Standing // of the gradients of its step, set when the step began
	announced bool
	step      uint64 // the step that it announced last
	ended     int    // number of lanes that have ended the step
	waits     bool   // all lanes have ended the step, and it was not answered
	fresh     bool   // results of its pushpulls are new enough for its next step
	pull      bool   // the policy demands a pull
	after     uint64 // number of updates of sets for which it waits
	version   uint64 // number of updates when it got its parameters
	lost      bool
}

// Worker is the progress of a worker.
type Worker struct {
	Step  uint64 // the step that it computes, or waits to compute
	Waits bool   // its step is done, and the policy holds it
	For   []int  // while it waits: the workers whose steps it waits for
	Since int64  // while it waits: ns of the engine's clock
	Lost  bool   // the job goes on without it
	policy.Stats
}

// New makes the gate of a job. It calls later to run a function for the job's shard in every lane, in the same order on each. If
// log is not nil, it receives every update that the policy decides.
func New(spec policy.Spec, workers, lanes int, later func(func(Shard)), log func(policy.Act)) (*Gate, error) {
	r, err := policy.NewRunner(spec, workers)
	if err != nil {
		return nil, err
	}
	p := &Gate{
		sets: !spec.Stream(), runner: r, log: log, workers: make([]worker, workers), queue: sets{lanes: lanes, later: later},
	}
	now := r.Spec()
	p.spec.Store(&now)
	for rank := range p.workers {
		if err := p.pass(policy.Event{Kind: policy.Join, W: rank}); err != nil {
			return nil, err
		}
	}
	for rank := range p.workers {
		p.begin(rank)
	}
	return p, nil
}

// Standing returns the standing of the gradients of a step that begins now.
func (p *Gate) Standing() reduce.Standing {
	if p.runner.Stream() {
		return reduce.Alone
	}
	return reduce.Undecided
}

// Rate returns the policy's factor of the learning rate for a gradient of this staleness.
func (p *Gate) Rate(tau uint64) float64 { return p.spec.Load().Rate(len(p.workers), tau) }

// pass passes an event to the policy, carries out what follows from it, and answers the workers that it releases.
func (p *Gate) pass(e policy.Event) (err error) {
	stream := p.runner.Stream()
	if p.acts, err = p.runner.On(e, p.acts[:0]); err != nil {
		return err
	}
	p.carryOut(stream)
	p.answer()
	return nil
}

// carryOut carries out acts. stream tells whether the first of them come from a policy that applies gradients alone.
func (p *Gate) carryOut(stream bool) {
	for i := range p.acts {
		switch a := &p.acts[i]; a.Kind {
		case policy.Admit:
			p.admit(a.W, a.Step, a.Rate)
		case policy.Apply:
			if p.log != nil {
				p.log(*a)
			}
			if !stream {
				for _, part := range a.Parts[len(p.queue.undecided()):] {
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
	if p.runner.Spec() != *p.spec.Load() {
		now := p.runner.Spec()
		p.spec.Store(&now)
	}
}

func (p *Gate) admit(rank int, step uint64, weight float64) {
	w := &p.workers[rank]
	p.queue.admit(rank, step, weight, w.waits && w.step == step)
}

// Change installs another policy from a step on that no worker has begun.
func (p *Gate) Change(spec policy.Spec, now int64) (was policy.Spec, err error) {
	if !spec.Stream() && !p.sets {
		return was, fmt.Errorf("policy %v applies sets of gradients, for which the job has no memory: "+
			"begin it with such a policy, for instance bsp", spec)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	was = *p.spec.Load()
	stream := p.runner.Stream()
	if p.acts, err = p.runner.Change(spec, now, p.acts[:0]); err != nil {
		return was, err
	}
	p.carryOut(stream)
	for rank := range p.workers {
		p.workers[rank].fresh = false // by the old policy's rule
	}
	p.answer()
	return was, nil
}

// begin starts a worker's step. If the policy already allows the next one, pushpull results are new enough for it: every lane has
// applied the updates that it must see.
func (p *Gate) begin(rank int) {
	w := &p.workers[rank]
	w.fresh, w.standing = p.runner.Allowed(rank) > p.runner.Clock(rank), p.Standing()
}

// Announce records the step that a worker is about to push. A policy that applies sets receives it as the worker's push.
func (p *Gate) Announce(rank int, record *chunk.TensorRecord, now int64) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	w := &p.workers[rank]
	clock := p.runner.Clock(rank)
	step := nearest(record.Step, clock)
	switch {
	case w.lost:
		return nil // the lane has not received the release yet
	case w.announced || w.waits:
		return fmt.Errorf("%w: worker %d announced step %d before it ended step %d", policy.ErrEvent, rank, step, w.step)
	case w.standing == reduce.Alone && step != clock:
		return fmt.Errorf("%w: worker %d announced step %d: its next is %d", policy.ErrEvent, rank, step, clock)
	}
	w.announced, w.step, p.begun = true, step, true
	switch {
	case w.standing == reduce.Alone:
		return nil
	case step < p.since: // it was cancelled, and the policy has changed since
		p.queue.leaveOut(rank)
		return nil
	}
	return p.pass(policy.Event{Kind: policy.Push, W: rank, Step: step, At: now, Tau: p.made() - w.version})
}

// nearest returns the step nearest clock that agrees with stated modulo 2^32.
func nearest(stated uint32, clock uint64) uint64 {
	ahead := int64(int32(stated - uint32(clock)))
	if ahead < 0 && uint64(-ahead) > clock {
		return uint64(stated)
	}
	return clock + uint64(ahead)
}

// made returns the number of decided updates that lanes have made.
func (p *Gate) made() uint64 { return p.runner.Updates() - (p.queue.decided - p.queue.made) }

// End records that a lane has applied all of a worker's step, or has added it to a set.
func (p *Gate) End(rank int, now int64) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	w := &p.workers[rank]
	if w.ended++; w.ended < p.queue.lanes || w.lost {
		return nil
	}
	if !w.announced {
		return fmt.Errorf("%w: worker %d ended step %d, which it did not announce", policy.ErrEvent, rank, p.runner.Clock(rank))
	}
	w.announced, w.ended, w.waits = false, 0, true
	if w.standing == reduce.Alone {
		tau := p.runner.Updates() - w.version
		w.version = p.runner.Updates() + 1 // with its own
		return p.pass(policy.Event{Kind: policy.Push, W: rank, Step: p.runner.Clock(rank), At: now, Tau: tau})
	}
	p.queue.ended(rank, w.step)
	p.answer()
	return nil
}

// Updated records that a lane has made a set's update. The last lane releases the workers that wait for it.
func (p *Gate) Updated() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.queue.updated() {
		p.answer()
	}
}

// Finish records that a worker ends no further steps.
func (p *Gate) Finish(rank int, now int64) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.runner.Live(rank) {
		return nil
	}
	p.workers[rank].waits = false
	return p.pass(policy.Event{Kind: policy.Finish, W: rank, At: now})
}

// Lose takes out a lost worker if the policy can do without it. It reports whether the policy can, and whether this is the worker's
// first loss. It drops the gradients of a step that the worker has not ended, and the update of a set that has some of them.
func (p *Gate) Lose(rank int, now int64) (spared, first bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	w := &p.workers[rank]
	if w.lost {
		return true, false
	}
	if !p.begun || !p.spares() {
		return false, false // others may wait for its registration or its gradients
	}
	w.lost, w.waits = true, false
	p.queue.later(func(s Shard) { s.Lose(rank) })
	if p.runner.Live(rank) {
		what := policy.Leave
		if slices.ContainsFunc(p.queue.undecided(), func(a addend) bool { return a.rank == rank }) {
			what = policy.Finish // the policy has counted the worker's step in the set
		}
		if err := p.pass(policy.Event{Kind: what, W: rank, At: now}); err != nil {
			panic(fmt.Sprintf("pace: a worker that takes part cannot leave: %v", err))
		}
	}
	for _, number := range p.queue.lose(rank) {
		if p.log != nil {
			p.log(policy.Act{Kind: policy.Cancel, W: rank, Step: number})
		}
	}
	return true, true
}

// spares reports whether another worker may be lost, both by the current policy and by the next one of a change under way.
func (p *Gate) spares() bool {
	lost := 0
	for i := range p.workers {
		if p.workers[i].lost {
			lost++
		}
	}
	most := p.spec.Load().Spares(len(p.workers))
	if next, _, ok := p.runner.Next(); ok {
		most = min(most, next.Spares(len(p.workers)))
	}
	return lost < most
}

// Loss passes the validation loss that a worker reports to the policy. A negative rank stands for an observer, for whom any worker
// does that takes part. If none does, Loss does nothing.
func (p *Gate) Loss(rank int, value float64, now int64) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for r := 0; rank < 0; r++ {
		switch {
		case r == len(p.workers):
			return nil
		case p.runner.Live(r):
			rank = r
		}
	}
	return p.pass(policy.Event{Kind: policy.Loss, W: rank, At: now, Value: value})
}

func (p *Gate) answer() {
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
		p.queue.later(func(s Shard) { s.Release(rank, answer, next) })
	}
}

// Look returns the progress of a worker.
func (p *Gate) Look(rank int) Worker {
	p.mu.Lock()
	defer p.mu.Unlock()
	w := &p.workers[rank]
	waits := w.waits || w.announced && p.runner.Held(rank)
	at := Worker{Step: p.runner.Clock(rank), Waits: waits, Stats: p.runner.Stats(rank), Lost: w.lost}
	if at.Waits && p.runner.Held(rank) {
		at.For, at.Since = p.runner.Awaited(), p.runner.HeldSince(rank)
	}
	return at
}

// Spec returns the policy that decides now.
func (p *Gate) Spec() policy.Spec { return *p.spec.Load() }

// Next returns the policy of a change under way and the first step that it decides. ok is false if no change is under way.
func (p *Gate) Next() (spec policy.Spec, at uint64, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.runner.Next()
}
