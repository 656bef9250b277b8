package policy

import "math"

// lossWindow is the number of successive losses of the empirical rule.
const lossWindow = 6

// trigger is the condition under which Strategy-Switch switches: at a step, or when the loss has settled.
type trigger struct {
	at      uint64  // if Unbounded, the loss decides
	below   float64 // percent; the loss has settled when its mean change from epoch to epoch is below
	losses  []float64
	settled bool
}

// loss records an epoch's loss. A loss from which no change can be computed begins the window anew.
func (t *trigger) loss(v float64) {
	if !(v > 0) || math.IsInf(v, 1) {
		t.losses = t.losses[:0]
		return
	}
	if len(t.losses) == lossWindow {
		t.losses = append(t.losses[:0], t.losses[1:]...)
	}
	t.losses = append(t.losses, v)
	if t.at == Unbounded && t.change() < t.below {
		t.settled = true
	}
}

// change returns the mean relative change of the losses of the window, in percent, or +Inf before the window is full.
func (t *trigger) change() float64 {
	if len(t.losses) < lossWindow {
		return math.Inf(1)
	}
	sum := 0.0
	for i := 1; i < lossWindow; i++ {
		sum += math.Abs(t.losses[i]-t.losses[i-1]) / t.losses[i-1]
	}
	return 100 * sum / (lossWindow - 1)
}

func (t *trigger) due(step uint64) bool { return t.settled || step >= t.at }
