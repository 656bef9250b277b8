package policy

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

func (*barrier) Stream() bool { return false }

func (*barrier) Rate(uint64) float64 { return 1 }

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

func (p *barrier) collected() int {
	n := 0
	for _, in := range p.in {
		if in {
			n++
		}
	}
	return n
}

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
	if p.count() == 0 {
		return to
	}
	p.step++
	p.base = p.step
	return p.releaseAll(p.step, to)
}
