package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	cworker "github.com/rackweave/rackweave/cgo/worker"
	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/client/lanes"
	"github.com/rackweave/rackweave/service/api"
	"github.com/rackweave/rackweave/verbs"
)

// Worker is one worker's membership in a job. Its methods may be called from any goroutine.
type Worker struct {
	cfg         Config
	aggregators []*aggregator
	info        *api.JoinResponse // of the first
	seat        seat
	spread      atomic.Bool // all of several aggregators were joined
	hyper       Hyper

	failOnce sync.Once
	failed   chan struct{}
	failure  error
	blamed   atomic.Pointer[int32] // whom an aggregator has said the job failed because of; -1: an aggregator is lost

	telling sync.WaitGroup
	leaving atomic.Bool

	devices  []*verbs.Device
	session  *lanes.Session // nil until connecting
	failover follower

	// registering serialises Register and Alloc.
	registering sync.Mutex
	plan        *chunk.Plan
	declared    []Tensor

	tensors atomic.Pointer[tensorTable] // replaced, never changed, under registering

	// using is held shared while c is in use, and alone to close it; handleMu guards c itself, so that failing can reach it.
	using    sync.RWMutex
	handleMu sync.Mutex
	c        cworker.Worker
	closing  atomic.Bool
	closed   chan struct{}

	submitting sync.Mutex
	scratch    []cworker.Op
	ids        []uint64
	pins       []pin // by tensor
	callbacks  callbacks

	committing sync.Mutex
}

// pin keeps the Go memory of a tensor's operation where it is.
type pin struct {
	pinner runtime.Pinner
	id     uint64
}

// Join makes this process a worker of a job. It returns when all workers of the job have joined and this one is connected. Its
// error wraps [ErrRefused] if the aggregator does not take the worker, [ErrTimeout] if workers are missing at the deadline,
// which the error names, and [ErrServerLost] if there is no aggregator.
func Join(ctx context.Context, cfg Config) (*Worker, error) {
	if err := cfg.complete(); err != nil {
		return nil, fmt.Errorf("join job %q: %w", cfg.Job, err)
	}
	w := &Worker{cfg: cfg, failed: make(chan struct{}), closed: make(chan struct{})}
	if err := w.join(ctx); err != nil {
		return nil, fmt.Errorf("join job %q at %s: %w", cfg.Job, cfg.Server, err)
	}
	return w, nil
}

// join takes the steps of joining. On an error it undoes them and tells the aggregator.
func (w *Worker) join(ctx context.Context) error {
	err := w.enrol(ctx)
	if err == nil {
		err = w.connect(ctx)
	}
	if err != nil {
		if len(w.aggregators) == 0 {
			return err
		}
		w.leave(err)
		return errors.Join(err, w.release())
	}
	return nil
}

// Rank returns this worker's number in the job, from 0.
func (w *Worker) Rank() int { return int(w.info.Rank) }

// Workers returns how many workers the job has.
func (w *Worker) Workers() int { return int(w.info.Workers) }

// Provider returns the name of what carries the job's data: shm, tcp, ibv or sim.
func (w *Worker) Provider() string { return w.info.Provider }

// Racks returns how many of the job's workers are in each rack, in the order in which the racks' sums are added, and how many pods
// the racks form, whose sums come first. A job with one aggregator has no racks.
func (w *Worker) Racks() (workers []int, pods int) {
	for _, n := range w.info.RackWorkers {
		workers = append(workers, int(n))
	}
	return workers, max(int(w.info.Pods), 1)
}

// Lanes returns how many cores of the aggregator, or of all that it is spread over, serve the job.
func (w *Worker) Lanes() int { return len(w.info.Lanes) * len(w.aggregators) }

// Aggregators returns how many aggregators the job is spread over: one, if it is not.
func (w *Worker) Aggregators() int { return len(w.aggregators) }

// Outer says how the job's racks that train on their own meet, as in [Config], in full; none: they add their gradients.
func (w *Worker) Outer() string { return cmp.Or(w.info.Outer, "none") }

// Core returns the type in which sums cross between racks: f32 or bf16.
func (w *Worker) Core() string { return cmp.Or(w.info.Core, "f32") }

// Close leaves the job and releases everything. Memory from [Worker.Alloc] must not be touched any more. A worker that closes while
// its operations are under way fails the job. Closing again does nothing.
func (w *Worker) Close() error {
	if !w.closing.CompareAndSwap(false, true) {
		<-w.closed
		return nil
	}
	defer close(w.closed)
	reason := w.Err()
	if reason == nil && w.inFlight() {
		reason = errors.New("it was closed with operations in flight")
	}
	// The aggregator detaches the worker first, or the end of its connections would be a failure.
	w.leave(reason)
	// After this, operations that were being started have their callbacks, and no other starts.
	w.using.Lock()
	w.using.Unlock() //lint:ignore SA2001 taking the lock waits for its holders
	w.callbacks.stop()
	w.failover.wait()
	w.using.Lock()
	defer w.using.Unlock()
	return w.release()
}

// inFlight reports whether an operation is under way.
func (w *Worker) inFlight() bool {
	w.using.RLock()
	defer w.using.RUnlock()
	if w.tensors.Load() == nil {
		return false
	}
	w.submitting.Lock()
	defer w.submitting.Unlock()
	for i := range w.pins {
		if id := w.pins[i].id; id != 0 && cworker.Test(w.c, id) == 0 {
			return true
		}
	}
	return false
}

// tell makes the Leave call. The reason is nil if the worker leaves in peace.
func (w *Worker) tell(reason error) {
	request, within := &api.LeaveRequest{}, 5*time.Second
	if reason != nil {
		request.Failure, request.Blame = reason.Error(), w.blamed.Load()
		within = 2 * time.Second // the aggregator only takes note; one that is stopped does not
	}
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	err := w.everywhere(func(_ int, a *aggregator) error {
		_, err := a.rpc.Leave(ctx, request)
		return err
	})
	if err != nil {
		w.fail(classify(err)) // the aggregator finds out by the watch stream's end
	}
}

// leave ends the worker's part in the control plane.
func (w *Worker) leave(reason error) {
	w.leaving.Store(true)
	w.tell(reason)
	w.fail(ErrClosed)
	w.telling.Wait()
	for _, a := range w.aggregators {
		a.unwatch()
		<-a.watching
		a.transport.CloseIdleConnections()
	}
}

// release closes what join opened.
func (w *Worker) release() error {
	w.handleMu.Lock()
	w.c = nil
	w.handleMu.Unlock()
	var errs []error
	if w.session != nil {
		errs = append(errs, w.session.Close())
	}
	for i := range w.pins {
		w.pins[i].pinner.Unpin()
	}
	for _, d := range w.devices {
		errs = append(errs, d.Close())
	}
	return errors.Join(errs...)
}
