package hierarchy

const none = -1

// leader is the rack whose order the others follow where their orders keep each other waiting (stall.go).
const leader = 0

type stall struct {
	finished uint64 // chunks
	before   uint64 // by the last tick
	idle     int    // counted ticks since one was
}

// leads returns by which rack the leader's sum of an owner's chunks comes to a rack: by itself, by a child, or by none.
func (t Topology) leads(rack, owner int) int {
	for at, before := leader, leader; at >= 0; at, before = t.Route(at, owner).Parent, at {
		if at == rack {
			return before
		}
	}
	return none
}
