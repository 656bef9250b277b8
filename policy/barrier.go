package policy

import "math"

// barrier is bulk-synchronous training in which an update takes the first k workers of a step: all (BSP), all but some backup
// workers, or k of them, with the others cancelled (k-BSP).
type barrier struct {
	members
	k      int
	cancel bool
	until  *trigger // if nil, the policy never switches

	step uint64 // the step that is collected
	in   []bool // by worker: its gradient has arrived
}

func newBarrier(m members, k int, cancel bool) *barrier {
	return &barrier{members: m, k: k, cancel: cancel, step: m.base, in: make([]bool, m.n)}
}

func (p *barrier) On(e Event, to []Act) []Act {
	switch e.Kind {
	case Push:
		if e.Step < p.step {
			p.t[e.W] = p.step
			return p.release(e.W, p.step, append(to, Act{Kind: Drop, W: e.W, Step: e.Step}))
		}
		p.in[e.W] = true
		p.t[e.W] = p.step + 1
	case Join:
		// A newcomer does not delay a step that others have finished.
		at := p.step
		if p.collected() > 0 {
			at++
		}
		p.join(e.W, at)
		return p.release(e.W, p.step, to)
	case Leave:
		p.in[e.W] = false
		p.leave(e.W)
	case Finish:
		p.leave(e.W)
	case Loss:
		if p.until != nil {
			p.until.loss(e.Value)
		}
	}
	return p.try(to)
}

// collected returns the number of workers whose gradient of the step has arrived.
func (p *barrier) collected() int { return number(p.in) }

// expected returns the number of workers whose gradient of the step has arrived, or can arrive.
func (p *barrier) expected() int {
	n := p.collected()
	for w, live := range p.live {
		if live && !p.in[w] && p.t[w] <= p.step {
			n++
		}
	}
	return n
}

// try makes an update if enough gradients have arrived.
func (p *barrier) try(to []Act) []Act {
	got, expected := p.collected(), p.expected()
	if expected == 0 {
		return p.skip(to)
	}
	if got == 0 || got < min(p.k, expected) {
		return to
	}
	update := Act{Kind: Apply, Step: p.step, Rate: 1}
	for w, in := range p.in {
		if in {
			update.Parts = append(update.Parts, Part{w, p.step, 1 / float64(got)})
		}
	}
	to = append(to, update)
	old := p.step
	p.step++
	p.base = p.step
	if p.until != nil && p.until.due(p.step) {
		clear(p.in)
		return append(to, Act{Kind: Switch, Step: p.step, To: asp})
	}
	for w, live := range p.live {
		switch {
		case !live:
		case p.in[w] || p.t[w] == p.step:
			to = p.release(w, p.step, to)
		case p.cancel:
			p.t[w] = p.step
			to = p.release(w, p.step, append(to, Act{Kind: Cancel, W: w, Step: old}))
		}
	}
	clear(p.in)
	return to
}

// skip skips a step that nobody can fill. All live workers begin with the next.
func (p *barrier) skip(to []Act) []Act {
	if number(p.live) == 0 {
		return to
	}
	p.step++
	p.base = p.step
	return p.releaseAll(p.step, to)
}

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
