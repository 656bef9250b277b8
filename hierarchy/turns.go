package hierarchy

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
)

// TurnKind says what a rack does next with each chunk of a fragment.
type TurnKind uint8

// The turns.
const (
	// TakePart: when the rack's chunk comes to its meeting, it hands up how far it has come, and goes on with the result.
	TakePart TurnKind = iota
	// StandIn: the meeting is without the rack. It hands up zeros, without its workers, and keeps the result for when they come.
	StandIn
	// CatchUp: when the rack's chunk comes, it goes on with the result that was kept.
	CatchUp
	// GoOn: when the rack's chunk comes, it goes on as it is.
	GoOn
)

// Turn is what a rack does next with each chunk of a fragment.
type Turn struct {
	Kind TurnKind
	// Of a meeting: this rack's weight, the sum of those that take part, and a number that only the same meeting of the same
	// racks has.
	Weight, Total int
	Meeting       uint32
}

// Turns are a rack's, in every fragment, as the leader's words make them. Every chunk of a fragment takes all of them in order.
type Turns struct {
	rack      int
	workers   []int // by rack
	fragments []fragmentTurns
	weights   []int // by rack, of the last meeting
	over      bool
}

type fragmentTurns struct {
	first   uint32 // turns that are forgotten
	turns   []Turn
	periods []int // by rack, those since it took part or caught up
	held    uint32
	missed  bool // a meeting was held without this rack, which has not caught up
}

// mostTurns bounds the turns between a fragment's chunk that is furthest and the one that is least far.
const mostTurns = 1 << 12

// NewTurns returns the turns of one of the racks that meet so, with so many workers each.
func NewTurns(o Outer, rack int, workers []int) *Turns {
	t := &Turns{rack: rack, workers: workers, weights: make([]int, len(workers)),
		fragments: make([]fragmentTurns, max(o.Fragments, 1))}
	for f := range t.fragments {
		t.fragments[f].periods = make([]int, len(workers))
		for r := range workers {
			t.fragments[f].periods[r] = 1
		}
	}
	return t
}

// Hear takes the leader's next word. It wraps [ErrProtocol] if the leader cannot have said so.
func (t *Turns) Hear(w Word) error {
	if w.Kind >= wordKinds || w.Fragment < 0 || w.Fragment >= len(t.fragments) || w.Rack < 0 || w.Rack >= len(t.workers) ||
		w.Kind == Held && (w.Racks == 0 || w.Racks>>(len(t.workers)-1) > 1) || t.over {
		return fmt.Errorf("%w: the leader of %d racks with %d fragments says %+v", ErrProtocol, len(t.workers), len(t.fragments), w)
	}
	f := &t.fragments[w.Fragment]
	switch w.Kind {
	case Held:
		f.put(t.meeting(f, w))
	case Late:
		f.periods[w.Rack] = 1
		if w.Rack == t.rack {
			f.catchUp()
		}
	case Alone:
		f.periods[w.Rack]++
		if w.Rack == t.rack {
			f.put(Turn{Kind: GoOn})
		}
	case Over:
		t.over = true
		for i := range t.fragments {
			if f := &t.fragments[i]; f.missed {
				f.catchUp()
			}
		}
	}
	if len(f.turns) > mostTurns {
		return fmt.Errorf("%w: chunks of fragment %d are more than %d meetings apart: push all tensors in every step", ErrProtocol, w.Fragment,
			mostTurns)
	}
	return nil
}

func (f *fragmentTurns) put(t Turn) { f.turns = append(f.turns, t) }

func (f *fragmentTurns) catchUp() {
	f.missed = false
	f.put(Turn{Kind: CatchUp})
}

// meeting is this rack's turn in a meeting. A rack weighs as much as its workers, times the periods in which it has come so far.
func (t *Turns) meeting(f *fragmentTurns, w Word) Turn {
	f.held++
	turn := Turn{Kind: StandIn}
	for r, workers := range t.workers {
		t.weights[r] = 0
		if w.Racks>>r&1 == 0 {
			continue
		}
		weight := workers * f.periods[r]
		t.weights[r] = weight
		f.periods[r] = 1
		turn.Total += weight
		if r == t.rack {
			turn.Kind, turn.Weight = TakePart, weight
		}
	}
	f.missed = f.missed || turn.Kind == StandIn
	var b [16]byte
	binary.LittleEndian.PutUint32(b[:], uint32(w.Fragment))
	binary.LittleEndian.PutUint32(b[4:], f.held)
	binary.LittleEndian.PutUint64(b[8:], w.Racks)
	turn.Meeting = crc32.ChecksumIEEE(b[:])
	return turn
}

// Turn returns what a chunk of a fragment does that has taken n turns; ok is false while that is not decided.
func (t *Turns) Turn(fragment int, n uint32) (turn Turn, ok bool) {
	f := &t.fragments[fragment]
	if i := int(n - f.first); i < len(f.turns) {
		return f.turns[i], true
	}
	return Turn{Kind: GoOn}, t.over
}

// Forgotten reports whether it is too late for a chunk that has taken n turns.
func (t *Turns) Forgotten(fragment int, n uint32) bool { return n < t.fragments[fragment].first }

// Taken takes note that all chunks of a fragment in use have taken n turns; idle says that others have taken none yet, for which
// turns are kept as long as there is room.
func (t *Turns) Taken(fragment int, n uint32, idle bool) {
	f := &t.fragments[fragment]
	i := min(int(n-f.first), len(f.turns))
	if idle {
		i = min(i, max(0, len(f.turns)-mostTurns/2))
	}
	f.turns = f.turns[:copy(f.turns, f.turns[i:])]
	f.first += uint32(i)
}

// Told is how many turns a fragment has had.
func (t *Turns) Told(fragment int) uint32 {
	f := &t.fragments[fragment]
	return f.first + uint32(len(f.turns))
}

// Weights returns the racks' weights in the last meeting that was heard of; 0: the rack has missed it.
func (t *Turns) Weights() []int { return t.weights }

// Held returns how many meetings of a fragment have been heard of.
func (t *Turns) Held(fragment int) uint32 { return t.fragments[fragment].held }

// Over reports whether no more meetings are held.
func (t *Turns) Over() bool { return t.over }
