package aggregate

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/policy"
)

// pace runs a stream job's synchronization policy: it hears of every worker's steps, and says who may begin the next. The lane that
// is the last to end a worker's step asks the policy; nothing waits for it.
type pace struct {
	rates   atomic.Pointer[policy.Policy] // whose Rate holds; any goroutine may call it
	lanes   int
	release func(rank int, answer chunk.TensorRecord) // tells every lane

	mu      sync.Mutex
	spec    policy.Spec // that rates is of
	runner  *policy.Runner
	workers []pacedWorker
	acts    []policy.Act
}

// pacedWorker is a worker's step.
type pacedWorker struct {
	ended   int    // lanes that have
	waits   bool   // all have, and it was not answered
	fresh   bool   // what its pushpulls get is as new as its next step needs
	version uint64 // updates when it got its parameters
}

// Pace is how far a worker is.
type Pace struct {
	Step  uint64 // it computes, or waits to compute
	Waits bool   // its step is done, and the policy holds it
	policy.Stats
}

func newPace(spec policy.Spec, workers, lanes int, release func(int, chunk.TensorRecord)) (*pace, error) {
	if err := checkStream(spec); err != nil {
		return nil, err
	}
	r, err := policy.NewRunner(spec, workers)
	if err != nil {
		return nil, err
	}
	p := &pace{lanes: lanes, release: release, runner: r, workers: make([]pacedWorker, workers)}
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

func checkStream(spec policy.Spec) error {
	if !spec.Stream() {
		return fmt.Errorf("policy %v applies sets of gradients: mode %v needs asp, ssp or lagtuner", spec, Stream)
	}
	return nil
}

// takeRate lets the learning rate follow the policy that decides now.
func (p *pace) takeRate() {
	p.spec = p.runner.Spec()
	now := policy.New(p.spec, len(p.workers), 0)
	p.rates.Store(&now)
}

// rate is the policy's factor of the learning rate for a gradient of this staleness.
func (p *pace) rate(tau uint64) float64 { return (*p.rates.Load()).Rate(tau) }

func (p *pace) tell(e policy.Event) (err error) {
	p.acts, err = p.runner.On(e, p.acts[:0])
	if p.runner.Spec() != p.spec {
		p.takeRate()
	}
	return err
}

// change lets another policy decide, from a step on that no worker has begun.
func (p *pace) change(spec policy.Spec, now int64) (was policy.Spec, err error) {
	if err := checkStream(spec); err != nil {
		return was, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	was = p.spec
	if p.acts, err = p.runner.Change(spec, now, p.acts[:0]); err != nil {
		return was, err
	}
	if p.runner.Spec() != p.spec {
		p.takeRate()
	}
	for rank := range p.workers {
		p.workers[rank].fresh = false // by what the old policy asks
	}
	p.answer()
	return was, nil
}

// begin takes note that a worker begins a step. Its pushpulls will do for the step after if it is allowed that one already: then
// the updates that this one must see are applied in every lane.
func (p *pace) begin(rank int) {
	p.workers[rank].fresh = p.runner.Allowed(rank) > p.runner.Clock(rank)
}

// end takes note that a lane has applied all of a worker's step.
func (p *pace) end(rank int, now int64) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	w := &p.workers[rank]
	if w.ended++; w.ended < p.lanes {
		return nil
	}
	w.ended, w.waits = 0, true
	tau := p.runner.Updates() - w.version
	if err := p.tell(policy.Event{Kind: policy.Push, W: rank, Step: p.runner.Clock(rank), At: now, Tau: tau}); err != nil {
		return err
	}
	w.version = p.runner.Updates()
	p.answer()
	return nil
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

// answer lets those go on who wait and are not held.
func (p *pace) answer() {
	for rank := range p.workers {
		w := &p.workers[rank]
		if !w.waits || p.runner.Held(rank) {
			continue
		}
		w.waits = false
		answer := chunk.TensorRecord{Step: uint32(p.runner.Clock(rank))}
		if !w.fresh {
			answer.Flags, w.version = chunk.RecordPull, p.runner.Updates()
		}
		p.begin(rank)
		p.release(rank, answer)
	}
}

func (p *pace) look(rank int) Pace {
	p.mu.Lock()
	defer p.mu.Unlock()
	return Pace{Step: p.runner.Clock(rank), Waits: p.workers[rank].waits, Stats: p.runner.Stats(rank)}
}
