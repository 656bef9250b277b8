package policy

import "math"

type members struct {
	spec    Spec
	n       int
	live    []bool
	t       []uint64 // clocks
	allowed []uint64 // valid from the first release on
	may     []bool   // allowed is valid
	base    uint64   // the slowest clock, kept while no worker is live
}

func newMembers(spec Spec, n int, first uint64) members {
	return members{
		spec: spec, n: n, live: make([]bool, n), t: make([]uint64, n), allowed: make([]uint64, n), may: make([]bool, n), base: first,
	}
}

func (m *members) Clock(w int) uint64 { return m.t[w] }

func (m *members) Live(w int) bool { return m.live[w] }

func (m *members) Allowed(w int) uint64 { return m.allowed[w] }

func (m *members) held(w int) bool { return m.live[w] && (!m.may[w] || m.t[w] > m.allowed[w]) }

func (m *members) min() uint64 {
	lowest, any := uint64(math.MaxUint64), false
	for w, live := range m.live {
		if live {
			lowest, any = min(lowest, m.t[w]), true
		}
	}
	if any {
		m.base = lowest
	}
	return m.base
}

func (m *members) max() uint64 {
	highest := m.base
	for w, live := range m.live {
		if live {
			highest = max(highest, m.t[w])
		}
	}
	return highest
}

func (m *members) lead(w int) uint64 { return m.t[w] - m.min() }

// number returns the number of workers for which is holds.
func number(is []bool) (n int) {
	for _, holds := range is {
		if holds {
			n++
		}
	}
	return n
}

// join adds a worker that begins at a step. The worker is not allowed any step yet.
func (m *members) join(w int, at uint64) {
	m.live[w], m.t[w], m.may[w], m.allowed[w] = true, at, false, 0
}

func (m *members) leave(w int) { m.live[w] = false }

// release allows a live worker steps up to x, if that is more than before.
func (m *members) release(w int, x uint64, to []Act) []Act {
	if !m.live[w] || m.may[w] && x <= m.allowed[w] {
		return to
	}
	m.may[w], m.allowed[w] = true, x
	return append(to, Act{Kind: Release, W: w, Step: x, Pull: true})
}

func (m *members) releaseAll(x uint64, to []Act) []Act {
	for w := range m.live {
		to = m.release(w, x, to)
	}
	return to
}

// applied appends the act of a push that was applied by itself.
func (m *members) applied(e Event, to []Act) []Act {
	return append(to, Act{Kind: Apply, W: e.W, Step: e.Step, Rate: m.spec.Rate(m.n, e.Tau), Parts: []Part{{e.W, e.Step, 1}}})
}

// plus adds a bound to a clock. Sums beyond every step are [Unbounded].
func plus(clock, bound uint64) uint64 {
	if bound > Unbounded-clock {
		return Unbounded
	}
	return clock + bound
}
