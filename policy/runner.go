package policy

import (
	"errors"
	"fmt"
	"math/bits"
)

// ErrEvent is what the error of an event that cannot be wraps.
var ErrEvent = errors.New("impossible event")

// StalenessBuckets is how many sizes of τ are told apart: 0, 1, 2-3, 4-7, …, the last without end.
const StalenessBuckets = 16

// Stats is what became of a worker's steps.
type Stats struct {
	Pushed    uint64
	Dropped   uint64
	HeldNS    int64
	Staleness [StalenessBuckets]uint64 // pushes by staleness
	TauSum    uint64                   // of all pushes
}

// MeanTau is the mean staleness of the pushes.
func (s *Stats) MeanTau() float64 { return float64(s.TauSum) / float64(max(s.Pushed, 1)) }

// Runner runs a job's policy. It refuses events that cannot be, with an error that says whose fault it is, and does nothing then.
type Runner struct {
	n      int
	spec   Spec
	policy Policy
	next   *change

	allowed []uint64 // as released, limited by a change under way
	floor   []uint64 // the lowest step that a worker may push: below its clock after a Cancel
	heldAt  []int64
	stats   []Stats
	now     int64
	updates uint64
	from    []Act // of the policy, before they are taken note of
}

// change is a change of policy under way.
type change struct {
	spec   Spec
	at     uint64
	there  []bool // workers that have reached it
	joined []bool // workers that join with it
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

// Spec is the policy that decides now.
func (r *Runner) Spec() Spec { return r.spec }

// Stream reports whether chunks are applied as they arrive.
func (r *Runner) Stream() bool { return r.policy.Stream() }

// Rate is the policy's.
func (r *Runner) Rate(tau uint64) float64 { return r.policy.Rate(tau) }

// Updates is how many updates were made.
func (r *Runner) Updates() uint64 { return r.updates }

// Clock is the step that a worker computes or waits to compute.
func (r *Runner) Clock(w int) uint64 {
	if r.next != nil && r.next.joined[w] {
		return r.next.at
	}
	return r.policy.Clock(w)
}

// Allowed is the last step that a worker may compute.
func (r *Runner) Allowed(w int) uint64 { return r.allowed[w] }

// Live reports whether a worker takes part.
func (r *Runner) Live(w int) bool {
	return r.policy.Live(w) || r.next != nil && (r.next.there[w] || r.next.joined[w])
}

// Held reports whether a worker waits to be released.
func (r *Runner) Held(w int) bool { return r.Live(w) && r.heldAt[w] != notHeld }

// HeldSince is when a worker that is held began to wait.
func (r *Runner) HeldSince(w int) int64 { return r.heldAt[w] }

// Awaited appends the workers for whose step those wait that are held: of those who compute, the ones furthest behind.
func (r *Runner) Awaited(to []int) []int {
	lowest := uint64(Unbounded)
	for w := range r.n {
		if r.Live(w) && !r.Held(w) {
			lowest = min(lowest, r.Clock(w))
		}
	}
	for w := range r.n {
		if r.Live(w) && !r.Held(w) && r.Clock(w) == lowest {
			to = append(to, w)
		}
	}
	return to
}

// Stats returns what became of a worker's steps.
func (r *Runner) Stats(w int) Stats { return r.stats[w] }

const notHeld = -1

// On appends what to do about an event.
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
		s.Staleness[min(bits.Len64(e.Tau), StalenessBuckets-1)]++
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
		there, joined := r.next.there[e.W], r.next.joined[e.W]
		r.next.there[e.W], r.next.joined[e.W] = false, false
		if joined || there && e.Kind == Finish {
			return r.settle(to), nil
		}
	}
	return r.settle(r.pass(e, to)), nil
}

// check tells whether an event can be.
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
		return fmt.Errorf("%w: worker %d is no member: it must join first", ErrEvent, e.W)
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

// pass gives the policy an event and takes note of what it wants.
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
				r.next.there[w] = r.policy.Live(w)
			}
			continue
		}
		to = append(to, a)
	}
	return to
}

func newChange(n int, spec Spec, at uint64) *change {
	return &change{spec: spec, at: at, there: make([]bool, n), joined: make([]bool, n)}
}

// Change lets another policy decide, from the first step on that nobody can have begun. Until all have reached it, the old one
// does.
func (r *Runner) Change(spec Spec, at int64, to []Act) ([]Act, error) {
	if err := spec.Check(r.n); err != nil {
		return to, err
	}
	if r.next != nil {
		return to, fmt.Errorf("%w: the change to %v is under way: wait until the workers have reached step %d", ErrEvent, r.next.spec,
			r.next.at)
	}
	r.now = max(r.now, at)
	// A worker that was released beyond its clock may have gone on although its push was not heard of yet.
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

// settle finishes a change that all have reached, and takes note of who is held.
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

// arrive takes workers out of the old policy that it would let go beyond the change, so that it waits for them no more. The new one
// begins when none is left.
func (r *Runner) arrive(to []Act) []Act {
	for again := true; again; {
		again = false
		for w := range r.n {
			if r.next.there[w] || !r.policy.Live(w) || r.policy.Clock(w) < r.next.at || r.policy.Allowed(w) < r.policy.Clock(w) {
				continue
			}
			r.next.there[w], again = true, true
			to = r.pass(Event{Kind: Finish, W: w, At: r.now}, to)
		}
	}
	for w := range r.n {
		if r.policy.Live(w) && !r.next.there[w] {
			return to
		}
	}
	done := r.next
	r.spec, r.next = done.spec.from(done.at), nil
	r.policy = New(r.spec, r.n, done.at)
	to = append(to, Act{Kind: Switch, Step: done.at, To: r.spec})
	for w := range r.n {
		if done.there[w] || done.joined[w] {
			to = r.pass(Event{Kind: Join, W: w, At: r.now}, to)
		}
	}
	return to
}
