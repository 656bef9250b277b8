package aggregate

import (
	"fmt"
	"unsafe"

	"github.com/rackweave/rackweave/aggregate/optim"
	"github.com/rackweave/rackweave/chunk"
)

// storedChunk is what a lane keeps of a chunk between steps.
type storedChunk struct {
	addr    uint64 // f32 parameters, then each state, then the accumulator, stride apart each; 0: the job keeps none
	offset  uint64 // of its first element within its tensor, in bytes on the wire
	elems   uint32
	tensor  uint32   // of the lane
	updates uint32   // optimizer steps so far
	dirty   bool     // two-phase: the accumulator holds gradients since the last commit
	stale   bool     // two-phase over racks: it was pushed since the last commit, so that its parameters will change
	owner   uint8    // the rack that runs its optimizer; the others only have its parameters
	stepped bool     // outer: its parameters have taken the step at which the racks meet
	history *history // nil: owners have no buddies, or it is of other racks
	number  uint32   // in the plan
	away    bool     // another lane has it now
	norms   *norms
}

// storedTensor is a tensor's part in a lane.
type storedTensor struct {
	number         int // in the plan
	name           string
	wire           chunk.DType
	out            chunk.DType // of results: the wire's, unless they are rounded on their way between racks
	lrMult, wdMult float64
	hyper          optim.Hyper
	scalars        optim.Scalars
	scalarsFor     uint32  // the update they were derived for; 0: none
	norms          []norms // of all its chunks, in the plan's order
}

// history is what a rack knows of the past of a chunk whose state it keeps, where owners have buddies. Behind the chunk's arrays
// lie those from before its last change.
//
// A worker begins a step when it has all of the one before, and a buddy makes a chunk's change before its own workers get the
// result. So no chunk is more than one change ahead of what any rack keeps of another, and one change back is enough to find a step
// that is whole.
type history struct {
	changes uint32 // updates and broadcasts since the job began, or since its state was restored, which counts as one
	before  uint32 // the chunk's updates before the last
	undo    bool   // the state before the last change is there
}

// store is one job's parameters and optimizer state in one lane, and the rule that updates them.
type store struct {
	mode    Mode
	sets    bool // mode stream: updates may be of sets, which need accumulators
	rule    optim.Rule
	states  int
	hyper   optim.Hyper    // the job's
	scaled  *optim.Scalars // aggregate-only: of a sum that is scaled or clipped; nil: it is neither
	outer   *outer         // nil: racks meet in every step
	above   *Above         // nil: the rack is alone
	scratch uint64         // room for a chunk's parameters where they are rounded
	chunks  []storedChunk
	tensors []storedTensor
	lkeys   [][]uint32 // by NIC of the engine, by chunk: the key of the region its parameters lie in
	guests  []guest    // by place in the machine
}

// guest is a chunk that has come from another lane. Its parameters stay where they are: it moves within a NUMA node.
type guest struct {
	storedChunk
	lkeys []uint32 // by NIC
}

// stride is the distance in bytes between a chunk's arrays, each in its own cache lines.
func stride(elems uint32) uint64 { return (uint64(elems)*4 + 63) &^ 63 }

// arrays is how many f32 arrays the store keeps for each parameter of a chunk whose state it keeps, or of another.
func (s *store) arrays(kept bool) int {
	switch {
	case s.mode == Aggregate:
		return 0
	case s.outer != nil:
		return 2 + s.states + s.outer.arrays(kept)
	case !kept:
		return 1
	case s.above != nil && s.above.Buddies:
		return 2 * (1 + s.states)
	case s.mode == TwoPhase, s.mode == Stream && s.sets:
		return 2 + s.states
	}
	return 1 + s.states
}

// rounds reports whether what workers get of parameters is rounded once more than the wire's type asks.
func (s *store) rounds() bool { return s.above != nil && s.above.core() != uint8(chunk.F32) }

func (s *store) wireBytes(c *storedChunk) int { return int(c.elems) * s.tensors[c.tensor].wire.Size() }

// direct reports whether answers lie in the parameters: they do when the wire carries f32, as no worker pushes a chunk again
// before it has the answer. In stream mode they never do: another worker may push it meanwhile.
func (s *store) direct(wire chunk.DType) bool {
	return s.mode != Aggregate && s.mode != Stream && wire == chunk.F32 && !s.rounds()
}

func (s *store) array(c *storedChunk, i int) uint64 { return c.addr + uint64(i)*stride(c.elems) }

func (s *store) accumulator(c *storedChunk) uint64 { return s.array(c, 1+s.states) }

// values is one of a chunk's arrays as Go sees it.
func (s *store) values(c *storedChunk, i int) []float32 {
	return unsafe.Slice((*float32)(address(s.array(c, i))), c.elems)
}

// ordinal returns the i-th chunk, the plan's before guests; nil: the lane does not have it now.
func (s *store) ordinal(i uint32) *storedChunk {
	c := (*storedChunk)(nil)
	if n := uint32(len(s.chunks)); i < n {
		c = &s.chunks[i]
	} else if i -= n; i < uint32(len(s.guests)) {
		c = &s.guests[i].storedChunk
	}
	if c == nil || c.away {
		return nil
	}
	return c
}

// checkHyper tells whether live hyper-parameters can be used: they must not need more state than the job was made with.
func (s *store) checkHyper(h optim.Hyper) error {
	if err := s.rule.Check(h); err != nil {
		return err
	}
	if n := s.rule.States(h); n > s.states {
		return fmt.Errorf("%v with momentum %v needs %d state arrays, the job was made with %d: make it with a momentum", s.rule,
			h.Momentum, n, s.states)
	}
	return nil
}

// addition is what one AddTensors brings to a lane. Its chunks count tensors from its own first.
type addition struct {
	tensors []storedTensor
	chunks  []storedChunk
	lkeys   [][]uint32
}

// layOut plans a lane's part of the plan's tensors from number first on, and allocates it. norms are those of the same tensors'
// chunks, in the plan's order.
func (s *store) layOut(plan *chunk.Plan, lane, node, first int, specs []TensorSpec, norms []norms, mem *memory,
	owners *owners) (*addition, error) {
	a := &addition{}
	firstChunk, _ := plan.TensorChunks(first)
	var bytes uint64
	ids := plan.LaneChunks(lane)
	for _, lt := range plan.LaneTensors(lane) {
		number := int(lt.Tensor)
		if number < first {
			continue
		}
		t, spec := plan.Tensor(number), specs[number-first]
		from, end := plan.TensorChunks(number)
		a.tensors = append(a.tensors, storedTensor{
			number: number, name: t.Name, wire: t.DType, out: s.above.result(t.DType), lrMult: spec.LRMult, wdMult: spec.WDMult,
			hyper: s.hyper, norms: norms[from-firstChunk : end-firstChunk],
		})
		for i := lt.First; i < lt.First+lt.Chunks; i++ {
			c := plan.Chunk(int(ids[i]))
			owner, kept := owners.next(uint64(c.Elems))
			var h *history
			if kept && s.above != nil && s.above.Buddies {
				h = &history{}
			}
			a.chunks = append(a.chunks, storedChunk{
				owner: owner, history: h, addr: bytes, elems: uint32(c.Elems), tensor: uint32(len(a.tensors) - 1),
				offset: c.Offset * uint64(t.DType.Size()), norms: &norms[int(ids[i])-firstChunk], number: uint32(ids[i]),
			})
			bytes += uint64(s.arrays(kept)) * stride(uint32(c.Elems))
		}
	}
	for range mem.pds {
		a.lkeys = append(a.lkeys, make([]uint32, len(a.chunks)))
	}
	if bytes == 0 {
		for i := range a.chunks {
			a.chunks[i].addr = 0
		}
		return a, nil
	}
	r, offset, err := mem.shelve(lane, node, int64(bytes))
	if err != nil {
		return nil, err
	}
	for i := range a.chunks {
		a.chunks[i].addr += r.addr() + uint64(offset)
		for nic := range a.lkeys {
			a.lkeys[nic][i] = r.mrs[nic].LKey
		}
	}
	return a, nil
}

// add appends an addition.
func (s *store) add(a *addition) {
	for i := range a.chunks {
		a.chunks[i].tensor += uint32(len(s.tensors))
	}
	s.tensors = append(s.tensors, a.tensors...)
	s.chunks = append(s.chunks, a.chunks...)
	if s.lkeys == nil {
		s.lkeys = make([][]uint32, len(a.lkeys))
	}
	for nic := range a.lkeys {
		s.lkeys[nic] = append(s.lkeys[nic], a.lkeys[nic]...)
	}
}

// address turns an address that the transport reported into a pointer. The memory is not Go's. Inlined into a copy, it makes
// the compiler of Go 1.26.8 fail ("disjointTypes: one of arguments is not a pointer").
//
//go:noinline
func address(a uint64) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&a)) }
