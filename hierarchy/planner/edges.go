package planner

import "github.com/rackweave/rackweave/hierarchy"

// node is an end of a transfer: a worker, or a rack's aggregator if Worker is -1.
type node struct{ Rack, Worker int }

func aggregator(rack int) node { return node{rack, -1} }

// edge is one chunk's transfer from one node to another.
type edge struct{ From, To node }

// edges returns the transfers of a chunk's gradients and sums up to its owner, each after the transfers into its source. Results
// take the same way back.
func (c *Cluster) edges(s hierarchy.Shape, chunk int) (up []edge) {
	t := c.topology(s)
	owners := t.Owners()
	owner := owners[chunk%len(owners)]
	for rack := range c.Racks {
		first := rack
		if s == hierarchy.Flat {
			first = owner
		}
		for w := range c.Workers {
			up = append(up, edge{node{rack, w}, aggregator(first)})
		}
	}
	var climb func(rack int)
	climb = func(rack int) {
		for _, child := range t.Route(rack, owner).Children {
			climb(child)
			up = append(up, edge{aggregator(child), aggregator(rack)})
		}
	}
	if s != hierarchy.Flat {
		climb(owner)
	}
	return up
}
