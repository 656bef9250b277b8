package client

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	cworker "github.com/rackweave/rackweave/cgo/worker"
	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/client/lanes"
	"github.com/rackweave/rackweave/service/api"
	"github.com/rackweave/rackweave/service/api/apiconnect"
	"github.com/rackweave/rackweave/verbs"
)

// Worker is one worker's membership in a job. Its methods may be called from any goroutine.
type Worker struct {
	cfg       Config
	transport *http.Transport
	server    atomic.Pointer[net.TCPAddr] // where calls reach the aggregator
	rpc       apiconnect.JobServiceClient
	info      *api.JoinResponse
	hyper     Hyper

	failOnce sync.Once
	failed   chan struct{}
	failure  error

	telling  sync.WaitGroup
	leaving  atomic.Bool
	watching chan struct{} // closed when the watch goroutine has ended
	unwatch  context.CancelFunc

	devices  []*verbs.Device
	session  *lanes.Session // nil until connecting
	failover follower

	// registering serialises Register and Alloc.
	registering sync.Mutex
	plan        *chunk.Plan

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

// Join makes this process a worker of a job. It returns when all of the job's workers have joined and this one is connected,
// or with an error that names what is wrong.
func Join(ctx context.Context, cfg Config) (*Worker, error) {
	if err := cfg.complete(); err != nil {
		return nil, fmt.Errorf("join job %q: %w", cfg.Job, err)
	}
	w := &Worker{cfg: cfg, failed: make(chan struct{}), watching: make(chan struct{}), closed: make(chan struct{})}
	if err := w.join(ctx); err != nil {
		return nil, fmt.Errorf("join job %q at %s: %w", cfg.Job, cfg.Server, err)
	}
	return w, nil
}

// join runs the steps of joining; on an error it takes back those done, and tells the aggregator.
func (w *Worker) join(ctx context.Context) error {
	if err := w.enrol(ctx); err != nil {
		return err
	}
	err := w.watch()
	if err == nil {
		err = w.connect(ctx)
	}
	if err != nil {
		w.leave(err.Error())
		return errors.Join(err, w.release())
	}
	return nil
}

// Rank is this worker's number in the job.
func (w *Worker) Rank() int { return int(w.info.Rank) }

// Workers is how many workers the job has.
func (w *Worker) Workers() int { return int(w.info.Workers) }

// Provider is what carries the job's data.
func (w *Worker) Provider() string { return w.info.Provider }

// Lanes is how many cores of the aggregator serve the job.
func (w *Worker) Lanes() int { return len(w.info.Lanes) }

// Close leaves the job and gives everything back; memory from Alloc is gone then. A worker that closes while its operations
// are under way fails the job.
func (w *Worker) Close() error {
	if !w.closing.CompareAndSwap(false, true) {
		<-w.closed
		return nil
	}
	defer close(w.closed)
	reason := ""
	if err := w.Err(); err != nil {
		reason = err.Error()
	} else if w.inFlight() {
		reason = "it was closed with operations in flight"
	}
	// The aggregator lets go of the connections first, or their end would be a failure.
	w.leave(reason)
	// Operations that were being started have their callbacks then, and none is started any more.
	w.using.Lock()
	w.using.Unlock()
	w.callbacks.stop()
	w.failover.wait()
	w.using.Lock()
	defer w.using.Unlock()
	return w.release()
}

// inFlight tells whether an operation that was started is not done.
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

// tell makes the Leave call; reason is empty where the worker goes in peace.
func (w *Worker) tell(reason string) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if _, err := w.rpc.Leave(ctx, &api.LeaveRequest{Session: w.info.Session, Failure: reason}); err != nil {
		w.fail(classify(err)) // the aggregator finds out by the watch stream's end
	}
}

// leave ends the control plane's part.
func (w *Worker) leave(reason string) {
	w.leaving.Store(true)
	w.tell(reason)
	w.fail(ErrClosed)
	w.telling.Wait()
	w.unwatch()
	<-w.watching
	w.transport.CloseIdleConnections()
}

// release gives back what join took, in the order that verbs asks for.
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
