package hierarchy

import "fmt"

// Buddy is the rack that keeps the state of an owner's chunks, too: the next in order.
func (t Topology) Buddy(owner int) int { return (owner + 1) % t.Racks }

// CheckBuddies returns why owners cannot have buddies. An owner answers its buddy's sum with the sum of all racks, so its buddy's
// has to come to it directly.
func (t Topology) CheckBuddies() error {
	if t.Racks < 2 {
		return fmt.Errorf("%w: buddies and one rack, which would be its own: use two racks or more, or no buddies", ErrCluster)
	}
	for _, owner := range t.Owners() {
		if t.Shape == Flat || t.Route(t.Buddy(owner), owner).Parent != owner {
			return fmt.Errorf("%w: buddies and shape %v, in which an owner does not answer its buddy itself: use sharded or root, or no buddies",
				ErrCluster, t.Shape)
		}
	}
	return nil
}
