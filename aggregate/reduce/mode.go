package reduce

import "fmt"

// Mode is the aggregator's treatment of gradients.
type Mode uint8

const (
	// Eager updates the parameters when a chunk's last gradient arrives. A pushpull is answered with the new parameters.
	Eager Mode = iota
	// Aggregate only sums. A pushpull is answered with the sum.
	Aggregate
	// TwoPhase accumulates pushes until every worker commits the step, with its learning rate, scale and clipping. Then the parameters
	// are updated and can be pulled.
	TwoPhase
	// Stream updates the parameters with each gradient when it arrives, or with a set of several workers' whole gradients. A worker
	// ends its step with a commit of its own, which is answered when it may begin the next.
	Stream
)

var modeNames = [...]string{"eager", "aggregate", "two-phase", "stream"}

func (m Mode) String() string { return modeNames[m] }

// ParseMode returns the mode of a name.
func ParseMode(s string) (Mode, error) {
	for i, name := range modeNames {
		if name == s {
			return Mode(i), nil
		}
	}
	return 0, fmt.Errorf("unknown mode %q: use eager, aggregate, two-phase or stream", s)
}
