package reduce

// Standing is what becomes of the gradients of a worker's step.
type Standing uint8

// The standings.
const (
	Alone     Standing = iota // each is applied by itself, when it arrives
	Undecided                 // they wait
	Member                    // they are in a set
	LeftOut                   // they are dropped
)

// addend is a worker's step in a set.
type addend struct {
	worker int32
	set    uint64
	ended  bool // all its chunks are added
}

// sets is what a machine knows of sets.
type sets struct {
	addends []addend // of the set that is collected, then those of later ones; in the order in which they are added
	current uint64   // the set that is collected
	stepped bool     // a step has ended since the addends were looked at
}

// size is how many members the set has that is collected.
func (s *sets) size() (n int) {
	for n < len(s.addends) && s.addends[n].set == s.current {
		n++
	}
	return n
}
