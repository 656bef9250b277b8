package policy

import "math"

// Unbounded is above every step. A worker that is allowed it is never held.
const Unbounded = math.MaxUint64

// EventKind is the kind of an event.
type EventKind uint8

const (
	// Push announces that worker W has computed the gradient of Step (step policies), or that it was applied (stream policies).
	Push EventKind = iota
	// Join announces that worker W takes part from now on. Its clock is the step at which it begins.
	Join
	// Leave announces that worker W is lost. Its pushes that are undecided are dropped.
	Leave
	// Finish announces that worker W pushes no further steps. Its earlier pushes still count.
	Finish
	// Loss reports the validation loss Value after an epoch.
	Loss
)

// Event is an event of a job.
type Event struct {
	Kind  EventKind
	W     int
	Step  uint64
	At    int64   // ns of one clock
	Tau   uint64  // of Push: updates since the version on which the gradient was computed
	Value float64 // of Loss
}

// ActKind is the kind of an act.
type ActKind uint8

const (
	// Apply makes one update of Parts, with the learning rate multiplied by Rate. A stream policy emits it for a gradient that was
	// applied on arrival.
	Apply ActKind = iota
	// Drop discards the gradient of (W, Step).
	Drop
	// Cancel announces that W's computation of Step is useless, so that W stops it if it can. W may still push it.
	Cancel
	// Release allows W steps up to Step. Step decreases only when the policy changes.
	Release
	// Switch installs policy To from Step on.
	Switch
	// Admit puts the gradient of (W, Step), times Rate, into the update after the last one, behind the gradients admitted before it. A
	// policy emits it when the order of an update is decided before the update is.
	Admit
)

// Part is a gradient in an update.
type Part struct {
	W      int
	Step   uint64
	Weight float64
}

// Act is a decision of a policy.
type Act struct {
	Kind  ActKind
	W     int
	Step  uint64
	Pull  bool // of Release: the worker must fetch the current parameters first
	Parts []Part
	Rate  float64
	To    Spec
}

// Policy decides who waits for whom. Its events must be possible. A [Runner] ensures that.
type Policy interface {
	// On appends the acts that follow from an event.
	On(e Event, to []Act) []Act
	// Clock returns the step that a worker computes or waits to compute.
	Clock(w int) uint64
	// Allowed returns the last step that a worker may compute.
	Allowed(w int) uint64
	// Live reports whether a worker takes part.
	Live(w int) bool
}
