package policy

import "slices"

// batching is the behaviour of workers while a batch is collected.
type batching uint8

const (
	waiting batching = iota // a worker waits for the update with its gradient (k-ASP)
	running                 // a worker continues with the current parameters (k-batch-ASP, softsync)
	same                    // a worker continues with its parameters, and an update cancels its computation (k-batch-BSP)
)

// batch makes an update from any k gradients.
type batch struct {
	members
	k      int
	mode   batching
	factor bool // each gradient is divided by its staleness, and the learning rate is not scaled

	in []member
}

type member struct {
	w    int
	step uint64
	tau  uint64
}

// rate returns the learning rate's factor for an update of size gradients. The learning rate was chosen for n gradients of one
// version. The synchronous rule keeps it.
func (p *batch) rate(size int) float64 {
	if p.factor || p.mode == same {
		return 1
	}
	return float64(size) / float64(p.n)
}

// share returns the factor of a gradient, beside the division by the number of gradients.
func (p *batch) share(m member) float64 {
	if p.factor {
		return 1 / float64(max(1, m.tau))
	}
	return 1
}

func (p *batch) On(e Event, to []Act) []Act {
	switch e.Kind {
	case Push:
		p.t[e.W]++
		if p.mode == same && e.Tau > 0 {
			return p.release(e.W, p.t[e.W], append(to, Act{Kind: Drop, W: e.W, Step: e.Step}))
		}
		m := member{e.W, e.Step, e.Tau}
		p.in = append(p.in, m)
		if p.mode != waiting {
			to = append(to, Act{Kind: Admit, W: e.W, Step: e.Step, Rate: p.share(m)})
		}
		updated := p.full()
		to = p.try(to)
		switch {
		case p.mode == running:
			to = p.release(e.W, p.t[e.W], to)
		case p.mode == same && !updated:
			to = p.release(e.W, p.t[e.W], to)
			to[len(to)-1].Pull = false
		}
		return to
	case Join:
		p.join(e.W, p.min())
		return p.release(e.W, p.t[e.W], to)
	case Leave:
		p.leave(e.W)
		p.in = slices.DeleteFunc(p.in, func(m member) bool { return m.w == e.W })
	case Finish:
		p.leave(e.W)
	}
	return p.try(to)
}

func (p *batch) full() bool {
	if len(p.in) == 0 || len(p.in) >= p.k {
		return len(p.in) > 0
	}
	for w, live := range p.live {
		if live && (p.mode != waiting || !p.held(w)) {
			return false // another gradient can arrive
		}
	}
	return true
}

func (p *batch) try(to []Act) []Act {
	if !p.full() {
		return to
	}
	if p.mode == waiting {
		// The order is that of ranks, as in every synchronous sum.
		slices.SortFunc(p.in, func(a, b member) int { return a.w - b.w })
	}
	size := len(p.in)
	update := Act{Kind: Apply, Rate: p.rate(size)}
	for _, m := range p.in {
		update.Parts = append(update.Parts, Part{m.w, m.step, p.share(m) / float64(size)})
	}
	to = append(to, update)
	switch p.mode {
	case waiting:
		for _, m := range p.in {
			to = p.release(m.w, p.t[m.w], to)
		}
	case same:
		for w, live := range p.live {
			if !live {
				continue
			}
			if !p.held(w) {
				to = append(to, Act{Kind: Cancel, W: w, Step: p.t[w]})
			}
			p.may[w] = false // to release it again, because the parameters have changed
			to = p.release(w, p.t[w], to)
		}
	}
	p.in = p.in[:0]
	return to
}
