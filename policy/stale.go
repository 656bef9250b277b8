package policy

// stale is SSP: nobody begins a step more than bound ahead of the slowest. Without a bound it is ASP.
type stale struct {
	members
	learningRate
	bound uint64
}

func (*stale) Stream() bool { return true }

func (p *stale) On(e Event, to []Act) []Act {
	switch e.Kind {
	case Push:
		to = p.applied(e, to)
		p.t[e.W]++
	case Join:
		p.join(e.W, p.min())
	case Leave, Finish:
		p.leave(e.W)
	}
	return p.releaseAll(plus(p.min(), p.bound), to)
}

// learningRate is the factor of the learning rate for gradients that are applied alone.
type learningRate struct {
	factor    float64
	staleness bool // divide by τ+1 instead (DynSGD)
}

func (r learningRate) Rate(tau uint64) float64 {
	if r.staleness {
		return 1 / (float64(tau) + 1)
	}
	return r.factor
}

// applied appends the act of a push that was applied by itself.
func (r learningRate) applied(e Event, to []Act) []Act {
	return append(to, Act{Kind: Apply, W: e.W, Step: e.Step, Rate: r.Rate(e.Tau), Parts: []Part{{e.W, e.Step, 1}}})
}
