package policy

import "math"

// Unbounded is above every step: a worker that is allowed it is never held.
const Unbounded = math.MaxUint64

// EventKind says what happened.
type EventKind uint8

// The kinds of events.
const (
	// Push: worker W announces that the gradient of Step is computed (step policies) or applied (stream policies).
	Push EventKind = iota
	// Join: worker W takes part from now on. Its clock says at which step it begins.
	Join
	// Leave: worker W is lost. What it pushed and what is undecided is forgotten.
	Leave
	// Finish: worker W pushes no more. What it pushed still counts.
	Finish
	// Loss: Value is the validation loss after an epoch.
	Loss
)

// Event is what happened.
type Event struct {
	Kind  EventKind
	W     int
	Step  uint64
	At    int64   // ns of one clock
	Tau   uint64  // Push: updates since the version that the gradient was computed on
	Value float64 // Loss
}

// ActKind says what to do.
type ActKind uint8

// The kinds of acts.
const (
	// Apply: make one update of Parts, the learning rate multiplied by Rate. A stream policy says so of what was applied on arrival.
	Apply ActKind = iota
	// Drop: discard the gradient of (W, Step).
	Drop
	// Cancel: what W computes as Step is of no use; if it can, it should stop. It may push it all the same.
	Cancel
	// Release: W may compute steps up to Step. Steps fall only when the policy changes.
	Release
	// Switch: policy To decides from Step on.
	Switch
	// Admit: the gradient of (W, Step), times Rate, is in the update after the last one, behind those admitted before it. A policy
	// says so where an update is not decided yet and its order is.
	Admit
)

// Part is a gradient in an update.
type Part struct {
	W      int
	Step   uint64
	Weight float64
}

// Act is what to do.
type Act struct {
	Kind  ActKind
	W     int
	Step  uint64
	Pull  bool // Release: fetch the current parameters first
	Parts []Part
	Rate  float64
	To    Spec
}

// Policy is who waits for whom. Its events must be possible, which a [Runner] sees to.
type Policy interface {
	// Stream reports whether chunks are applied as they arrive. Else only Apply does.
	Stream() bool
	// Rate returns the factor of the learning rate for a gradient of the given staleness that is applied alone, on arrival.
	Rate(tau uint64) float64
	// On appends what to do about an event.
	On(e Event, to []Act) []Act
	// Clock returns the step that a worker computes or waits to compute.
	Clock(w int) uint64
	// Allowed returns the last step that a worker may compute.
	Allowed(w int) uint64
	// Live reports whether a worker takes part.
	Live(w int) bool

	state(c *codec)
}

// Save returns the state of a policy, for [Load].
func Save(p Policy) []byte {
	var c codec
	p.state(&c)
	return c.data
}

// Load gives a policy, new and of the same spec and workers, the state that another saved.
func Load(p Policy, saved []byte) error {
	c := codec{data: saved, loading: true}
	p.state(&c)
	return c.end()
}
