package client

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"unsafe"

	cworker "github.com/rackweave/rackweave/cgo/worker"
	"github.com/rackweave/rackweave/chunk"
)

// Kind is the kind of an operation.
type Kind = chunk.Op

const (
	// Push sends a gradient and gets nothing back.
	Push = chunk.OpPush
	// PushPull sends a gradient and gets the sum or the updated parameters, by the job's mode.
	PushPull = chunk.OpPushPull
	// Pull gets the parameters. A job in mode aggregate has none.
	Pull = chunk.OpPull
	// Broadcast gives every worker rank 0's values, and makes them the parameters.
	Broadcast = chunk.OpBroadcast
)

// Op is an operation on one tensor. Buffers hold all elements of the tensor, in its memory type. Src and Dst may be the same.
type Op struct {
	Kind   Kind
	Tensor int    // number
	Src    []byte // of Push, PushPull and rank 0's Broadcast
	Dst    []byte // of PushPull, Pull and Broadcast
	// Priority orders what waits to be sent: higher goes first.
	Priority int32
	// Rows, if not nil, are the numbers of the rows of a sparse tensor that the operation is on, at most as many as the tensor has.
	// Rows of Push and PushPull ascend strictly; rows of Pull come in any order and may repeat. Src of Push and PushPull, and Dst of
	// Pull, hold these rows alone, in this order. Dst of PushPull is the whole tensor, and only the rows that any worker pushed are
	// written; it may be Src if that has all rows, and otherwise they have no memory in common. A worker that touches no rows pushes
	// an empty slice that is not nil, because the others wait for it.
	Rows []int64
	// Union, if not nil, gets the numbers of the rows that PushPull of a sparse tensor has written.
	Union *Union
}

// Submit starts operations and returns their handles. A tensor has one operation at a time: starting another is an error that wraps
// [ErrBusy]. With an error come the handles of the operations before the one at fault, which were started.
func (x *exchange) Submit(ops ...Op) ([]Handle, error) {
	return x.SubmitTo(make([]Handle, 0, len(ops)), ops)
}

// SubmitTo is like [Worker.Submit] but appends the handles to a slice of the caller's.
func (x *exchange) SubmitTo(handles []Handle, ops []Op) ([]Handle, error) {
	x.using.RLock()
	defer x.using.RUnlock()
	if err := x.Err(); err != nil {
		return handles, fmt.Errorf("submit: %w", err)
	}
	tensors := x.registered()
	if len(tensors) == 0 {
		return handles, errors.New("submit: no tensors are registered")
	}
	x.submitting.Lock()
	defer x.submitting.Unlock()
	x.scratch = x.scratch[:0]
	for i := range ops {
		op := &ops[i]
		if err := x.check(tensors, op); err != nil {
			return handles, err
		}
		x.scratch = append(x.scratch, cworker.Op{
			Src: address(op.Src), Dst: address(op.Dst), Tensor: uint32(op.Tensor), Priority: op.Priority, Kind: uint8(op.Kind),
		})
		tensors[op.Tensor].rows(op, &x.scratch[i])
	}
	if len(x.ids) < len(ops) {
		x.ids = make([]uint64, len(ops))
	}
	pins := x.pinAll(ops)
	for started := 0; started < len(ops); {
		n := 0
		err := x.session.Call("", func() int {
			n = cworker.Submit(x.session.C, x.scratch[started:], x.ids[started:len(ops)])
			return n
		})
		if err != nil {
			for i := started; i < len(pins); i++ {
				pins[i].pinner.Unpin()
			}
			return handles, x.dataError(fmt.Sprintf("%v %q", ops[started].Kind, tensors[ops[started].Tensor].Name), err)
		}
		for i := started; i < started+n; i++ {
			p := &x.pins[ops[i].Tensor]
			p.pinner.Unpin()
			p.id = x.ids[i]
			if pins != nil {
				p.pinner, pins[i].pinner = pins[i].pinner, runtime.Pinner{}
			}
			handles = append(handles, Handle{x, x.ids[i]})
		}
		started += n
	}
	return handles, nil
}

// check refuses operations that the C worker cannot tell to be wrong.
func (x *exchange) check(tensors []Tensor, op *Op) error {
	if op.Tensor < 0 || op.Tensor >= len(tensors) {
		return fmt.Errorf("%v of tensor %d: %d are registered", op.Kind, op.Tensor, len(tensors))
	}
	t := &tensors[op.Tensor]
	src, dst, err := t.sizes(op)
	if err != nil {
		return err
	}
	reads := op.Kind == Push || op.Kind == PushPull || op.Kind == Broadcast && x.info.Rank == 0
	if reads && uint64(len(op.Src)) != src {
		return fmt.Errorf("%v %q: source of %d bytes: it takes %d", op.Kind, t.Name, len(op.Src), src)
	}
	if op.Kind != Push && uint64(len(op.Dst)) != dst {
		return fmt.Errorf("%v %q: destination of %d bytes: it takes %d", op.Kind, t.Name, len(op.Dst), dst)
	}
	return nil
}

func address[T any](s []T) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(s))) }

// pinAll pins the buffers that may be Go memory. It returns nil without any.
func (x *exchange) pinAll(ops []Op) []pin {
	var pins []pin
	for i := range ops {
		op := &ops[i]
		memory := [...][]byte{op.Src, op.Dst, asBytes(op.Rows), nil, nil}
		if op.Union != nil {
			memory[3], memory[4] = asBytes(op.Union.ids), asBytes(unsafe.Slice(&op.Union.n, 1))
		}
		for _, b := range memory {
			if len(b) == 0 || x.session.Holds(b) {
				continue
			}
			if pins == nil {
				x.pinning = slices.Grow(x.pinning[:0], len(ops))[:len(ops)]
				pins = x.pinning
			}
			pins[i].pinner.Pin(unsafe.SliceData(b))
		}
	}
	return pins
}

// Push starts to send a gradient.
func (x *exchange) Push(tensor int, src []byte, priority int32) (Handle, error) {
	return x.one(Op{Kind: Push, Tensor: tensor, Src: src, Priority: priority})
}

// Pull starts to get the parameters.
func (x *exchange) Pull(tensor int, dst []byte, priority int32) (Handle, error) {
	return x.one(Op{Kind: Pull, Tensor: tensor, Dst: dst, Priority: priority})
}

// PushPull starts to send a gradient and to get the sum or the updated parameters.
func (x *exchange) PushPull(tensor int, src, dst []byte, priority int32) (Handle, error) {
	return x.one(Op{Kind: PushPull, Tensor: tensor, Src: src, Dst: dst, Priority: priority})
}

// Broadcast starts to replace the values in buf by rank 0's, which become the parameters. In mode stream wait for all broadcasts
// before you push the first gradient.
func (x *exchange) Broadcast(tensor int, buf []byte) (Handle, error) {
	return x.one(Op{Kind: Broadcast, Tensor: tensor, Src: buf, Dst: buf})
}

func (x *exchange) one(op Op) (Handle, error) {
	var room [1]Handle
	handles, err := x.SubmitTo(room[:0], []Op{op})
	if err != nil {
		return Handle{}, err
	}
	return handles[0], nil
}
