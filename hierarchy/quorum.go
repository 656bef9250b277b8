package hierarchy

import "math/bits"

// With a quorum a fragment's meeting is held when so many racks have come to it, a while later, and the others miss it. Rack 0
// leads: it hears who comes, and decides for the whole fragment at once. What it decides are words, which all racks hear in one
// order. They are all that a run depends on beside its gradients: it can be replayed from them.

// WordKind says what the leader has decided.
type WordKind uint8

// What the leader decides.
const (
	// Held: the fragment's next meeting is of these racks.
	Held WordKind = iota
	// Late: a rack has come to a meeting that was held without it. It goes on with the last one's result.
	Late
	// Alone: a rack has come, and too few others will. It goes on as it is, and comes again.
	Alone
	// Over: a rack's workers have left the job, and no more meetings are held.
	Over
	wordKinds
)

func (k WordKind) String() string { return [...]string{"held", "late", "alone", "over"}[k] }

// Word is one decision.
type Word struct {
	Kind     WordKind
	Fragment int
	Rack     int    // of Late and Alone
	Racks    uint64 // of Held, a bit for each rack
}

// Leader decides about the meetings of a job. It is a pure machine: events go in, words come out. Times are in ns of one clock.
type Leader struct {
	racks, quorum int
	grace         int64
	fragments     []gathering
	away          uint64 // racks whose workers wait for those of other racks, or have left
	over          bool
	full          int // gatherings that have a quorum
	words         []Word
}

// gathering is a fragment's next meeting.
type gathering struct {
	here   uint64 // racks that have come
	missed uint64 // racks that have not come since a meeting was held without them
	since  int64  // when there was a quorum
}

// NewLeader returns the leader of racks that meet so.
func NewLeader(o Outer, racks int) *Leader {
	return &Leader{racks: racks, quorum: o.Quorum, grace: int64(o.Grace), fragments: make([]gathering, max(o.Fragments, 1))}
}

// Words returns what the last event has decided, in order.
func (l *Leader) Words() []Word { return l.words }

// Waiting reports whether a meeting will be held by time alone.
func (l *Leader) Waiting() bool { return l.full > 0 && !l.over }

// Deadline returns when the next meeting will be held by time alone.
func (l *Leader) Deadline() (at int64, ok bool) {
	for f := range l.fragments {
		g := &l.fragments[f]
		if bits.OnesCount64(g.here) < l.quorum || l.over {
			continue
		}
		if due := g.since + l.grace; !ok || due < at {
			at, ok = due, true
		}
	}
	return at, ok
}

// Come takes note that a rack's first chunk of a fragment has come to its next meeting. It reports whether that can be: a rack
// that has come waits for its turn.
func (l *Leader) Come(now int64, rack, fragment int) bool {
	l.words = l.words[:0]
	g := &l.fragments[fragment]
	bit := uint64(1) << rack
	switch {
	case l.over:
		return true
	case g.here&bit != 0:
		return false
	case g.missed&bit != 0:
		g.missed &^= bit
		l.words = append(l.words, Word{Kind: Late, Fragment: fragment, Rack: rack})
		return true
	}
	g.here |= bit
	if bits.OnesCount64(g.here) == l.quorum {
		g.since = now
		l.full++
	}
	l.decide(now, fragment)
	return true
}

// Away takes note that a rack's workers wait for those of other racks, or do so no more.
func (l *Leader) Away(now int64, rack int, away bool) {
	l.words = l.words[:0]
	l.away &^= 1 << rack
	if !away {
		return
	}
	l.away |= 1 << rack
	for f := range l.fragments {
		l.decide(now, f)
	}
}

// Leave takes note that a rack's workers have left the job.
func (l *Leader) Leave() {
	l.words = l.words[:0]
	if !l.over {
		l.over = true
		l.words = append(l.words, Word{Kind: Over})
	}
}

// Tick looks for meetings whose time has come.
func (l *Leader) Tick(now int64) {
	l.words = l.words[:0]
	if l.full == 0 {
		return
	}
	for f := range l.fragments {
		l.decide(now, f)
	}
}

// decide holds a fragment's meeting, if it can be held now, or sends away those who wait for one that cannot.
func (l *Leader) decide(now int64, fragment int) {
	g := &l.fragments[fragment]
	all := uint64(1)<<(l.racks-1)<<1 - 1
	n, mayCome := bits.OnesCount64(g.here), g.here|all&^l.away
	switch {
	case l.over || n == 0:
	case n >= l.quorum && (g.here == mayCome || now-g.since >= l.grace):
		l.words = append(l.words, Word{Kind: Held, Fragment: fragment, Racks: g.here})
		g.missed |= all &^ g.here
		g.here = 0
		l.full--
	case bits.OnesCount64(mayCome) < l.quorum:
		for ; g.here != 0; g.here &= g.here - 1 {
			l.words = append(l.words, Word{Kind: Alone, Fragment: fragment, Rack: bits.TrailingZeros64(g.here)})
		}
	}
}
