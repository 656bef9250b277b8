package hierarchy

import (
	"fmt"
	"math/bits"
)

// Shape is a way in which the aggregators of a job reduce among themselves.
type Shape uint8

// The shapes.
const (
	// Flat has no reduction in the rack: workers of all racks send each chunk to the aggregator that owns it.
	Flat Shape = iota
	// Sharded has every aggregator send its rack's sum of a chunk to the chunk's owner, which sends the result back. Chunks are
	// spread over all owners: a reduce-scatter and an all-gather by chunk.
	Sharded
	// Ring passes sums around the aggregators, then the result around again. As racks are added in their order, the start rotates
	// by chunk only between two; with more it is a chain.
	Ring
	// Chain passes sums along the racks in order, then the result back.
	Chain
	// Root has the first rack's aggregator own every chunk.
	Root
	// Spine has an aggregator outside the racks, at the spine, own every chunk.
	Spine
	// Tree is a binary tree of aggregators, the same for every chunk.
	Tree
	// Pods is sharded within each pod, then across pods: BlueConnect's decomposition (MLSys 2019).
	Pods
	shapes
)

var shapeNames = [...]string{"flat", "sharded", "ring", "chain", "root", "spine", "tree", "pods"}

func (s Shape) String() string { return shapeNames[s] }

// Shapes are all shapes.
func Shapes() []Shape {
	all := make([]Shape, shapes)
	for i := range all {
		all[i] = Shape(i)
	}
	return all
}

// taken is the shape that chunks take between so many racks.
func (s Shape) taken(racks int) Shape {
	switch {
	case s == Ring && racks > 2:
		return Chain
	case s == Ring:
		return Sharded
	}
	return s
}

// ParseShape reads the name of a shape.
func ParseShape(name string) (Shape, error) {
	for i, n := range shapeNames {
		if n == name {
			return Shape(i), nil
		}
	}
	return 0, fmt.Errorf("unknown shape %q: use one of %v", name, shapeNames)
}

// Fits returns why a cluster cannot have a shape; nil if it can.
func (s Shape) Fits(c *Cluster) error {
	switch {
	case s == Spine && c.SpineNIC == 0:
		return fmt.Errorf("%w: shape spine needs an aggregator at the spine: give its NIC's rate", ErrCluster)
	case s == Flat && c.Outer.Every > 0:
		return fmt.Errorf("%w: shape flat has no rack's sums, and racks that meet every %d steps need them", ErrCluster, c.Outer.Every)
	case s == Pods && (c.pods() < 2 || c.inPod() < 2):
		return fmt.Errorf("%w: shape pods needs at least 2 pods of 2 racks, not %d of %d", ErrCluster, c.pods(), c.inPod())
	}
	return nil
}

// Hops returns how many hops across the core the last chunk takes, from its rack to the owner and back.
func (s Shape) Hops(c *Cluster) int {
	switch {
	case c.Racks == 1 && s != Spine:
		return 0
	case s == Ring || s == Chain:
		return 2 * (c.Racks - 1)
	case s == Tree:
		return 2 * depth(c.Racks)
	case s == Pods:
		return 4
	}
	return 2
}

// depth is the depth of a binary tree of n nodes in heap order.
func depth(n int) int { return bits.Len(uint(n)) - 1 }

// Node is an end of a transfer: a worker, or, with Worker -1, an aggregator. The aggregator at the spine is in rack R.
type Node struct{ Rack, Worker int }

// Aggregator returns a rack's aggregator.
func Aggregator(rack int) Node { return Node{rack, -1} }

// Edge is one chunk's transfer from a node to another.
type Edge struct{ From, To Node }

// Edges returns what a chunk's journey takes: the transfers of gradients and sums up to its owner, each after those into its
// source, and of results down to every worker.
func (s Shape) Edges(c *Cluster, chunk int) (up, down []Edge) {
	if s == Flat {
		owner := Aggregator(chunk % c.Racks)
		for rack := range c.Racks {
			for w := range c.Workers {
				up = append(up, Edge{Node{rack, w}, owner})
				down = append(down, Edge{owner, Node{rack, w}})
			}
		}
		return up, down
	}
	for rack := range c.Racks {
		for w := range c.Workers {
			up = append(up, Edge{Node{rack, w}, Aggregator(rack)})
		}
	}
	s.between(c, chunk, func(from, to int) {
		up = append(up, Edge{Aggregator(from), Aggregator(to)})
	}, func(from, to int) {
		down = append(down, Edge{Aggregator(from), Aggregator(to)})
	})
	for rack := range c.Racks {
		for w := range c.Workers {
			down = append(down, Edge{Aggregator(rack), Node{rack, w}})
		}
	}
	return up, down
}

// between calls across for each transfer of a chunk's sums between aggregators, and back for each of its results, in an order in
// which each follows those it waits for.
func (s Shape) between(c *Cluster, chunk int, across, back func(from, to int)) {
	R := c.Racks
	switch s = s.taken(R); s {
	case Sharded, Root:
		owner := 0
		if s == Sharded {
			owner = chunk % R
		}
		for rack := range R {
			if rack != owner {
				across(rack, owner)
				back(owner, rack)
			}
		}
	case Spine:
		for rack := range R {
			across(rack, R)
			back(R, rack)
		}
	case Chain:
		for rack := range R - 1 {
			across(rack, rack+1)
			back(R-1-rack, R-2-rack)
		}
	case Tree:
		for rack := R - 1; rack > 0; rack-- {
			across(rack, (rack-1)/2)
			back((R-1-rack)/2, R-rack)
		}
	case Pods:
		betweenPods(c, chunk, across, back)
	}
}

// betweenPods gathers a chunk within each pod before the pods meet.
func betweenPods(c *Cluster, chunk int, across, back func(from, to int)) {
	Q := c.inPod()
	owner := chunk/Q%c.pods()*Q + chunk%Q
	local := func(rack int) int { return rack/Q*Q + chunk%Q }
	for rack := range c.Racks {
		if rack != local(rack) {
			across(rack, local(rack))
		}
	}
	for pod := range c.pods() {
		if local := local(pod * Q); local != owner {
			across(local, owner)
			back(owner, local)
		}
	}
	for rack := range c.Racks {
		if rack != local(rack) {
			back(local(rack), rack)
		}
	}
}
