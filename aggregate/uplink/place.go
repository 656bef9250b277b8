package uplink

import (
	"cmp"
	"fmt"

	"github.com/rackweave/rackweave/aggregate/failure"
	"github.com/rackweave/rackweave/aggregate/store"
	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/codec"
	"github.com/rackweave/rackweave/hierarchy"
)

// Place is a rack's place among the racks that it reduces with.
type Place struct {
	hierarchy.Topology
	Rack    int
	Names   []string // of the racks, for messages
	Workers []int    // by rack; a job's ranks count through the racks in this order
	// Core is the type in which sums and results cross between racks: F32 or BF16. If 0, it is F32. With BF16 each rack's sum is
	// rounded once, also the owner's own. The sums are added in f32, and the result is rounded once, for all workers.
	Core chunk.DType
	// Codecs shorten sums and results between racks. With any, Core is F32.
	Codecs codec.Pair
	// Buddies reports that the next rack in order also keeps the state of each owner's chunks, and that both also keep it as it was
	// one change back. Only mode eager has buddies.
	Buddies bool
}

// CheckPlace validates the shape, the core link's type and the buddies. Check is the topology's.
func (p *Place) CheckPlace() error {
	if p.Buddies {
		if err := p.CheckBuddies(); err != nil {
			return err
		}
	}
	switch err := p.Check(); {
	case p.Coded() && p.CoreType() != chunk.F32:
		return fmt.Errorf("codecs %v and type %v between racks: use one of them", p.Codecs, p.Core)
	case p.Coded() && p.Buddies:
		return fmt.Errorf("codecs %v between racks with buddies, which need whole sums: use f32, or a cluster without buddies", p.Codecs)
	case p.CoreType() != chunk.F32 && p.Core != chunk.BF16:
		return fmt.Errorf("type %v between racks: use f32 or bf16", p.Core)
	case err != nil || p.CoreType() == chunk.F32:
		return err
	}
	return p.CheckOnce()
}

// CoreType returns the type of sums between racks.
func (p *Place) CoreType() chunk.DType { return cmp.Or(p.Core, chunk.F32) }

// Coded reports whether codecs shorten what crosses between racks.
func (p *Place) Coded() bool { return p.Codecs != codec.Pair{} }

// isBuddyOf reports whether this rack keeps the state of an owner's chunks, too.
func (p *Place) isBuddyOf(owner int) bool { return p.Buddies && p.Buddy(owner) == p.Rack }

// StateBytes bounds the memory of so many bytes of parameters with so many arrays each, in a rack that keeps the state of its own
// chunks and of the owner's whose buddy it is, and only the parameters of others. Owners differ by at most one chunk in each lane.
func (p *Place) StateBytes(bytes int64, arrays, lanes, chunkBytes int) int64 {
	kept, owners := int64(0), int64(0)
	for _, o := range p.Owners() {
		owners++
		if o == p.Rack || p.isBuddyOf(o) {
			kept++
		}
	}
	states := bytes*kept/owners + kept*int64(lanes)*2*int64(chunkBytes)
	return bytes + min(states, bytes)*int64(arrays-1)
}

// First returns the rank in the whole job of a rack's first worker.
func (p *Place) First(rack int) (n int) {
	for _, w := range p.Workers[:rack] {
		n += w
	}
	return n
}

// RootWorker returns the root of broadcasts, whose values they take, by its rank in this rack, or -1 if it is in another rack. It
// is worker 0 of the job, which is in rack 0, whichever rack owns the chunk.
func (p *Place) RootWorker() int {
	if p.Rack == 0 {
		return 0
	}
	return failure.NoRank
}

// NextOwner returns a function that deals a lane's chunks to their owners, one at each call, in the plan's order.
func (p *Place) NextOwner(lane int) store.NextOwner {
	dealer := p.NewDealer(lane)
	return func(elems uint64) (rack uint8, kept bool) {
		r := dealer.Next(elems)
		return uint8(r), r == p.Rack || p.isBuddyOf(r)
	}
}
