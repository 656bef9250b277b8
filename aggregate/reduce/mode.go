package reduce

import "fmt"

// Mode is what the aggregator does with gradients.
type Mode uint8

const (
	// Eager updates the parameters when a chunk's last gradient arrives; a pushpull is answered with the new parameters.
	Eager Mode = iota
	// Aggregate only sums: a pushpull is answered with the sum.
	Aggregate
	// TwoPhase accumulates pushes until every worker commits the step, with its learning rate, scale and clipping; then the
	// parameters are updated and can be pulled.
	TwoPhase
)

var modeNames = [...]string{"eager", "aggregate", "two-phase"}

func (m Mode) String() string { return modeNames[m] }

// ParseMode reads the name of a mode.
func ParseMode(s string) (Mode, error) {
	for i, name := range modeNames {
		if name == s {
			return Mode(i), nil
		}
	}
	return 0, fmt.Errorf("unknown mode %q: use eager, aggregate or two-phase", s)
}
