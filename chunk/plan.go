package chunk

import (
	"errors"
	"fmt"
	"math"
	"math/bits"
	"slices"
	"strings"
)

const (
	DefaultChunkBytes = 32 << 10
	MinChunkBytes     = 4 << 10
	MaxChunkBytes     = 4 << 20
	MaxLanes          = 1 << 10
	// MaxLaneChunks is the largest number of chunks in a lane. The highest bit of their indexes is reserved, and is 0.
	MaxLaneChunks = 1 << (IndexBits - 1)
)

// ErrInvalid is wrapped by every error of [NewPlan] and [Plan.Add].
var ErrInvalid = errors.New("invalid plan")

func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrInvalid, fmt.Sprintf(format, args...))
}

// RowBytes is the number of bytes that a message of rows carries beside one row: a header of 16, and the row's number.
const RowBytes = 16 + 4

// Tensor is one parameter of a model, and its type on the wire. Width is the number of elements in a row of a sparse tensor, and 0
// for a dense one. Chunks of a sparse tensor are whole rows, and stay in their lanes.
//
// Touches, if not nil, holds the number of rows of each chunk of a sparse tensor that a step is expected to touch, in a unit common
// to the plan's tensors. They decide alone where [Plan.Add] places its chunks. The plan does not keep them.
type Tensor struct {
	Name    string
	Elems   uint64
	DType   DType
	Width   uint32
	Touches []float32
}

// Lane is a (NIC, core) pair. Weight is the NIC's link speed, equal on all its lanes and in one unit for all NICs (Mb/s). If all
// lanes leave it 0, the NICs are equal. Load is the bytes of other plans' chunks in the lane. It is not part of the plan's hash,
// because an end that follows another's plan need not know it.
type Lane struct {
	NIC, Core int
	Weight    uint32
	Load      uint64
}

// Config configures a plan. ChunkBytes is a power of two. If 0, it is [DefaultChunkBytes].
type Config struct {
	ChunkBytes int
	Lanes      []Lane
}

// Chunk is a run of elements of one tensor, and its place.
type Chunk struct {
	Tensor    int    // index of the tensor in the plan
	Offset    uint64 // position of the first element within the tensor, in elements
	Elems     int
	Lane      int
	LaneIndex int // position among the chunks of the lane, which is the index in the immediate
}

// LaneTensor is a tensor's share of a lane. Its chunks are neighbours there, with the lane indices [First, First+Chunks).
type LaneTensor struct {
	Tensor, First, Chunks uint32
}

// Plan is a model cut into chunks, placed on lanes. Chunks and tensors are numbered from 0 in the order in which they were added.
type Plan struct {
	chunkBytes int
	lanes      []laneState
	nics       []nicState
	tensors    []tensorState
	byName     map[string]int
	chunks     []placement
}

type laneState struct {
	Lane
	nic          int // index of the plan's
	chunks       []uint32
	tensors      []LaneTensor
	elems, bytes uint64
	apart        uint64  // bytes of the chunks that were placed by their touches, which bytes leaves out
	touched      float64 // expected bytes of these chunks' rows in a step
}

type tensorState struct {
	Tensor
	first int // number of its first chunk
}

// placement is small because a plan has millions of them.
type placement struct {
	tensor, laneIndex uint32
	lane              uint16
}

// NewPlan makes a plan without tensors.
func NewPlan(c Config) (*Plan, error) {
	if c.ChunkBytes == 0 {
		c.ChunkBytes = DefaultChunkBytes
	}
	if c.ChunkBytes < MinChunkBytes || c.ChunkBytes > MaxChunkBytes || bits.OnesCount(uint(c.ChunkBytes)) != 1 {
		return nil, invalid("chunk size of %d bytes: use a power of two from %d to %d", c.ChunkBytes, MinChunkBytes, MaxChunkBytes)
	}
	nics, err := groupByNIC(c.Lanes)
	if err != nil {
		return nil, err
	}
	p := &Plan{chunkBytes: c.ChunkBytes, nics: nics, byName: map[string]int{}}
	p.lanes = make([]laneState, len(c.Lanes))
	for n := range nics {
		for _, l := range nics[n].lanes {
			p.lanes[l] = laneState{Lane: c.Lanes[l], nic: n}
		}
	}
	return p, nil
}

// Add appends tensors and places their chunks. After an error the plan is unchanged.
func (p *Plan) Add(batch []Tensor) error {
	var lanes []int
	return p.add(batch, nil, func(t *Tensor, n int, bytes uint64) (int, error) {
		switch {
		case t.Touches == nil:
			return p.lightest(bytes), nil
		case n == 0:
			lanes = p.leastTouched(t)
		}
		return lanes[n], nil
	})
}

// Follow appends tensors whose chunks another end has placed on these lanes. After an error the plan is unchanged.
func (p *Plan) Follow(batch []Tensor, lanes []uint32) error {
	next, want := 0, uint64(len(lanes))
	return p.add(batch, &want, func(_ *Tensor, _ int, bytes uint64) (int, error) {
		n := lanes[next]
		if next++; n >= uint32(len(p.lanes)) {
			return 0, invalid("chunk %d is placed on lane %d of %d", len(p.chunks), n, len(p.lanes))
		}
		p.charge(int(n), bytes)
		return int(n), nil
	})
}

// placer puts a tensor's n-th chunk, of so many bytes, on a lane, and charges it.
type placer func(t *Tensor, n int, bytes uint64) (lane int, err error)

// add appends tensors, of want chunks unless want is nil.
func (p *Plan) add(batch []Tensor, want *uint64, place placer) (err error) {
	// Saving the headers of the other slices is enough, because the next add overwrites elements past a saved length.
	saved, added := *p, 0
	p.lanes, p.nics = slices.Clone(p.lanes), slices.Clone(p.nics)
	defer func() {
		if err == nil {
			return
		}
		*p = saved
		for _, t := range batch[:added] {
			delete(p.byName, t.Name)
		}
	}()
	room := uint64(len(p.lanes))*MaxLaneChunks - uint64(len(p.chunks))
	var chunks uint64
	for i, t := range batch {
		if err := p.check(t); err != nil {
			return err
		}
		chunks += (t.Elems-1)/t.PerChunk(p.chunkBytes) + 1
		if chunks > room {
			return invalid("tensor %q of %d elements: the model has more chunks of %d bytes than %d lanes can number (%d each): %s",
				t.Name, t.Elems, p.chunkBytes, len(p.lanes), MaxLaneChunks, remedyTooMany)
		}
		p.byName[t.Name] = len(p.tensors) + i
		added++
	}
	if want != nil && chunks != *want {
		return invalid("%d tensors of %d chunks, placed on %d lanes: one lane for each chunk", len(batch), chunks, *want)
	}
	p.tensors = slices.Grow(p.tensors, len(batch))
	p.chunks = slices.Grow(p.chunks, int(chunks))
	for _, t := range batch {
		if err := p.place(t, place); err != nil {
			return err
		}
	}
	return nil
}

const remedyTooMany = "raise the chunk size or use more lanes"

func (p *Plan) check(t Tensor) error {
	if t.Name == "" {
		return invalid("a tensor of %d elements has no name", t.Elems)
	}
	if _, dup := p.byName[t.Name]; dup {
		return invalid("tensor %q is there twice: give each tensor a name of its own", t.Name)
	}
	if t.DType.Size() == 0 {
		return invalid("tensor %q has %v: use f32, bf16 or f16", t.Name, t.DType)
	}
	if t.Elems == 0 {
		return invalid("tensor %q has no elements: leave it out", t.Name)
	}
	if t.Width == 0 {
		if t.Touches != nil {
			return invalid("dense tensor %q has touches of its chunks: leave them out, or declare it sparse", t.Name)
		}
		return nil
	}
	row := uint64(t.Width) * uint64(t.DType.Size())
	switch {
	case row+RowBytes > uint64(p.chunkBytes):
		return invalid("sparse tensor %q: rows of %d bytes and %d more do not fit a chunk of %d: use larger chunks or narrower rows",
			t.Name, row, RowBytes, p.chunkBytes)
	case t.Elems%uint64(t.Width) != 0:
		return invalid("sparse tensor %q of %d elements has rows of %d: use a multiple of that", t.Name, t.Elems, t.Width)
	case t.Elems/uint64(t.Width) > math.MaxUint32:
		return invalid("sparse tensor %q has %d rows: use at most %d", t.Name, t.Elems/uint64(t.Width), uint32(math.MaxUint32))
	}
	if n := (t.Elems-1)/t.PerChunk(p.chunkBytes) + 1; t.Touches != nil && uint64(len(t.Touches)) != n {
		return invalid("sparse tensor %q has touches of %d chunks, and %d chunks: give one number for each", t.Name, len(t.Touches), n)
	}
	for i, n := range t.Touches {
		if !(n >= 0 && n <= math.MaxFloat32) {
			return invalid("sparse tensor %q: chunk %d is touched %v times: use finite numbers of at least 0", t.Name, i, n)
		}
	}
	return nil
}

// place cuts a checked tensor into chunks and puts each one on the lane that choose returns.
func (p *Plan) place(t Tensor, choose placer) error {
	tensor, first := uint32(len(p.tensors)), len(p.chunks)
	p.tensors = append(p.tensors, tensorState{t, first})
	p.tensors[tensor].Touches = nil
	perChunk, size := t.PerChunk(p.chunkBytes), uint64(t.DType.Size())
	for left := t.Elems; left > 0; {
		elems := min(left, perChunk)
		left -= elems
		n, err := choose(&t, len(p.chunks)-first, elems*size)
		if err != nil {
			return fmt.Errorf("tensor %q: %w", t.Name, err)
		}
		l := &p.lanes[n]
		index := uint32(len(l.chunks))
		if index == MaxLaneChunks {
			return invalid("tensor %q: lane %d (NIC %d, core %d) already has the %d chunks of %d bytes that an immediate can number: %s",
				t.Name, n, l.NIC, l.Core, MaxLaneChunks, p.chunkBytes, remedyTooMany)
		}
		l.chunks = append(l.chunks, uint32(len(p.chunks)))
		l.elems += elems
		if k := len(l.tensors); k > 0 && l.tensors[k-1].Tensor == tensor {
			l.tensors[k-1].Chunks++
		} else {
			l.tensors = append(l.tensors, LaneTensor{tensor, index, 1})
		}
		p.chunks = append(p.chunks, placement{tensor, index, uint16(n)})
	}
	return nil
}

// PerChunk returns the number of elements in a full chunk, or 0 if a row does not fit in a chunk.
func (t *Tensor) PerChunk(chunkBytes int) uint64 {
	n := uint64(chunkBytes / t.DType.Size())
	if t.Width > 0 {
		n -= n % uint64(t.Width)
	}
	return n
}

// ChunkBytes returns the size of a full chunk on the wire.
func (p *Plan) ChunkBytes() int { return p.chunkBytes }

// NumChunks returns the number of placed chunks.
func (p *Plan) NumChunks() int { return len(p.chunks) }

// Chunk returns a chunk by its number.
func (p *Plan) Chunk(id int) Chunk {
	at := p.chunks[id]
	t := &p.tensors[at.tensor]
	perChunk := t.PerChunk(p.chunkBytes)
	offset := uint64(id-t.first) * perChunk
	return Chunk{int(at.tensor), offset, int(min(perChunk, t.Elems-offset)), int(at.lane), int(at.laneIndex)}
}

// NumTensors returns the number of tensors.
func (p *Plan) NumTensors() int { return len(p.tensors) }

// Tensor returns a tensor by its number.
func (p *Plan) Tensor(t int) Tensor { return p.tensors[t].Tensor }

// Lookup returns the number of the tensor with a name.
func (p *Plan) Lookup(name string) (t int, ok bool) {
	t, ok = p.byName[name]
	return t, ok
}

// TensorChunks returns the range [first, end) of a tensor's chunk numbers, in the order of its elements.
func (p *Plan) TensorChunks(t int) (first, end int) {
	if t+1 < len(p.tensors) {
		return p.tensors[t].first, p.tensors[t+1].first
	}
	return p.tensors[t].first, len(p.chunks)
}

// NumLanes returns the number of lanes.
func (p *Plan) NumLanes() int { return len(p.lanes) }

// LaneChunks returns the numbers of a lane's chunks. The position is the chunk's lane index. The slice belongs to the plan.
func (p *Plan) LaneChunks(l int) []uint32 { return slices.Clip(p.lanes[l].chunks) }

// LaneTensors returns the tensors with chunks on a lane, in the plan's order. The position is the lane-local tensor index of
// [OpTensor]. The slice belongs to the plan.
func (p *Plan) LaneTensors(l int) []LaneTensor { return slices.Clip(p.lanes[l].tensors) }

// LaneTensor returns a tensor's share of a lane and its lane-local index. ok is false if the lane has no chunk of it.
func (p *Plan) LaneTensor(l, t int) (index int, share LaneTensor, ok bool) {
	ts := p.lanes[l].tensors
	i, ok := slices.BinarySearchFunc(ts, t, func(lt LaneTensor, t int) int { return int(lt.Tensor) - t })
	if !ok {
		return 0, LaneTensor{}, false
	}
	return i, ts[i], true
}

// RowsPerChunk returns the number of rows in a full chunk of a sparse tensor, and 0 for a dense one.
func (p *Plan) RowsPerChunk(t int) uint32 {
	if ts := &p.tensors[t]; ts.Width > 0 {
		return uint32(ts.PerChunk(p.chunkBytes) / uint64(ts.Width))
	}
	return 0
}

// LaneRows returns the number of a sparse tensor's rows in a lane.
func (p *Plan) LaneRows(l, t int) (rows uint32) {
	if _, share, ok := p.LaneTensor(l, t); ok && p.tensors[t].Width > 0 {
		for _, id := range p.LaneChunks(l)[share.First:][:share.Chunks] {
			rows += uint32(p.Chunk(int(id)).Elems) / p.tensors[t].Width
		}
	}
	return rows
}

// LaneLoad returns a lane's load, in elements and in bytes on the wire.
func (p *Plan) LaneLoad(l int) (elems, bytes uint64) {
	return p.lanes[l].elems, p.lanes[l].bytes + p.lanes[l].apart
}

// String returns the plan as text, for people and golden tests: a header, a line for each lane with its load, and a line for each
// tensor with its lanes, each with the number of the tensor's chunks there.
func (p *Plan) String() string {
	var b strings.Builder
	var elems, bytes uint64
	for i := range p.lanes {
		e, n := p.LaneLoad(i)
		elems, bytes = elems+e, bytes+n
	}
	fmt.Fprintf(&b, "plan: chunk_bytes %d, nics %d, lanes %d, tensors %d, chunks %d, elems %d, bytes %d\n",
		p.chunkBytes, len(p.nics), len(p.lanes), len(p.tensors), len(p.chunks), elems, bytes)
	for i := range p.lanes {
		l := &p.lanes[i]
		fmt.Fprintf(&b, "lane %d: nic %d, core %d, weight %d, tensors %d, chunks %d, elems %d, bytes %d\n",
			i, l.NIC, l.Core, l.Weight, len(l.tensors), len(l.chunks), l.elems, l.bytes+l.apart)
	}
	for i := range p.tensors {
		t := &p.tensors[i]
		first, end := p.TensorChunks(i)
		fmt.Fprintf(&b, "tensor %d: %q %v, elems %d, ", i, t.Name, t.DType, t.Elems)
		if t.Width > 0 {
			fmt.Fprintf(&b, "width %d, ", t.Width)
		}
		fmt.Fprintf(&b, "chunks %d, lanes", end-first)
		for l := range p.lanes {
			if _, share, ok := p.LaneTensor(l, i); ok {
				fmt.Fprintf(&b, " %d:%d", l, share.Chunks)
			}
		}
		b.WriteByte('\n')
	}
	return b.String()
}
