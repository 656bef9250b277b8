package client

import (
	"fmt"
	"slices"
	"unsafe"

	cworker "github.com/rackweave/rackweave/cgo/worker"
	"github.com/rackweave/rackweave/chunk"
)

// Union holds the numbers of the rows that a [PushPull] of a sparse tensor has written: the rows that any worker pushed. Its zero
// value is ready for use. One operation at a time may use it.
type Union struct {
	ids []int64
	n   uint64
}

// Rows returns the numbers of the rows, ascending, once the operation is done. They are valid until the next operation that uses u.
func (u *Union) Rows() []int64 { return u.ids[:u.n] }

// sizes returns the lengths in bytes that an operation's buffers must have.
func (t *Tensor) sizes(op *Op) (src, dst uint64, err error) {
	elem := uint64(t.MemoryType.Size())
	whole, packed := t.Elems()*elem, uint64(len(op.Rows))*uint64(t.width())*elem
	switch {
	case op.Union != nil && (op.Kind != PushPull || !t.Sparse):
		return 0, 0, fmt.Errorf("%v %q: it has no union: leave Union nil, or use PushPull of a sparse tensor", op.Kind, t.Name)
	case op.Rows == nil:
		return whole, whole, nil
	case !t.Sparse || op.Kind == Broadcast:
		return 0, 0, fmt.Errorf("%v %q: %d rows are given: leave Rows nil, or push or pull a tensor that is registered as sparse",
			op.Kind, t.Name, len(op.Rows))
	case op.Kind == Pull:
		return 0, packed, nil
	}
	return packed, whole, nil
}

// rows sets the C worker's part of an operation on rows.
func (t *Tensor) rows(op *Op, to *cworker.Op) {
	if op.Rows != nil {
		to.IDs, to.NIDs = address(op.Rows), uint64(len(op.Rows))
	}
	if u := op.Union; u != nil {
		if rows := int(t.Shape[0]); len(u.ids) < rows {
			u.ids = make([]int64, rows)
		}
		u.n = 0
		to.Union, to.NUnion = address(u.ids), uintptr(unsafe.Pointer(&u.n))
	}
}

// asBytes returns the memory of numbers.
func asBytes[T any](s []T) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(s))), len(s)*int(unsafe.Sizeof(*new(T))))
}

// SumRows sorts rows by id, and sums rows of the same id in their order, because a push takes each row once. There are len(ids)
// rows of width elements of type d, and each sum is rounded to d. SumRows changes ids and rows, and returns the number of ids that
// are left, in front. An id below 0, or another number of bytes in rows, is an error.
func SumRows(ids []int64, rows []byte, width int, d chunk.DType) (int, error) {
	if want := len(ids) * width * d.Size(); width <= 0 || d.Size() == 0 || len(rows) != want {
		return 0, fmt.Errorf("sum rows: %d bytes for %d rows of %d elements of type %v: want %d", len(rows), len(ids), width, d, want)
	}
	if i := slices.IndexFunc(ids, func(id int64) bool { return id < 0 }); i >= 0 {
		return 0, fmt.Errorf("sum rows: id %d is %d: rows are numbered from 0", i, ids[i])
	}
	n := cworker.SumRows(ids, unsafe.Pointer(unsafe.SliceData(rows)), uint32(width), uint8(d))
	if n < 0 {
		return 0, fmt.Errorf("sum rows: no memory for %d rows", len(ids))
	}
	return n, nil
}
