package aggregate

import "github.com/rackweave/rackweave/hierarchy"

// Above places a job's rack among the racks that it reduces with.
type Above struct {
	hierarchy.Topology
	Rack    int
	Names   []string // of the racks, for people
	Workers []int    // of the racks; a job's ranks count through them in this order
}

// first is the rank in the whole job of a rack's first worker.
func (a *Above) first(rack int) (n int) {
	for _, w := range a.Workers[:rack] {
		n += w
	}
	return n
}

// root is the worker of this rack whose values a broadcast takes; -1: it is in another rack.
func (a *Above) root() int {
	if a == nil || a.Rack == 0 {
		return 0
	}
	return noRank
}

// owners gives a lane's chunks their owners; without racks above they are the rack's own.
type owners struct {
	hierarchy.Owners
	above *Above
}

func newOwners(a *Above, lane int) owners {
	o := owners{above: a}
	if a != nil {
		o.Owners = a.NewOwners(lane)
	}
	return o
}

// next returns the owner of the lane's next chunk, and whether that is this rack.
func (o *owners) next(elems uint64) (owner uint8, own bool) {
	if o.above == nil {
		return 0, true
	}
	r := o.Next(elems)
	return uint8(r), r == o.above.Rack
}
