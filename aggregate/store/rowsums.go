package store

import (
	"github.com/rackweave/rackweave/aggregate/optim"
	"github.com/rackweave/rackweave/cgo/kernel"
	"github.com/rackweave/rackweave/codec"
)

// Between racks rows travel in blocks, up as sums in f32 and down as results in the wire's type. A block of sums has room for twice
// the bytes of a chunk, and its header has the first row that it covers, too.

// SumBlockBytes returns the length of a block of so many sums.
func (t *Tensor) SumBlockBytes(rows uint32) uint32 {
	if rows == 0 {
		return codec.RowsHeader
	}
	return codec.RowsHeader + 4*t.Rows.sumCap + rows*4*t.Width
}

// source returns a block as a source of rows whose ids have so much room.
func source(h codec.Rows, block uint64, room uint32) kernel.RowSource {
	src := kernel.RowSource{IDs: block + codec.RowsHeader, Count: h.Count, From: h.From, To: h.To}
	src.Rows = src.IDs + 4*uint64(room)
	src.Begin()
	return src
}

// SumSource returns a block of sums as a source of rows.
func (t *Tensor) SumSource(h codec.Rows, block uint64) kernel.RowSource {
	return source(h, block, t.Rows.sumCap)
}

// SumRows adds rows [from, to) of messages whose elements have a type, and writes the sums to a block, behind count others. It
// returns the end of the summed rows, the rows that the block has then, and whether it is complete. If a message does not list what
// its header says, wrong is its index; otherwise it is negative.
func (k *Arithmetic) SumRows(t *Tensor, src []kernel.RowSource, kind uint8, from, to uint32, block uint64,
	count uint32) (reached, listed uint32, full bool, wrong int) {
	k.sums = t.Rows.kernel
	k.sums.What, k.sums.SrcType, k.sums.OutType = kernel.SumRows, kind, kernel.F32
	k.sums.Block, k.sums.Cap, k.sums.Count = block+codec.RowsHeader, t.Rows.sumCap, count
	k.sums.Scalar = optim.Derive(optim.Sum, optim.Hyper{Scale: 1}, 1)
	reached, wrong = k.sums.Merge(k.ISA, src, nil, from, to)
	return reached, k.sums.Count, reached == t.Rows.Count || k.sums.Count == k.sums.Cap, wrong
}

// AccumulateRows adds the sums of rows [from, to) in blocks to the accumulators. They are added to each other first, because no
// shape may change a bit. It returns what [Arithmetic.MergeRows] does.
func (k *Arithmetic) AccumulateRows(s *Store, t *Tensor, src []kernel.RowSource, from, to uint32) (reached uint32, wrong int) {
	s.RowsAccumulate(t)
	reached, n, _, wrong := k.SumRows(t, src, kernel.F32, from, to, s.TempChunk, 0)
	if wrong < 0 {
		k.block[0] = t.SumSource(codec.Rows{From: from, To: reached, Count: n}, s.TempChunk)
		k.MergeRows(t, k.block[:], from, reached, 0, false)
	}
	return reached, wrong
}

// ReplaceRows makes the results in a block the parameters. It reports false if the block does not list what its header says.
func (k *Arithmetic) ReplaceRows(t *Tensor, h codec.Rows, block uint64) (ok bool) {
	of := &t.Rows.kernel
	of.What, of.SrcType, of.Accumulator, of.Block = kernel.AccumulateRows, uint8(t.Wire), 0, 0
	k.block[0] = source(h, block, of.Cap)
	_, wrong := of.Merge(k.ISA, k.block[:], nil, h.From, h.To)
	of.What = kernel.DropRows
	of.Apply(k.ISA, h.From, h.To)
	return wrong < 0
}
