package client

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/rackweave/rackweave/cgo/fabric"
	cworker "github.com/rackweave/rackweave/cgo/worker"
	"github.com/rackweave/rackweave/client/lanes"
)

// exchange is the data path's part of a worker: it exchanges registered tensors by the C worker.
type exchange struct {
	job
	session *lanes.Session
	tensors atomic.Pointer[tensorTable] // replaced, never changed

	// using is held shared while c is in use, and alone to close it; handleMu guards c itself, so that failing can reach it.
	using    sync.RWMutex
	handleMu sync.Mutex
	c        cworker.Worker

	submitting sync.Mutex
	scratch    []cworker.Op
	ids        []uint64
	pins       []pin // by tensor

	committing sync.Mutex
}

// pin keeps the Go memory of a tensor's operation in place.
type pin struct {
	pinner runtime.Pinner
	id     uint64
}

// tensorTable holds the registered tensors' sizes and names. It is replaced, never changed.
type tensorTable struct {
	bytes  []uint64 // in this worker's memory
	labels []string
}

// Handle is a handle to an operation that was started.
type Handle struct {
	x  *exchange
	id uint64
}

// Done reports whether the operation is done. It does not wait, and makes no progress.
func (h Handle) Done() (bool, error) {
	x := h.x
	x.using.RLock()
	defer x.using.RUnlock()
	if x.c == nil {
		return true, fmt.Errorf("test: %w", x.Err())
	}
	rc := cworker.Test(x.c, h.id)
	if rc < 0 {
		return true, x.dataError(x.describe(h.id), rc, "test")
	}
	return rc == 1, nil
}

// Wait waits until the operation is done, at most until the context's deadline or for [Config.Timeout]. The error at the deadline
// wraps [ErrTimeout] and names the workers that are awaited.
func (h Handle) Wait(ctx context.Context) error {
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

func (x *exchange) wait(ctx context.Context, id uint64) error {
	x.using.RLock()
	defer x.using.RUnlock()
	if x.c == nil {
		return fmt.Errorf("wait: %w", x.Err())
	}
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
	rc := cworker.Wait(x.c, id, uint32(max(timeout.Milliseconds(), 1)))
	if rc < 0 {
		return x.dataError(x.describe(id), rc, "wait")
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
	if table := x.tensors.Load(); int(id>>32) < len(table.labels) {
		return fmt.Sprintf("tensor %q", table.labels[id>>32])
	}
	return "commit"
}

// inFlight reports whether an operation is under way.
func (x *exchange) inFlight() bool {
	x.using.RLock()
	defer x.using.RUnlock()
	if x.tensors.Load() == nil {
		return false
	}
	x.submitting.Lock()
	defer x.submitting.Unlock()
	for i := range x.pins {
		if id := x.pins[i].id; id != 0 && cworker.Test(x.c, id) == 0 {
			return true
		}
	}
	return false
}

// Lookup returns the number of the tensor with a name, and whether there is one.
func (x *exchange) Lookup(name string) (int, bool) {
	table := x.tensors.Load()
	if table == nil {
		return 0, false
	}
	i := slices.Index(table.labels, name)
	return i, i >= 0
}

// NumTensors returns how many tensors are registered.
func (x *exchange) NumTensors() int {
	if table := x.tensors.Load(); table != nil {
		return len(table.bytes)
	}
	return 0
}

// abort ends all operations because of the worker's failure.
func (x *exchange) abort(failure error) {
	x.handleMu.Lock()
	defer x.handleMu.Unlock()
	if x.c != nil {
		cworker.Abort(x.c, failure.Error())
	}
}

// onThread makes a call of the C worker and returns, with a negative result, the thread's text about it.
func onThread(f func() int) (rc int, text string) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if rc = f(); rc < 0 {
		text = fabric.LastError()
	}
	return rc, text
}

// dataError turns a result of the C worker into an error. The text explains results that are not the worker's failure.
func (x *exchange) dataError(what string, rc int, text string) error {
	switch rc {
	case -int(syscall.EBUSY):
		return fmt.Errorf("%s: %w: %s", what, ErrBusy, text)
	case cworker.ErrAborted, cworker.ErrTransport, cworker.ErrProtocol:
		if !x.member.AwaitReason() {
			_, text := cworker.Failure(x.c)
			err := fmt.Errorf("%w: %s", ErrServerLost, text)
			if rc == cworker.ErrAborted {
				x.member.Fail(err)
			} else {
				x.member.GiveUp(err) // calls may still reach the aggregator
			}
		}
	case -int(syscall.ETIMEDOUT):
		_, text := cworker.Failure(x.c)
		err := fmt.Errorf("%w: %s%s", ErrTimeout, text, x.whoIsAwaited())
		x.member.GiveUp(err)
		return fmt.Errorf("%s: %w", what, err) // the aggregator may have reported first that this worker is lost
	default:
		return fmt.Errorf("%s: %s (%w)", what, text, syscall.Errno(-rc))
	}
	return fmt.Errorf("%s: %w", what, x.Err())
}

// sessionError turns an error of the C worker into one of this package's, and returns others as they are.
func (x *exchange) sessionError(err error) error {
	if c := (*lanes.WorkerError)(nil); errors.As(err, &c) {
		return x.dataError(c.Op, c.RC, c.Text)
	}
	return err
}
