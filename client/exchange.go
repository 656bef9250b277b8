package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	cworker "github.com/rackweave/rackweave/cgo/worker"
	"github.com/rackweave/rackweave/client/lanes"
)

// exchange is the data path's part of a worker: it exchanges registered tensors by the C worker.
type exchange struct {
	job
	session *lanes.Session
	tensors atomic.Pointer[[]Tensor] // those registered; replaced, never changed

	using sync.RWMutex // held shared while the session is in use, and alone to close it

	submitting sync.Mutex
	scratch    []cworker.Op
	ids        []uint64
	pins       []pin // by tensor
	pinning    []pin // of the operations that are being started

	committing sync.Mutex
}

// pin keeps the Go memory of a tensor's operation in place.
type pin struct {
	pinner runtime.Pinner
	id     uint64
}

// registered returns the registered tensors, by their numbers.
func (x *exchange) registered() []Tensor { return *x.tensors.Load() }

// Handle is a handle to an operation that was started.
type Handle struct {
	x  *exchange
	id uint64
}

// Wait waits until the operation is done, at most until the context's deadline or for [Config.Timeout]. The error at the deadline
// wraps [ErrTimeout] and names the workers that are awaited.
func (h Handle) Wait(ctx context.Context) error {
	h.x.using.RLock()
	defer h.x.using.RUnlock()
	if h.x.session.C == nil {
		return fmt.Errorf("wait: %w", h.x.Err())
	}
	return h.x.wait(ctx, h.id)
}

// WaitAll waits for operations. It returns the first error.
func (x *exchange) WaitAll(ctx context.Context, handles []Handle) error {
	for _, h := range handles {
		if err := h.Wait(ctx); err != nil {
			return err
		}
	}
	return nil
}

// wait waits for an operation. The caller holds using.
func (x *exchange) wait(ctx context.Context, id uint64) error {
	timeout := x.cfg.Timeout
	if d, ok := ctx.Deadline(); ok {
		timeout = min(timeout, time.Until(d))
	}
	if ctx.Done() != nil {
		stop := context.AfterFunc(ctx, func() {
			if errors.Is(ctx.Err(), context.Canceled) {
				x.member.GiveUp(fmt.Errorf("a wait was given up: %w", context.Cause(ctx)))
			}
		})
		defer stop()
	}
	rc := cworker.Wait(x.session.C, id, uint32(max(timeout.Milliseconds(), 1))) // on any thread: this one may wait long
	if err := x.session.Error("wait", rc); err != nil {
		if rc == -int(syscall.ETIMEDOUT) {
			err = &lanes.WorkerError{RC: rc, Text: fmt.Sprintf("no answer for every chunk within %v", timeout.Round(time.Millisecond))}
		}
		return x.dataError(x.describe(id), err)
	}
	x.unpin(id)
	return nil
}

// unpin unpins the memory of a finished operation.
func (x *exchange) unpin(id uint64) {
	t := int(id >> 32)
	x.submitting.Lock()
	defer x.submitting.Unlock()
	if t < len(x.pins) && x.pins[t].id == id {
		x.pins[t].pinner.Unpin()
		x.pins[t].id = 0
	}
}

func (x *exchange) describe(id uint64) string {
	if tensors := x.registered(); int(id>>32) < len(tensors) {
		return fmt.Sprintf("tensor %q", tensors[id>>32].Name)
	}
	return "commit"
}

// NumTensors returns how many tensors are registered.
func (x *exchange) NumTensors() int { return len(x.registered()) }

// dataError returns a failed call of the C worker as one of this package's errors, and other errors as they are. If what is empty,
// it is the call.
func (x *exchange) dataError(what string, err error) error {
	c := (*lanes.WorkerError)(nil)
	if !errors.As(err, &c) {
		return err
	}
	what = cmp.Or(what, c.Op)
	switch c.RC {
	case -int(syscall.EBUSY):
		return fmt.Errorf("%s: %w: %s", what, ErrBusy, c.Text)
	case cworker.ErrAborted, cworker.ErrTransport, cworker.ErrProtocol:
		if !x.member.AwaitReason() {
			err := fmt.Errorf("%w: %s", ErrServerLost, c.Text)
			if c.RC == cworker.ErrAborted {
				x.member.Fail(err)
			} else {
				x.member.GiveUp(err) // calls may still reach the aggregator
			}
		}
	case -int(syscall.ETIMEDOUT):
		err := fmt.Errorf("%w: %s%s", ErrTimeout, c.Text, x.whoIsAwaited())
		x.member.GiveUp(err)
		return fmt.Errorf("%s: %w", what, err) // the aggregator may have reported first that this worker is lost
	default:
		return fmt.Errorf("%s: %s (%w)", what, c.Text, syscall.Errno(-c.RC))
	}
	return fmt.Errorf("%s: %w", what, x.Err())
}
