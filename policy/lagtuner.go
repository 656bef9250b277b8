package policy

// Reading is an interpretation of LagTuner's published procedure, which has gaps.
type Reading uint8

const (
	// Strict never lets two workers' begun steps differ by more than the upper bound.
	Strict Reading = iota
	// Literal lets the fastest worker ask for extra steps again when it has used them up, and gives it as many as before.
	Literal
	// Loose also lets every worker above the lower bound ask, and holds a worker only until the slowest's next push.
	Loose
)

// lagTuner is SSP(lower) in which the fastest worker may get extra steps, as many as bring its push nearest to a push of the
// slowest.
type lagTuner struct {
	members
	lower, upper uint64
	reading      Reading

	now     int64
	workers []lagging
}

// lagging is a worker's progress.
type lagging struct {
	last     int64  // time of its last push
	since    int64  // time at which it began its step
	interval int64  // duration of its last step without the time for which it was held; 0 if unknown
	extra    uint64 // steps that it still has, whatever its lead
	awaits   int    // Loose: the worker whose push releases it
}

func (p *lagTuner) On(e Event, to []Act) []Act {
	p.now = max(p.now, e.At)
	switch e.Kind {
	case Push:
		to = p.applied(e, to)
		p.t[e.W]++
		w := &p.workers[e.W]
		w.last, w.since, w.interval = p.now, p.now, p.now-w.since
		to = p.decide(e.W, to)
	case Join:
		p.join(e.W, p.min())
		p.workers[e.W] = lagging{last: p.now, since: p.now}
	case Leave, Finish:
		p.leave(e.W)
	case Loss:
		return to
	}
	return p.recheck(e, to)
}

// decide releases the worker that has pushed, or leaves it held.
func (p *lagTuner) decide(w int, to []Act) []Act {
	switch {
	case p.workers[w].extra > 0:
		p.workers[w].extra--
		return p.release(w, p.t[w], to)
	case p.lead(w) <= p.lower:
		return p.release(w, p.t[w], to)
	case p.reading == Loose || p.t[w] == p.max():
		if r := p.control(w); r > 0 {
			p.workers[w].extra = r - 1
			return p.release(w, p.t[w]+r-1, to)
		}
	}
	p.workers[w].awaits = p.slowest()
	return to
}

// recheck releases the workers that an event brought within the lower bound, and the workers that waited for the push.
func (p *lagTuner) recheck(e Event, to []Act) []Act {
	lowest := p.min()
	for w := range p.live {
		held := p.held(w)
		awaited := p.reading == Loose && held && w != e.W && p.workers[w].awaits == e.W && e.Kind != Join
		to = p.release(w, plus(lowest, p.lower), to)
		if awaited {
			to = p.release(w, p.t[w], to)
		}
		if held && !p.held(w) {
			p.workers[w].since = p.now
		}
	}
	return to
}

// slowest returns the worker with the lowest clock. Of several, it returns the worker whose next push is expected last, then the
// worker of the lowest rank.
func (p *lagTuner) slowest() int {
	found, lowest := -1, p.min()
	for w, live := range p.live {
		if !live || p.t[w] != lowest {
			continue
		}
		if found < 0 || p.workers[w].last+p.workers[w].interval > p.workers[found].last+p.workers[found].interval {
			found = w
		}
	}
	return found
}

// control returns the number of steps, including the next one, after which a worker's push comes nearest to a push of the slowest.
// Of equally near numbers it returns the least. If 0, the worker is held.
func (p *lagTuner) control(w int) uint64 {
	most := p.upper - p.lower
	if p.reading == Strict {
		if p.lead(w) > p.upper {
			return 0
		}
		most = min(most, p.upper-p.lead(w)+1)
	}
	s := p.slowest()
	if p.workers[s].interval == 0 || p.workers[w].interval == 0 {
		return 0
	}
	next := max(p.workers[s].last+p.workers[s].interval, p.now)
	best, shortest := uint64(0), int64(-1)
	at := p.now
	for q := uint64(0); q <= most; q++ {
		wait := next - at
		if wait < 0 {
			past := -wait % p.workers[s].interval
			wait = min(past, p.workers[s].interval-past)
		}
		if shortest < 0 || wait < shortest {
			best, shortest = q, wait
		}
		at += p.workers[w].interval
	}
	return best
}
