package policy

import (
	"errors"
	"fmt"
)

// ErrEvent is wrapped by the error of an impossible event.
var ErrEvent = errors.New("impossible event")

// Stats holds statistics of a worker's steps.
type Stats struct {
	Pushed  uint64
	Dropped uint64
	HeldNS  int64
	TauSum  uint64 // of the staleness, over all pushes
}

// MeanTau is the mean staleness of the pushes.
func (s *Stats) MeanTau() float64 { return float64(s.TauSum) / float64(max(s.Pushed, 1)) }

// Runner runs a job's policy. It refuses impossible events with an error that names the cause, and does nothing then.
type Runner struct {
	n      int
	spec   Spec
	policy Policy
	next   *change

	allowed []uint64 // as released, limited by a change under way
	floor   []uint64 // the lowest step that a worker may push, which is below its clock after a Cancel
	heldAt  []int64
	stats   []Stats
	now     int64
	updates uint64
	from    []Act // acts of the policy that are not recorded yet
}

type change struct {
	spec    Spec
	at      uint64
	reached []bool // workers that have reached it
	joined  []bool // workers that join with it
}

// NewRunner makes a runner without members.
func NewRunner(spec Spec, n int) (*Runner, error) {
	if n < 1 {
		return nil, fmt.Errorf("%w: %d workers: use 1 or more", ErrSpec, n)
	}
	if err := spec.Check(n); err != nil {
		return nil, err
	}
	return &Runner{
		n: n, spec: spec.from(0), policy: New(spec, n, 0), allowed: make([]uint64, n), floor: make([]uint64, n), heldAt: make([]int64, n),
		stats: make([]Stats, n),
	}, nil
}

// Spec returns the policy that decides now.
func (r *Runner) Spec() Spec { return r.spec }

// Next returns the policy of a change under way and the first step that it decides. ok is false if no change is under way.
func (r *Runner) Next() (spec Spec, at uint64, ok bool) {
	if r.next == nil {
		return Spec{}, 0, false
	}
	return r.next.spec, r.next.at, true
}

// Stream reports whether chunks are applied as they arrive. Otherwise only Apply applies them.
func (r *Runner) Stream() bool { return r.spec.Stream() }

// Updates returns the number of updates made.
func (r *Runner) Updates() uint64 { return r.updates }

// Clock returns the step that a worker computes or waits to compute.
func (r *Runner) Clock(w int) uint64 {
	if r.next != nil && r.next.joined[w] {
		return r.next.at
	}
	return r.policy.Clock(w)
}

// Allowed returns the last step that a worker may compute.
func (r *Runner) Allowed(w int) uint64 { return r.allowed[w] }

// Live reports whether a worker takes part.
func (r *Runner) Live(w int) bool {
	return r.policy.Live(w) || r.next != nil && (r.next.reached[w] || r.next.joined[w])
}

// Held reports whether a worker waits to be released.
func (r *Runner) Held(w int) bool { return r.Live(w) && r.heldAt[w] != notHeld }

// HeldSince returns the time at which a held worker began to wait.
func (r *Runner) HeldSince(w int) int64 { return r.heldAt[w] }

// Awaited returns the workers for whose step held workers wait: of the workers that compute, the ones furthest behind.
func (r *Runner) Awaited() (workers []int) {
	lowest := uint64(Unbounded)
	for w := range r.n {
		if clock := r.Clock(w); r.Live(w) && !r.Held(w) && clock <= lowest {
			if clock < lowest {
				workers, lowest = workers[:0], clock
			}
			workers = append(workers, w)
		}
	}
	return workers
}

// Stats returns the statistics of a worker's steps.
func (r *Runner) Stats(w int) Stats { return r.stats[w] }

const notHeld = -1

// On appends the acts that follow from an event.
func (r *Runner) On(e Event, to []Act) ([]Act, error) {
	if err := r.check(e); err != nil {
		return to, err
	}
	r.now = max(r.now, e.At)
	switch e.Kind {
	case Push:
		s := &r.stats[e.W]
		s.Pushed++
		s.TauSum += e.Tau
		r.floor[e.W] = Unbounded
	case Join:
		r.floor[e.W], r.heldAt[e.W], r.allowed[e.W] = Unbounded, r.now, 0
		if r.next != nil {
			r.next.joined[e.W] = true
			return r.settle(to), nil
		}
	case Leave, Finish:
		if r.next == nil {
			break
		}
		there, joined := r.next.reached[e.W], r.next.joined[e.W]
		r.next.reached[e.W], r.next.joined[e.W] = false, false
		if joined || there && e.Kind == Finish {
			return r.settle(to), nil
		}
	}
	return r.settle(r.pass(e, to)), nil
}

func (r *Runner) check(e Event) error {
	if e.Kind > Loss {
		return fmt.Errorf("%w: of kind %d", ErrEvent, e.Kind)
	}
	if e.W < 0 || e.W >= r.n {
		return fmt.Errorf("%w: worker %d of %d: use 0 to %d", ErrEvent, e.W, r.n, r.n-1)
	}
	switch live := r.Live(e.W); {
	case e.Kind == Join && live:
		return fmt.Errorf("%w: worker %d joined twice", ErrEvent, e.W)
	case e.Kind != Join && !live:
		return fmt.Errorf("%w: worker %d is not a member: it must join first", ErrEvent, e.W)
	case e.Kind != Push:
		return nil
	}
	clock := r.Clock(e.W)
	switch lowest := min(clock, r.floor[e.W]); {
	case e.Step < lowest:
		return fmt.Errorf("%w: worker %d pushed step %d again: its next is %d", ErrEvent, e.W, e.Step, clock)
	case e.Step > clock:
		return fmt.Errorf("%w: worker %d pushed step %d and skipped some: its next is %d", ErrEvent, e.W, e.Step, clock)
	case r.Held(e.W):
		return fmt.Errorf("%w: worker %d pushed step %d, which it was not released for", ErrEvent, e.W, e.Step)
	}
	return nil
}

func (r *Runner) pass(e Event, to []Act) []Act {
	r.from = r.policy.On(e, r.from[:0])
	for _, a := range r.from {
		switch a.Kind {
		case Apply:
			r.updates++
		case Drop:
			r.stats[a.W].Dropped++
		case Cancel:
			r.floor[a.W] = min(r.floor[a.W], a.Step)
		case Release:
			if r.next != nil {
				a.Step = min(a.Step, r.next.at-1)
			}
			r.allowed[a.W] = a.Step
		case Switch:
			if r.next == nil {
				r.next = newChange(r.n, a.To, a.Step)
			}
			for w := range r.n {
				r.next.reached[w] = r.policy.Live(w)
			}
			continue
		}
		to = append(to, a)
	}
	return to
}

func newChange(n int, spec Spec, at uint64) *change {
	return &change{spec: spec, at: at, reached: make([]bool, n), joined: make([]bool, n)}
}

// Change installs another policy from the first step on that no worker can have begun. The old policy decides until all workers
// have reached that step.
func (r *Runner) Change(spec Spec, at int64, to []Act) ([]Act, error) {
	if err := spec.Check(r.n); err != nil {
		return to, err
	}
	if r.next != nil {
		return to, fmt.Errorf("%w: the change to %v is under way: wait until the workers have reached step %d", ErrEvent, r.next.spec,
			r.next.at)
	}
	r.now = max(r.now, at)
	// A worker that was released beyond its clock may have continued although its push has not arrived yet.
	first := uint64(0)
	for w := range r.n {
		first = max(first, r.policy.Clock(w))
		if r.policy.Live(w) && r.heldAt[w] == notHeld {
			first = max(first, min(r.allowed[w], r.policy.Clock(w)+1)+1)
		}
	}
	r.next = newChange(r.n, spec, first)
	for w := range r.n {
		if r.policy.Live(w) && r.heldAt[w] == notHeld && r.allowed[w] >= first {
			r.allowed[w] = first - 1
			to = append(to, Act{Kind: Release, W: w, Step: first - 1, Pull: true})
		}
	}
	return r.settle(to), nil
}

// settle finishes a change that all workers have reached, and records which workers are held.
func (r *Runner) settle(to []Act) []Act {
	if r.next != nil {
		to = r.arrive(to)
	}
	for w := range r.n {
		if !r.Live(w) {
			continue
		}
		held := r.Clock(w) > r.allowed[w] || r.next != nil && r.next.joined[w]
		switch was := r.heldAt[w] != notHeld; {
		case held && !was:
			r.heldAt[w] = r.now
		case !held && was:
			r.stats[w].HeldNS += r.now - r.heldAt[w]
			r.heldAt[w] = notHeld
		}
	}
	return to
}

// arrive removes workers that the old policy would release beyond the change from the old policy, so that it does not wait for
// them. The new policy begins when the old one has no workers.
func (r *Runner) arrive(to []Act) []Act {
	for again := true; again; {
		again = false
		for w := range r.n {
			if r.next.reached[w] || !r.policy.Live(w) || r.policy.Clock(w) < r.next.at || r.policy.Allowed(w) < r.policy.Clock(w) {
				continue
			}
			r.next.reached[w], again = true, true
			to = r.pass(Event{Kind: Finish, W: w, At: r.now}, to)
		}
	}
	for w := range r.n {
		if r.policy.Live(w) && !r.next.reached[w] {
			return to
		}
	}
	done := r.next
	r.spec, r.next = done.spec.from(done.at), nil
	r.policy = New(r.spec, r.n, done.at)
	to = append(to, Act{Kind: Switch, Step: done.at, To: r.spec})
	for w := range r.n {
		if done.reached[w] || done.joined[w] {
			to = r.pass(Event{Kind: Join, W: w, At: r.now}, to)
		}
	}
	return to
}
