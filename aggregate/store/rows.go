package store

import (
	"unsafe"

	"github.com/rackweave/rackweave/aggregate/optim"
	"github.com/rackweave/rackweave/cgo/kernel"
	"github.com/rackweave/rackweave/codec"
)

// Rows is the part of a sparse tensor in a lane: the rows of its chunks there, numbered in the chunks' order.
type Rows struct {
	First, Chunks uint32             // its chunks in the lane
	Count         uint32             // of the rows
	Sources       []kernel.RowSource // by rank: the message under way
	Outs          []uint64           // if any, the blocks that get the results: addresses behind their headers
	Counts        RowCounts
	kernel        kernel.Rows
	sumCap        uint32 // of a job in several racks: rows of a block of sums
}

// RowCounts counts a sparse tensor's gradients since the job began.
type RowCounts struct {
	Steps  uint64 // steps whose last row has been merged
	Listed uint64 // rows that the workers have sent
	Bytes  uint64 // bytes of the messages that listed them
}

// Heat returns, by the tensor's chunks, the rows that were merged so far.
func (r *Rows) Heat() []uint64 { return unsafe.Slice((*uint64)(Address(r.kernel.Heat)), r.Chunks) }

// MergeMost is the number of rows that one merge covers at most, so that other jobs' chunks do not wait.
const MergeMost = 1 << 16

// EndBlock writes an empty last block of results, and returns its length.
func (r *Rows) EndBlock(addr uint64) int {
	codec.Rows{To: r.Count, Kind: codec.RowsBlock}.Append(Bytes(addr, codec.RowsHeader)[:0])
	return codec.RowsHeader
}

// Results returns the number of rows in the block of results under way.
func (r *Rows) Results() uint32 { return r.kernel.Count }

// BlockRows returns the most rows in a block of results.
func (r *Rows) BlockRows() uint32 { return r.kernel.Cap }

// BlockBytes returns the length of a block with that many rows.
func (t *Tensor) BlockBytes(rows uint32) int {
	if rows == 0 {
		return codec.RowsHeader
	}
	return codec.RowsHeader + 4*int(t.Rows.kernel.Cap) + int(rows)*t.RowBytes()
}

// layRows describes the rows of a sparse tensor's chunks. It takes memory at offset, and returns the offset behind that.
func (t *Tensor) layRows(chunks []Chunk, first uint32, chunkBytes int, offset uint64, racks bool) uint64 {
	r := &Rows{First: first, Chunks: uint32(len(chunks))}
	k := &r.kernel
	for i := range chunks {
		r.Count += chunks[i].Elems / t.Width
	}
	k.Rows, k.PerChunk, k.Width = r.Count, chunks[0].Elems/t.Width, t.Width
	k.Base, k.Touched = chunks[0].Addr, offset
	if len(chunks) > 1 {
		k.Pitch = chunks[1].Addr - chunks[0].Addr
	}
	if t.Standard {
		k.Standard = 1
	}
	k.SrcType, k.OutType = uint8(t.Wire), uint8(t.Wire)
	if racks {
		k.SrcType = kernel.F32
		r.sumCap = uint32(codec.BlockRows(2*chunkBytes, 4*int(t.Width)))
	}
	k.Cap = uint32(codec.BlockRows(chunkBytes, t.RowBytes()))
	t.Rows = r
	k.Heat = offset + 8*((uint64(r.Count)+63)/64)
	return (k.Heat + 8*uint64(r.Chunks) + 63) &^ 63
}

// place moves the tensor's memory to an address.
func (r *Rows) place(at uint64, arrays int) {
	r.kernel.Touched += at
	r.kernel.Heat += at
	if r.kernel.Base += at; arrays == 0 {
		r.kernel.Base, r.kernel.Pitch = 0, 0
	}
}

// RowBytes returns the length of a sparse tensor's row on the wire.
func (t *Tensor) RowBytes() int { return int(t.Width) * t.Wire.Size() }

// RowsStep prepares the merges of the next step of a sparse tensor, by the job's rule.
func (s *Store) RowsStep(t *Tensor) {
	s.rowsStep(t, t.multiplied(t.Hyper, 1, s.Scale))
}

// RowsStepOne prepares the merges of one worker's gradients, as [Arithmetic.StepOne] does.
func (s *Store) RowsStepOne(t *Tensor, h *optim.Hyper, factor float64, workers int) {
	s.rowsStep(t, t.multiplied(*h, factor, float64(workers)))
}

func (s *Store) rowsStep(t *Tensor, h optim.Hyper) {
	k := &t.Rows.kernel
	k.What, k.Rule = kernel.UpdateRows, uint8(s.Rule)
	k.Scalar = optim.Derive(s.Rule, h, s.Chunks[t.Rows.First].Updates+1)
}

// RowsSum prepares the merges of a step that only sums.
func (s *Store) RowsSum(t *Tensor) {
	k := &t.Rows.kernel
	k.What = kernel.SumRows
	if s.Sum != nil {
		k.Scalar = *s.Sum
	} else {
		k.Scalar = optim.Derive(optim.Sum, optim.Hyper{Scale: 1}, 1)
	}
}

// RowsAccumulate prepares merges into accumulators.
func (s *Store) RowsAccumulate(t *Tensor) {
	k := &t.Rows.kernel
	k.What, k.Accumulator = kernel.AccumulateRows, uint8(1+s.States)
}

// RowsMerged records the end of a step of a sparse tensor, after its last row. parity is that of the commit that will take what was
// accumulated.
func (k *Arithmetic) RowsMerged(s *Store, t *Tensor, parity uint8) {
	t.Rows.Counts.Steps++
	chunks, what := s.Chunks[t.Rows.First:][:t.Rows.Chunks], t.Rows.kernel.What
	for i := range chunks {
		switch what {
		case kernel.UpdateRows:
			chunks[i].Updates++
			s.Updated(&chunks[i])
		case kernel.AccumulateRows:
			chunks[i].Dirty = true
		}
	}
	if what == kernel.AccumulateRows {
		k.measureRows(s, t, parity)
	}
}

// RowsReplaced records that the owner's results of all rows of a step are the parameters.
func (s *Store) RowsReplaced(t *Tensor) {
	chunks := s.Chunks[t.Rows.First:][:t.Rows.Chunks]
	for i := range chunks {
		chunks[i].Updates++
		s.Updated(&chunks[i])
	}
}

// Source returns a gradient message to merge, whose header is a copy.
func (t *Tensor) Source(h codec.Rows, payload uint64) kernel.RowSource {
	src := kernel.RowSource{Count: h.Count, From: h.From, To: h.To}
	src.IDs, src.Rows = payload+codec.RowsHeader, payload+uint64(h.Offset())
	if h.Bitmap {
		src.Form = 1
	}
	src.Begin()
	return src
}

// MergeRows merges rows [from, to) of the messages. A block, if its address is not 0, takes the results behind those of the merges
// before, unless it is new. MergeRows returns the end of the merged rows, and whether the block is complete: its header is there
// then. If a message does not list what its header says, wrong is its index; otherwise it is negative.
func (k *Arithmetic) MergeRows(t *Tensor, src []kernel.RowSource, from, to uint32, block uint64, fresh bool) (reached uint32,
	full bool, wrong int) {
	r := t.Rows
	of := &r.kernel
	if of.Block = 0; block != 0 {
		of.Block = block + codec.RowsHeader
	}
	if fresh {
		of.Count = 0
	}
	reached, wrong = of.Merge(k.ISA, src, r.Outs, from, to)
	full = block != 0 && (reached == r.Count || of.Count == of.Cap)
	if full || len(r.Outs) > 0 {
		h := codec.Rows{To: reached, Count: of.Count, Kind: codec.RowsBlock}
		h.Append(Bytes(block, codec.RowsHeader)[:0])
	}
	for _, out := range r.Outs { // complete after every merge, because the next one may not reach them
		n := codec.RowsHeader + 4*int(of.Count)
		copy(Bytes(out-codec.RowsHeader, n), Bytes(block, n))
	}
	return reached, full, wrong
}

// GatherRows writes the parameters of the rows whose numbers lie at ids to out, in the wire's type. If a number is not that of a
// row, wrong is its index; otherwise it is negative.
func (k *Arithmetic) GatherRows(t *Tensor, ids uint64, count uint32, out uint64) (wrong int) {
	return t.Rows.kernel.Gather(k.ISA, ids, count, out, uint8(t.Wire))
}

// measureRows sets the squared norm of a sparse tensor's accumulated gradient in the lane, for the commit of this parity.
func (k *Arithmetic) measureRows(s *Store, t *Tensor, parity uint8) {
	of := &t.Rows.kernel
	of.What, of.SumSq = kernel.MeasureRows, 0
	of.Apply(k.ISA, 0, t.Rows.Count)
	s.Chunks[t.Rows.First].Norms.Gradient[parity] = of.SumSq
}

// ApplyRows updates the rows of one of a sparse tensor's chunks with their accumulated gradients, and drops the gradients.
func (k *Arithmetic) ApplyRows(s *Store, t *Tensor, chunk uint32, d *Commit) {
	of, c := &t.Rows.kernel, &s.Chunks[t.Rows.First+chunk]
	c.Norms.Gradient[(d.epoch+1)&1] = 0
	if !c.Dirty {
		return
	}
	c.Dirty = false
	of.What = kernel.DropRows
	if !d.Skip {
		c.Updates++
		t.derive(s, d.hyper(s, t), c.Updates)
		of.What, of.Rule, of.Scalar = kernel.ApplyRows, uint8(s.Rule), t.scalars
	}
	from := chunk * of.PerChunk
	of.Apply(k.ISA, from, min(from+of.PerChunk, of.Rows))
	s.Updated(c)
}
