package client

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
	"unsafe"

	cworker "github.com/rackweave/rackweave/cgo/worker"
	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/service/api"
)

// Kind is what an operation does.
type Kind uint8

const (
	// Push sends a gradient and gets nothing back.
	Push = Kind(chunk.OpPush)
	// PushPull sends a gradient and gets the sum or the updated parameters, by the job's mode.
	PushPull = Kind(chunk.OpPushPull)
	// Pull gets the parameters. A job in mode aggregate has none.
	Pull = Kind(chunk.OpPull)
	// Broadcast gives every worker rank 0's values, and makes them the parameters.
	Broadcast = Kind(chunk.OpBroadcast)
)

func (k Kind) String() string {
	if k == Broadcast {
		return "broadcast"
	}
	return chunk.Op(k).String()
}

// Op is an operation on one tensor. Buffers hold all elements of the tensor, in its memory type. Src and Dst may be the same.
type Op struct {
	Kind   Kind
	Tensor int    // number
	Src    []byte // of Push, PushPull and rank 0's Broadcast
	Dst    []byte // of PushPull, Pull and Broadcast
	// Priority orders what waits to be sent: higher goes first.
	Priority int32
	// Done, if not nil, is called once when the operation is done or has failed, by a goroutine of the worker.
	Done func(error)
}

// Handle stands for an operation that was started.
type Handle struct {
	w  *Worker
	id uint64
}

// Submit starts operations and returns their handles. A tensor has one operation at a time: starting another is an error that wraps
// [ErrBusy]. With an error come the handles of the operations before the one at fault, which were started.
func (w *Worker) Submit(ops ...Op) ([]Handle, error) {
	return w.SubmitTo(make([]Handle, 0, len(ops)), ops)
}

// SubmitTo is like [Worker.Submit] but appends the handles to a slice of the caller's.
func (w *Worker) SubmitTo(handles []Handle, ops []Op) ([]Handle, error) {
	w.using.RLock()
	defer w.using.RUnlock()
	if err := w.Err(); err != nil {
		return handles, fmt.Errorf("submit: %w", err)
	}
	table := w.tensors.Load()
	if table == nil {
		return handles, errors.New("submit: no tensors are registered")
	}
	w.submitting.Lock()
	defer w.submitting.Unlock()
	w.scratch = w.scratch[:0]
	for i := range ops {
		op := &ops[i]
		if err := w.check(table, op); err != nil {
			return handles, err
		}
		w.scratch = append(w.scratch, cworker.Op{
			Src: address(op.Src), Dst: address(op.Dst), Tensor: uint32(op.Tensor), Priority: op.Priority, Kind: uint8(op.Kind),
		})
	}
	if len(w.ids) < len(ops) {
		w.ids = make([]uint64, len(ops))
	}
	pins := w.pinAll(ops)
	for started := 0; started < len(ops); {
		n, text := onThread(func() int { return cworker.Submit(w.c, w.scratch[started:], w.ids[started:len(ops)]) })
		if n < 0 {
			for i := started; i < len(pins); i++ {
				pins[i].pinner.Unpin()
			}
			return handles, w.dataError(fmt.Sprintf("%v %q", ops[started].Kind, table.labels[ops[started].Tensor]), n, text)
		}
		for i := started; i < started+n; i++ {
			p := &w.pins[ops[i].Tensor]
			p.pinner.Unpin()
			p.id = w.ids[i]
			if pins != nil {
				p.pinner = pins[i].pinner
			}
			handles = append(handles, Handle{w, w.ids[i]})
			if ops[i].Done != nil {
				w.callbacks.add(Handle{w, w.ids[i]}, ops[i].Done)
			}
		}
		started += n
	}
	return handles, nil
}

// check refuses operations that the C worker cannot tell to be wrong.
func (w *Worker) check(table *tensorTable, op *Op) error {
	if op.Tensor < 0 || op.Tensor >= len(table.bytes) {
		return fmt.Errorf("%v of tensor %d: %d are registered", op.Kind, op.Tensor, len(table.bytes))
	}
	want := table.bytes[op.Tensor]
	reads := op.Kind == Push || op.Kind == PushPull || op.Kind == Broadcast && w.info.Rank == 0
	if reads && uint64(len(op.Src)) != want {
		return fmt.Errorf("%v %q: source of %d bytes: the tensor has %d", op.Kind, table.labels[op.Tensor], len(op.Src), want)
	}
	if op.Kind != Push && uint64(len(op.Dst)) != want {
		return fmt.Errorf("%v %q: destination of %d bytes: the tensor has %d", op.Kind, table.labels[op.Tensor], len(op.Dst), want)
	}
	return nil
}

func address(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }

// pinAll pins the buffers that may be Go memory. It returns nil if there are none.
func (w *Worker) pinAll(ops []Op) []pin {
	var pins []pin
	for i := range ops {
		for _, b := range [...][]byte{ops[i].Src, ops[i].Dst} {
			if len(b) == 0 || w.session.Holds(b) {
				continue
			}
			if pins == nil {
				pins = make([]pin, len(ops))
			}
			pins[i].pinner.Pin(unsafe.SliceData(b))
		}
	}
	return pins
}

// Push starts to send a gradient.
func (w *Worker) Push(tensor int, src []byte, priority int32) (Handle, error) {
	return w.one(Op{Kind: Push, Tensor: tensor, Src: src, Priority: priority})
}

// Pull starts to get the parameters.
func (w *Worker) Pull(tensor int, dst []byte, priority int32) (Handle, error) {
	return w.one(Op{Kind: Pull, Tensor: tensor, Dst: dst, Priority: priority})
}

// PushPull starts to send a gradient and to get the sum or the updated parameters.
func (w *Worker) PushPull(tensor int, src, dst []byte, priority int32) (Handle, error) {
	return w.one(Op{Kind: PushPull, Tensor: tensor, Src: src, Dst: dst, Priority: priority})
}

// Broadcast starts to replace the values in buf by rank 0's, which become the parameters. In mode stream wait for all broadcasts
// before you push the first gradient.
func (w *Worker) Broadcast(tensor int, buf []byte) (Handle, error) {
	return w.one(Op{Kind: Broadcast, Tensor: tensor, Src: buf, Dst: buf})
}

func (w *Worker) one(op Op) (Handle, error) {
	var room [1]Handle
	handles, err := w.SubmitTo(room[:0], []Op{op})
	if err != nil {
		return Handle{}, err
	}
	return handles[0], nil
}

// Done reports whether the operation is done. It does not wait, and makes no progress.
func (h Handle) Done() (bool, error) {
	w := h.w
	w.using.RLock()
	defer w.using.RUnlock()
	if w.c == nil {
		return true, fmt.Errorf("test: %w", w.Err())
	}
	rc := cworker.Test(w.c, h.id)
	if rc < 0 {
		return true, w.dataError(w.describe(h.id), rc, "test")
	}
	return rc == 1, nil
}

// Wait waits until the operation is done, at most until the context's deadline or for [Config.Timeout]. The error at the deadline
// wraps [ErrTimeout] and names the workers that are awaited.
func (h Handle) Wait(ctx context.Context) error {
	return h.w.wait(ctx, h.id)
}

// WaitAll waits for operations. It returns the first error.
func (w *Worker) WaitAll(ctx context.Context, handles []Handle) error {
	for _, h := range handles {
		if err := h.Wait(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (w *Worker) wait(ctx context.Context, id uint64) error {
	w.using.RLock()
	defer w.using.RUnlock()
	if w.c == nil {
		return fmt.Errorf("wait: %w", w.Err())
	}
	timeout := w.cfg.Timeout
	if d, ok := ctx.Deadline(); ok {
		timeout = min(timeout, time.Until(d))
	}
	if ctx.Done() != nil {
		stop := context.AfterFunc(ctx, func() {
			if errors.Is(ctx.Err(), context.Canceled) {
				w.giveUp(fmt.Errorf("a wait was given up: %w", context.Cause(ctx)))
			}
		})
		defer stop()
	}
	rc := cworker.Wait(w.c, id, uint32(max(timeout.Milliseconds(), 1)))
	if rc < 0 {
		return w.dataError(w.describe(id), rc, "wait")
	}
	w.unpin(id)
	return nil
}

// unpin unpins the memory of a finished operation.
func (w *Worker) unpin(id uint64) {
	t := int(id >> 32)
	w.submitting.Lock()
	defer w.submitting.Unlock()
	if t < len(w.pins) && w.pins[t].id == id {
		w.pins[t].pinner.Unpin()
		w.pins[t].id = 0
	}
}

func (w *Worker) describe(id uint64) string {
	if table := w.tensors.Load(); int(id>>32) < len(table.labels) {
		return fmt.Sprintf("tensor %q", table.labels[id>>32])
	}
	return "commit"
}

// whoIsAwaited asks the aggregator which workers it waits for, for the text of a timeout.
func (w *Worker) whoIsAwaited() string {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	said := make([]string, len(w.aggregators))
	_ = w.everywhere(func(i int, a *aggregator) error {
		who := "the aggregator"
		if w.several() {
			who += " at " + a.cfg.Server
		}
		status, err := a.rpc.Status(ctx, &api.StatusRequest{})
		if err != nil {
			said[i] = fmt.Sprintf("; %s does not answer either", who)
		} else if late := w.late(status); len(late) > 0 {
			said[i] = fmt.Sprintf("; %s waits for %s", who, strings.Join(late, ", "))
		}
		return nil
	})
	return strings.Join(said, "")
}

// late names the workers whom the job waits for at an aggregator.
func (w *Worker) late(status *api.StatusResponse) (late []string) {
	for _, j := range slices.Backward(status.Jobs) { // the latest of its name comes last
		if j.Name != w.cfg.Job {
			continue
		}
		for _, m := range j.Members {
			switch {
			case m.AwaitedChunks > 0:
				late = append(late, fmt.Sprintf("worker %d (%d chunks)", m.Rank, m.AwaitedChunks))
			case j.Mode == "stream" && !m.Held && !m.Left && m.Step == slowest(j.Members):
				late = append(late, fmt.Sprintf("worker %d (at step %d)", m.Rank, m.Step))
			}
		}
		break
	}
	return late
}

// slowest is the step of the member that has made the fewest.
func slowest(members []*api.WorkerStatus) uint64 {
	step := uint64(math.MaxUint64)
	for _, m := range members {
		if !m.Left {
			step = min(step, m.Step)
		}
	}
	return step
}
