package hierarchy

import (
	"errors"
	"fmt"
)

const (
	// MaxRacks is the largest number of racks that reduce among themselves.
	MaxRacks = 64
	// MaxRackName is the largest length of a rack's name, in bytes.
	MaxRackName = 255
)

// ErrCluster is wrapped by every error about a cluster.
var ErrCluster = errors.New("bad cluster")

// Topology describes the reduction among the aggregators of a job. The order of summation belongs to racks and pods, not to the
// shape. The racks' sums are added in rack order. With pods, each pod's sums are added first and then the pods'. So a shape never
// changes a bit.
type Topology struct {
	Shape Shape
	Racks int
	Pods  int // equal runs of racks; if 0 or 1, racks are not in pods
}

// Check returns an error if the aggregators cannot reduce this way.
func (t Topology) Check() error {
	switch {
	case t.Racks < 1 || t.Racks > MaxRacks:
		return fmt.Errorf("%w: %d racks: use 1 to %d", ErrCluster, t.Racks, MaxRacks)
	case t.Pods < 0 || t.Pods > 1 && t.Racks%t.Pods != 0:
		return fmt.Errorf("%w: %d racks in %d pods: use a number of pods that divides the racks", ErrCluster, t.Racks, t.Pods)
	case t.Shape == Flat || t.Shape >= shapes:
		return fmt.Errorf("%w: aggregators do not reduce in shape %v: use sharded, ring, chain, root or pods", ErrCluster, t.Shape)
	case (t.Shape == Ring || t.Shape == Chain) && t.Pods > 1:
		return fmt.Errorf("%w: shape %v adds along the racks and %d pods are declared, whose sums come first: use sharded, root or pods",
			ErrCluster, t.Shape, t.Pods)
	case t.Shape == Pods && t.Pods < 2:
		return fmt.Errorf("%w: shape pods and no pods declared: declare them, or use sharded", ErrCluster)
	}
	return nil
}

// CheckOnce returns an error if sums that are rounded between racks would be rounded more than once on their way, because the shape
// would then change their bits.
func (t Topology) CheckOnce() error {
	switch {
	case t.Pods > 1:
		return fmt.Errorf("%w: sums cross the core in bf16 and %d pods are declared, whose sums would be rounded again: use f32, or no pods",
			ErrCluster, t.Pods)
	case (t.Shape == Chain || t.Shape == Ring) && t.Racks > 2:
		return fmt.Errorf("%w: sums cross the core in bf16, and shape %v would round them at every rack: use sharded or root, or f32", ErrCluster,
			t.Shape)
	}
	return nil
}

// Owners returns the racks that own chunks.
func (t Topology) Owners() []int {
	switch {
	case t.Shape == Root:
		return []int{0}
	case t.Shape.Resolve(t.Racks) == Chain:
		return []int{t.Racks - 1}
	}
	all := make([]int, t.Racks)
	for r := range all {
		all[r] = r
	}
	return all
}

// Route is a rack's part in a chunk's journey.
type Route struct {
	Parent   int   // the rack to which its sum goes, or -1 if it owns the chunk
	Children []int // the racks whose sums it receives
	// Groups holds the racks whose sums it adds, its own among them, in order. The sums of each group are added first, and then the
	// groups'.
	Groups [][]int
}

// parent returns the rack to which a rack sends its sum of the owner's chunks, or none if it is the owner. Thereby it defines the
// tree of the shape.
func (t Topology) parent(rack, owner int) int {
	switch {
	case rack == owner:
		return none
	case t.Shape.Resolve(t.Racks) == Chain:
		return rack + 1
	case t.Shape == Pods:
		// Each pod's sum is made by the rack at the owner's position in its pod.
		size := t.podSize()
		if maker := rack/size*size + owner%size; rack != maker {
			return maker
		}
	}
	return owner
}

// podSize returns the number of racks in each pod. Without pods all racks are in one.
func (t Topology) podSize() int { return t.Racks / max(t.Pods, 1) }

// Route returns a rack's part in the journey of the owner's chunks.
func (t Topology) Route(rack, owner int) Route {
	r := Route{Parent: t.parent(rack, owner)}
	pod := none // of the last group
	for other := range t.Racks {
		child := t.parent(other, owner) == rack
		if child {
			r.Children = append(r.Children, other)
		} else if other != rack {
			continue
		}
		if at := other / t.podSize(); at != pod {
			pod, r.Groups = at, append(r.Groups, nil)
		}
		group := &r.Groups[len(r.Groups)-1]
		*group = append(*group, other)
	}
	return r
}

// Dealer deals one lane's chunks to the racks that own chunks, so that all get equally many bytes.
type Dealer struct {
	racks []int
	bytes []uint64
	first int // index of the rack that wins a tie, which differs between lanes
}

// NewDealer returns the dealer of a lane's chunks. Every rack deals them alike, in the plan's order.
func (t Topology) NewDealer(lane int) Dealer {
	racks := t.Owners()
	return Dealer{racks: racks, bytes: make([]uint64, len(racks)), first: lane % len(racks)}
}

// Next returns the owner of the lane's next chunk.
func (d *Dealer) Next(bytes uint64) int {
	best := d.first
	for i := 1; i < len(d.racks); i++ {
		if n := (d.first + i) % len(d.racks); d.bytes[n] < d.bytes[best] {
			best = n
		}
	}
	d.bytes[best] += bytes
	return d.racks[best]
}

// Buddy returns the rack that also keeps the state of an owner's chunks, which is the next in order.
func (t Topology) Buddy(owner int) int { return (owner + 1) % t.Racks }

// CheckBuddies returns an error if owners cannot have buddies. An owner answers its buddy's sum with the sum of all racks, so the
// buddy's sum must reach it directly.
func (t Topology) CheckBuddies() error {
	if t.Racks < 2 {
		return fmt.Errorf("%w: buddies and one rack, which would be its own: use two racks or more, or no buddies", ErrCluster)
	}
	for _, owner := range t.Owners() {
		if t.Shape == Flat || t.parent(t.Buddy(owner), owner) != owner {
			return fmt.Errorf("%w: buddies and shape %v, in which an owner does not answer its buddy itself: use sharded or root, or no buddies",
				ErrCluster, t.Shape)
		}
	}
	return nil
}

const none = -1

// leader is the rack whose order the others follow when their orders keep each other waiting (stall.go).
const leader = 0

// leads returns the rack from which the leader's sum of an owner's chunks reaches a rack: the rack itself, a child, or none.
func (t Topology) leads(rack, owner int) int {
	for at, before := leader, leader; at >= 0; at, before = t.parent(at, owner), at {
		if at == rack {
			return before
		}
	}
	return none
}
