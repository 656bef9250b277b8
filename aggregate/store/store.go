package store

import (
	"fmt"
	"sync/atomic"
	"unsafe"

	"github.com/rackweave/rackweave/aggregate/optim"
	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/codec"
)

// Chunk is a chunk's state in a lane between steps.
type Chunk struct {
	Addr    uint64  // of its arrays, each a stride apart; 0 if the job does not keep arrays
	Region  *Region // that the arrays lie in, or nil
	Offset  uint64  // of its first element within its tensor, in bytes on the wire
	Elems   uint32
	Tensor  uint32   // of the lane
	Updates uint32   // optimizer steps so far, whichever rack made them
	Dirty   bool     // the accumulator holds gradients
	Stale   bool     // two-phase over racks: gradients were pushed since the last commit, so the next one changes its parameters
	Owner   uint8    // the rack that runs its optimizer
	Stepped bool     // racks that train apart: its parameters have taken the step at which the racks meet
	History *History // of a chunk whose state an owner and its buddy keep; otherwise nil
	Number  uint32   // its number in the plan
	// Kept is the address, where answers are compressed, of the reference that they are changes of, or in mode aggregate of their
	// residual, in f32; otherwise 0.
	Kept    uint64
	Answers uint32 // answers that were encoded so far
	Anew    bool   // the next answer makes the parameters the reference: it is the first one, or they were replaced
	Apart   bool   // some workers here lack the reference: they did not pull the last answer
	// Core is the address, where codecs shorten what crosses between racks, of the residual or reference that they keep, in f32;
	// otherwise 0.
	Core      uint64
	Refers    bool    // Core is the reference: what the other racks have of a chunk that this one owns
	CoreSteps uint32  // sums or results that were encoded
	CoreRate  float32 // the learning rate times the scale of the gradient that left the residual; 0 before the first
	Norms     *Norms
	Round     Round
	Copy      uint64 // the address for its copy, in f32, that a capture awaits; 0 if it was copied
}

// Round is a chunk's last round of racks that train apart, where the next one follows from how far they have drifted.
type Round struct {
	Interval uint32 // steps from it to the next
	Due      uint32 // the update at which the next one is due; 0 in the first interval: the next update
	// Distance is the mean over the workers of the squared distance between their rack's parameters and those of the round before,
	// whose squared length is Length.
	Distance, Length float32
	Part             float32 // of the sum under way: the racks' squared distances in it, each times its workers
}

// Tensor is the part of a tensor in a lane.
type Tensor struct {
	Number         int // its number in the plan
	Name           string
	Wire           chunk.DType
	Result         chunk.DType // type of results: Wire, unless they are rounded on their way between racks
	LRMult, WDMult float64
	Width          uint32 // elements in a row of a sparse tensor, or 0
	Rows           *Rows  // of a sparse tensor; otherwise nil
	Standard       bool   // a sparse tensor's rows without a gradient take the rule with a gradient of 0
	Hyper          optim.Hyper
	Flush          bool // codecs keep nothing of the gradient under way, and of its result
	scalars        optim.Scalars
	scalarsFor     uint32      // the update for which scalars were derived; 0 before the first
	scalarsOf      optim.Hyper // what they were derived from
	norms          []Norms     // of all its chunks, in the plan's order
}

// multiplied returns hyper-parameters with the tensor's multipliers, and with factors of the learning rate and the scale.
func (t *Tensor) multiplied(h optim.Hyper, rate, scale float64) optim.Hyper {
	h.LR *= t.LRMult * rate
	h.WD *= t.WDMult
	h.Scale *= scale
	return h
}

// Norms are the squared norms of one chunk, for the commit of a two-phase step.
type Norms struct {
	Gradient    [2]float64 // of its accumulated gradient, by the parity of the commit that it is for
	Param, Step float64    // of its parameters and of its step, for LAMB
}

// History records the past of a chunk whose state an owner and its buddy keep. Behind the chunk's arrays lie the arrays from before
// its last change.
//
// A chunk's next change needs a gradient of every worker of every rack. A worker sends it only when it has all of the step before,
// and a buddy makes a chunk's change before its own workers get the result. So when the owner makes change n+1, the buddy has made
// change n: no chunk is more than one change ahead of another rack's copy, and one change back is enough to find a whole step.
type History struct {
	Changes uint32 // updates and broadcasts since the job began, or since its state was restored, which counts as one change
	Before  uint32 // the chunk's updates before the last change
	Undo    bool   // the state before the last change is kept
}

// Config describes the parameters of a store, and the rule that updates them.
type Config struct {
	Rule   optim.Rule
	Hyper  optim.Hyper // the job's
	States int         // f32 arrays that the rule keeps
	// Arrays is the number of f32 arrays of a chunk whose optimizer state this rack does not keep, and of a chunk whose state it
	// keeps.
	Arrays [2]int
	// Sum scales and clips sums. If nil, sums are unchanged.
	Sum *optim.Scalars
	// Scale multiplies the scale of gradients.
	Scale float64
	// Core is the type in which results cross between racks: F32 or BF16.
	Core chunk.DType
	// CodesCore reports that codecs shorten what crosses between racks.
	CodesCore bool
	// Codecs are those of the gradients and the answers.
	Codecs codec.Pair
	// Candidates are the codecs from which a controller chooses those of the gradients.
	Candidates []codec.Spec
	// Direct reports that answers lie in the parameters where the wire carries f32. A worker then pushes a chunk again only after it
	// has the answer.
	Direct bool
	// History reports that owners and buddies also keep each chunk as it was one change back.
	History bool
}

// Store is one job's parameters and optimizer state in one lane.
type Store struct {
	Config
	Chunks  []Chunk
	Tensors []Tensor
	Lane    int // in the plan
	Index   int // of the lane in the engine
	Node    int // of the lane's memory
	Memory  *Memory
	// NextOwner deals the chunks that are laid out. If nil, the job runs in one rack.
	NextOwner NextOwner
	TempChunk uint64 // address of room for a chunk in f32, during a call; 0 if the job runs in one rack
	// Replaced is set while the state of a job that keeps history is replaced in part, until the job makes a step.
	Replaced *atomic.Bool

	capture *Capture // under way; otherwise nil
}

// Stride returns the distance in bytes between a chunk's arrays, each in its own cache lines.
func Stride(elems uint32) uint64 { return (uint64(elems)*4 + 63) &^ 63 }

// WireBytes returns the length of a chunk on the wire.
func (s *Store) WireBytes(c *Chunk) int { return int(c.Elems) * s.Tensors[c.Tensor].Wire.Size() }

// DirectFor reports whether answers in a wire type lie in the parameters.
func (s *Store) DirectFor(wire chunk.DType) bool { return s.Direct && wire == chunk.F32 }

// Array returns the address of a chunk's i-th array.
func (s *Store) Array(c *Chunk, i int) uint64 { return c.Addr + uint64(i)*Stride(c.Elems) }

// Accumulator returns the address of a chunk's accumulator.
func (s *Store) Accumulator(c *Chunk) uint64 { return s.Array(c, 1+s.States) }

// Values returns a chunk's i-th array as a Go slice.
func (s *Store) Values(c *Chunk, i int) []float32 { return Floats(s.Array(c, i), c.Elems) }

// Floats returns n floats at an address outside Go's memory.
func Floats(addr uint64, n uint32) []float32 { return unsafe.Slice((*float32)(Address(addr)), n) }

// CheckHyper returns an error if live hyper-parameters need more state than the job was made with.
func (s *Store) CheckHyper(h optim.Hyper) error {
	if err := s.Rule.Check(h); err != nil {
		return err
	}
	if n := s.Rule.States(h); n > s.States {
		return fmt.Errorf("%v with momentum %v needs %d state arrays, the job was made with %d: make it with a momentum", s.Rule,
			h.Momentum, n, s.States)
	}
	return nil
}

// result returns the type in which results of a wire type cross between racks.
func (s *Store) result(wire chunk.DType) chunk.DType {
	if s.Core == chunk.BF16 && wire == chunk.F32 {
		return chunk.BF16
	}
	return wire
}

// Remember copies a chunk's state before its next change, if its history is kept.
func (s *Store) Remember(c *Chunk) {
	h := c.History
	if h == nil {
		return
	}
	arrays := 1 + s.States
	for i := range arrays {
		copy(s.Values(c, arrays+i), s.Values(c, i))
	}
	h.Before, h.Undo = c.Updates, true
	h.Changes++
	if s.Replaced.Load() {
		s.Replaced.Store(false)
	}
}

// Spec describes a tensor beside the plan.
type Spec struct {
	LRMult, WDMult float64
	Standard       bool // as in Tensor
}

// NextOwner deals a lane's next chunk to a rack. It returns the rack that owns the chunk, and whether this rack keeps the chunk's
// optimizer state.
type NextOwner func(elems uint64) (rack uint8, kept bool)

// Addition holds the new tensors of a lane and their chunks. The chunks count tensors from the addition's first.
type Addition struct {
	Tensors []Tensor
	Chunks  []Chunk
	Bytes   int64 // of the chunks on the wire
}

// LayOut plans a lane's part of the plan's tensors from number first on, and allocates its memory. norms holds the norms of the
// tensors' chunks, in the plan's order.
func (s *Store) LayOut(plan *chunk.Plan, first int, specs []Spec, norms []Norms) (*Addition, error) {
	a := &Addition{}
	firstChunk, _ := plan.TensorChunks(first)
	var bytes uint64
	ids := plan.LaneChunks(s.Lane)
	for _, lt := range plan.LaneTensors(s.Lane) {
		number := int(lt.Tensor)
		if number < first {
			continue
		}
		t, spec := plan.Tensor(number), specs[number-first]
		from, end := plan.TensorChunks(number)
		a.Tensors = append(a.Tensors, Tensor{
			Number: number, Name: t.Name, Wire: t.DType, Result: s.result(t.DType), LRMult: spec.LRMult, WDMult: spec.WDMult,
			Width: t.Width, Standard: spec.Standard, Hyper: s.Hyper, norms: norms[from-firstChunk : end-firstChunk],
		})
		owner, kept := uint8(0), true
		for i := lt.First; i < lt.First+lt.Chunks; i++ {
			c := plan.Chunk(int(ids[i]))
			if s.NextOwner != nil && (t.Width == 0 || i == lt.First) {
				n := uint64(c.Elems)
				if t.Width > 0 { // its rows have one owner
					n *= uint64(lt.Chunks)
				}
				owner, kept = s.NextOwner(n)
			}
			var h *History
			arrays := s.Arrays[0]
			if kept {
				arrays = s.Arrays[1]
				if s.History {
					h = &History{}
				}
			}
			a.Chunks = append(a.Chunks, Chunk{
				Owner: owner, History: h, Addr: bytes, Elems: uint32(c.Elems), Tensor: uint32(len(a.Tensors) - 1),
				Offset: c.Offset * uint64(t.DType.Size()), Norms: &norms[int(ids[i])-firstChunk], Number: uint32(ids[i]),
			})
			bytes += uint64(arrays) * Stride(uint32(c.Elems))
			for _, at := range s.codecMemory(&a.Chunks[len(a.Chunks)-1], &a.Tensors[len(a.Tensors)-1]) {
				*at = bytes
				bytes += Stride(uint32(c.Elems))
			}
			a.Bytes += int64(c.Elems * t.DType.Size())
		}
		if t.Width > 0 {
			of := a.Chunks[len(a.Chunks)-int(lt.Chunks):]
			bytes = a.Tensors[len(a.Tensors)-1].layRows(of, lt.First, plan.ChunkBytes(), bytes, s.NextOwner != nil)
		}
	}
	if bytes == 0 {
		return a, nil
	}
	r, offset, err := s.Memory.shelve(s.Index, s.Node, int64(bytes))
	if err != nil {
		return nil, err
	}
	for i := range a.Chunks {
		c, at := &a.Chunks[i], r.Addr()+uint64(offset)
		c.Region = r
		if c.Addr += at; s.Arrays[0] == 0 {
			c.Addr = 0
		}
		for _, kept := range s.codecMemory(c, &a.Tensors[c.Tensor]) {
			*kept += at
		}
		c.Anew = c.Kept != 0
	}
	for i := range a.Tensors {
		if rows := a.Tensors[i].Rows; rows != nil {
			rows.place(r.Addr()+uint64(offset), s.Arrays[0])
		}
	}
	return a, nil
}

// Add appends an addition.
func (s *Store) Add(a *Addition) {
	for i := range a.Chunks {
		a.Chunks[i].Tensor += uint32(len(s.Tensors))
	}
	s.Tensors = append(s.Tensors, a.Tensors...)
	s.Chunks = append(s.Chunks, a.Chunks...)
}

// Restart sets the number of updates of a chunk, after its state was replaced.
func (s *Store) Restart(c *Chunk, updates uint32) {
	s.Overwritten()
	c.Updates = updates
	c.Anew = c.Kept != 0 // the workers have other parameters
	c.Round = Round{}
	if c.Refers {
		copy(Floats(c.Core, c.Elems), s.Values(c, 0)) // all racks were given the state
	}
	if c.History != nil {
		*c.History = History{Changes: 1}
	}
}

// Address converts an address that the transport reported to a pointer. The memory is outside Go's heap. Inlined into a copy, it
// makes the compiler of Go 1.26.8 fail ("disjointTypes: one of arguments is not a pointer").
//
//go:noinline
func Address(a uint64) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&a)) }

// Bytes returns n bytes at an address outside Go's memory.
func Bytes(addr uint64, n int) []byte { return unsafe.Slice((*byte)(Address(addr)), n) }
