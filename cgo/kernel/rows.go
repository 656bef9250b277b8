package kernel

/*
#include "kernel.h"

#cgo noescape rwk_begin_rows
#cgo nocallback rwk_begin_rows
#cgo noescape rwk_merge_rows
#cgo nocallback rwk_merge_rows
#cgo noescape rwk_apply_rows
#cgo nocallback rwk_apply_rows
#cgo noescape rwk_gather_rows
#cgo nocallback rwk_gather_rows
*/
import "C"

import (
	"fmt"
	"structs"
	"unsafe"
)

// RowSource mirrors struct rwk_row_source. It is a gradient message that covers rows [From, To) of a lane.
type RowSource struct {
	_         structs.HostLayout
	IDs, Rows uint64 // addresses of its ids, and of its rows' elements
	Count     uint32
	at, next  uint32
	From, To  uint32
	Form      uint32
}

// Begin prepares the message to be merged from its first row on.
func (s *RowSource) Begin() {
	s.at = 0
	C.rwk_begin_rows((*C.struct_rwk_row_source)(unsafe.Pointer(s)))
}

// These are the values of Rows.What: what Merge does with sums of rows, and Apply with accumulated ones.
const (
	UpdateRows     = C.RWK_ROWS_UPDATE
	SumRows        = C.RWK_ROWS_SUM
	AccumulateRows = C.RWK_ROWS_ACCUMULATE
	ApplyRows      = C.RWK_ROWS_APPLY
	DropRows       = C.RWK_ROWS_DROP
	MeasureRows    = C.RWK_ROWS_MEASURE
)

// Rows mirrors struct rwk_rows. It describes the rows of a sparse tensor in a lane, and what to do with them.
type Rows struct {
	_               structs.HostLayout
	Base, Pitch     uint64 // of the first chunk's arrays, and from a chunk's to the next's; 0 of SumRows
	Touched         uint64 // bitmap of the rows that were accumulated, in u64 words
	Block           uint64 // of a result block behind its header: u32[Cap] ids, then rows; 0 if nobody wants results
	Heat            uint64 // of a u64 for each chunk: how many of its rows were merged so far
	Rows            uint32 // of the lane
	PerChunk, Width uint32 // rows of a chunk, and elements of a row
	Cap, Count      uint32 // rows that the block may have, and has
	What, Rule      uint8  // Rule is an optim.Rule
	SrcType         uint8  // of the messages' rows
	OutType         uint8  // of the block's rows
	Standard        uint8  // if 1, UpdateRows and ApplyRows run the rule also over rows that no message lists, with gradients of 0
	Accumulator     uint8  // number of its array
	Scalar          [cScalars]float32
	SumSq           float64 // grows by MeasureRows
}

func init() {
	if unsafe.Sizeof(Rows{}) != C.sizeof_struct_rwk_rows || unsafe.Sizeof(RowSource{}) != C.sizeof_struct_rwk_row_source {
		panic("kernel: struct rwk_rows or rwk_row_source differs between Go and C")
	}
}

func (r *Rows) check(first, last uint8, from, to uint32) {
	if r.What < first || r.What > last || from > to || to > r.Rows {
		panic(fmt.Sprintf("kernel: rows: what(%d) of rows %d to %d of %d", r.What, from, to, r.Rows))
	}
}

// Merge merges lane rows [from, to), which all sources cover, and have been merged up to. It returns the end of what it merged,
// which is before to if the block is full. If a source does not list what its header says, wrong is its index; otherwise it is -1.
// If outs are given, the results' rows go into these blocks, by their addresses behind the headers, and only the ids into Block.
func (r *Rows) Merge(isa ISA, src []RowSource, outs []uint64, from, to uint32) (reached uint32, wrong int) {
	r.check(UpdateRows, AccumulateRows, from, to)
	checkType(r.SrcType)
	if n := max(len(src), len(outs)); n > C.RWK_ROW_SOURCES {
		panic(fmt.Sprintf("kernel: rows of %d workers: use %d or fewer", n, C.RWK_ROW_SOURCES))
	}
	if r.Block != 0 {
		checkType(r.OutType)
	}
	ret := C.rwk_merge_rows(C.int(isa), (*C.struct_rwk_rows)(unsafe.Pointer(r)),
		(*C.struct_rwk_row_source)(unsafe.Pointer(unsafe.SliceData(src))), C.uint32_t(len(src)),
		(*C.uint64_t)(unsafe.Pointer(unsafe.SliceData(outs))), C.uint32_t(len(outs)), C.uint32_t(from), C.uint32_t(to),
		(*C.uint32_t)(unsafe.Pointer(&reached)))
	r.checkRule(ret)
	return reached, int(ret) - 1
}

// Apply does What with the accumulated ones of lane rows [from, to).
func (r *Rows) Apply(isa ISA, from, to uint32) {
	r.check(ApplyRows, MeasureRows, from, to)
	r.checkRule(C.rwk_apply_rows(C.int(isa), (*C.struct_rwk_rows)(unsafe.Pointer(r)), C.uint32_t(from), C.uint32_t(to)))
}

func (r *Rows) checkRule(ret C.int) {
	if ret < 0 {
		panic(fmt.Sprintf("kernel: rule(%d) is not an update rule, or its arrays are at 0", r.Rule))
	}
}

// Gather copies the weights of the rows whose u32 lane rows lie at ids to dst, as dstType. If an id is not that of a row, wrong is
// the index of the first such id; otherwise it is -1.
func (r *Rows) Gather(isa ISA, ids uint64, count uint32, dst uint64, dstType uint8) (wrong int) {
	checkType(dstType)
	return int(C.rwk_gather_rows(C.int(isa), (*C.struct_rwk_rows)(unsafe.Pointer(r)), C.uint64_t(ids), C.uint32_t(count),
		C.uint64_t(dst), C.int(dstType))) - 1
}
