package aggregate

import (
	"fmt"

	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/hierarchy"
)

// Above places a job's rack among the racks that it reduces with.
type Above struct {
	hierarchy.Topology
	Rack    int
	Names   []string // of the racks, for people
	Workers []int    // of the racks; a job's ranks count through them in this order
	// Core is the type in which sums and results cross between racks: F32 or BF16; 0: F32. With BF16 each rack's sum is rounded once,
	// the owner's own too, they are added in f32, and the result is rounded once, for all workers.
	Core chunk.DType
	// Buddies says that the next rack in order keeps the state of each owner's chunks, too, and that both know it as it was one
	// change back. Of mode eager.
	Buddies bool
}

// check reports what of the shape, the core link's type or buddies cannot be.
func (a *Above) check() error {
	if a.Buddies {
		if err := a.CheckBuddies(); err != nil {
			return err
		}
	}
	switch a.Core {
	case 0, chunk.F32:
		return a.Check()
	case chunk.BF16:
		if err := a.Check(); err != nil {
			return err
		}
		return a.CheckOnce()
	}
	return fmt.Errorf("type %v between racks: use f32 or bf16", a.Core)
}

// core is the type of sums between racks, as kernels take it.
func (a *Above) core() uint8 {
	if a.Core == chunk.BF16 {
		return uint8(chunk.BF16)
	}
	return uint8(chunk.F32)
}

// result is the type in which results of a tensor cross between racks.
func (a *Above) result(wire chunk.DType) chunk.DType {
	if a != nil && a.Core == chunk.BF16 && wire == chunk.F32 {
		return chunk.BF16
	}
	return wire
}

// mirrors reports whether this rack keeps the state of an owner's chunks as its buddy.
func (a *Above) mirrors(owner int) bool { return a != nil && a.Buddies && a.Buddy(owner) == a.Rack }

// buddy is the rack that keeps the state of this one's chunks, too; -1: none.
func (a *Above) buddy() int {
	if !a.Buddies {
		return noRank
	}
	return a.Buddy(a.Rack)
}

// needed bounds what so many bytes of parameters take in arrays of a rack that keeps the state of its own chunks, its buddy's, and
// only the parameters of others. Owners differ by a chunk in each lane at most.
func (a *Above) needed(bytes int64, arrays, lanes, chunkBytes int) int64 {
	kept, owners := int64(0), int64(0)
	for _, o := range a.Owners() {
		owners++
		if o == a.Rack || a.mirrors(o) {
			kept++
		}
	}
	states := bytes*kept/owners + kept*int64(lanes)*2*int64(chunkBytes)
	return bytes + min(states, bytes)*int64(arrays-1)
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

// next returns the owner of the lane's next chunk, and whether this rack keeps its state.
func (o *owners) next(elems uint64) (owner uint8, kept bool) {
	if o.above == nil {
		return 0, true
	}
	r := o.Next(elems)
	return uint8(r), r == o.above.Rack || o.above.mirrors(r)
}
