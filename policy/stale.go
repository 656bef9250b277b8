package policy

// stale is SSP: nobody begins a step more than bound ahead of the slowest. Without a bound it is ASP.
type stale struct {
	members
	bound uint64
}

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
