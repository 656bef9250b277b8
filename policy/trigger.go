package policy

import "math"

// lossWindow is how many losses in a row the empirical rule looks at.
const lossWindow = 6

// trigger says when Strategy-Switch switches: at a step, or when the loss has settled.
type trigger struct {
	at      uint64  // Unbounded: by the loss
	below   float64 // percent: the mean change of the loss from epoch to epoch under which it has settled
	losses  []float64
	settled bool
}

// loss takes note of an epoch's loss. One that no change can be taken of begins the window anew.
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

// change is the mean relative change of the losses of the window, in percent; +Inf before the window is full.
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

func (t *trigger) state(c *codec) {
	n := c.length(len(t.losses), lossWindow)
	if c.loading {
		t.losses = make([]float64, n)
	}
	each(t.losses, c.float)
	c.bool(&t.settled)
}
