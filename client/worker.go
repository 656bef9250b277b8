package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rackweave/rackweave/cgo/kernel"
	cworker "github.com/rackweave/rackweave/cgo/worker"
	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/numa"
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

	nics    []nic
	qps     []*verbs.QP // by lane; nil: none now
	lanes   []cworker.Lane
	mover   mover
	staging *memory
	nstage  int

	// registering serialises Register and Alloc.
	registering sync.Mutex
	plan        *chunk.Plan

	// Replaced, never changed, under registering.
	arenas  atomic.Pointer[[]*memory]
	tensors atomic.Pointer[tensorTable]

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

// memory is an arena registered with the transport.
type memory struct {
	*numa.Arena
	mrs []verbs.MR // by NIC
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

// enrol makes the Join call.
func (w *Worker) enrol(ctx context.Context) error {
	client, transport, err := w.cfg.httpClient()
	if err != nil {
		return err
	}
	w.transport = transport
	w.noteServer()
	w.rpc = apiconnect.NewJobServiceClient(client, w.cfg.Server)
	providers, err := w.cfg.providersHere()
	if err != nil {
		return err
	}
	host, _ := os.Hostname()
	ctx, cancel, ms := callTimeout(ctx, w.cfg.Timeout)
	defer cancel()
	w.info, err = w.rpc.Join(ctx, &api.JoinRequest{
		Job: w.cfg.Job, Token: w.cfg.Token, Rank: int32(w.cfg.Rank), Workers: uint32(w.cfg.Workers), Mode: w.cfg.Mode,
		Optimizer: w.cfg.Optimizer, Hyper: w.cfg.Hyper, ChunkBytes: uint32(w.cfg.ChunkBytes), Provider: w.cfg.Provider,
		Providers: providers, HostId: api.HostID(), Host: host, Pid: int64(os.Getpid()), TimeoutMs: ms,
	})
	if err != nil {
		transport.CloseIdleConnections()
		return w.cfg.classifyFirst(err)
	}
	if len(w.info.Record) != len(Hyper{}.record()) || len(w.info.Lanes) == 0 || w.info.Window == 0 {
		return errors.New("the aggregator's answer is incomplete: client and aggregator are of different versions")
	}
	w.hyper = hyperOf(w.info.Record)
	return nil
}

// noteServer notes, at every connection for calls, the address it leads to.
func (w *Worker) noteServer() {
	dial := w.transport.DialContext
	w.transport.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := dial(ctx, network, addr)
		if err == nil {
			w.server.Store(c.RemoteAddr().(*net.TCPAddr))
		}
		return c, err
	}
}

// watch opens the stream that ties this worker's life to the aggregator's, and follows it.
func (w *Worker) watch() error {
	ctx, cancel := context.WithCancelCause(context.Background())
	w.unwatch = func() { cancel(nil) }
	stream, err := w.rpc.Watch(ctx, &api.WatchRequest{Session: w.info.Session})
	if err != nil {
		cancel(err)
		close(w.watching)
		return classify(err)
	}
	// Heartbeats come every second; without any for this long the aggregator is gone though its host answers pings.
	patience := 10 * time.Duration(w.info.HeartbeatMs) * time.Millisecond
	silence := time.AfterFunc(patience, func() { cancel(fmt.Errorf("no heartbeat for %v", patience)) })
	go func() {
		defer close(w.watching)
		defer stream.Close()
		defer silence.Stop()
		for stream.Receive() {
			silence.Reset(patience)
			if l := stream.Msg().Links; l != nil {
				w.mover.told(l)
			}
			if f := stream.Msg().Failure; f != nil {
				w.fail(&JobError{Job: w.cfg.Job, Rank: int(f.Rank), Text: f.Text})
				return
			}
		}
		if !w.leaving.Load() {
			w.fail(fmt.Errorf("%w: the connection to %s broke: %w", ErrServerLost, w.cfg.Server, cmp.Or(context.Cause(ctx), stream.Err())))
		}
	}()
	return nil
}

// connect opens the devices and connects a queue pair to every lane.
func (w *Worker) connect(ctx context.Context) error {
	if err := w.openNICs(); err != nil {
		return err
	}
	// By reference few buffers, always the same, stay in the cache; else there is one for every slot.
	w.nstage = int(w.info.Window)
	if w.info.ByReference {
		w.nstage = min(w.nstage, stagingByReference)
	}
	nlanes := len(w.info.Lanes)
	staging := nlanes * w.nstage * int(w.info.ChunkBytes)
	var err error
	if w.staging, err = w.newMemory("staging", staging+chunk.RecordBytes); err != nil {
		return err
	}
	w.mover.open(w)
	w.lanes = make([]cworker.Lane, nlanes)
	plan := chunk.Config{ChunkBytes: int(w.info.ChunkBytes)}
	ends := make([]*api.WorkerLane, nlanes)
	for i, l := range w.info.Lanes {
		plan.Lanes = append(plan.Lanes, chunk.Lane{NIC: int(l.Nic), Core: int(l.Core), Weight: l.Weight})
		at := w.mover.lanes[i].at
		qp, err := w.createQP(at.nic)
		if err != nil {
			return err
		}
		w.qps = append(w.qps, qp)
		endpoint, err := qp.Endpoint()
		if err != nil {
			return err
		}
		w.lanes[i] = cworker.Lane{QP: qp.Handle(), NIC: uint32(at.nic), SendDepth: w.info.SendDepth}
		ends[i] = &api.WorkerLane{
			Endpoint: endpoint, ReplyAddr: w.staging.mrs[0].Addr + uint64(i*w.nstage)*uint64(w.info.ChunkBytes), ReplyRkey: w.staging.mrs[at.nic].RKey,
			Staging: uint32(w.nstage),
		}
	}
	if w.plan, err = chunk.NewPlan(plan); err != nil {
		return err
	}
	return w.dial(ctx, ends)
}

const stagingByReference = 32

// dial exchanges the endpoints and connects.
func (w *Worker) dial(ctx context.Context, ends []*api.WorkerLane) error {
	call, cancel, ms := callTimeout(ctx, w.cfg.Timeout)
	defer cancel()
	box, err := w.rpc.Connect(call, &api.ConnectRequest{
		Session: w.info.Session, Lanes: ends, TimeoutMs: ms, Resumable: w.mover.able, AckTimeoutMs: uint32(w.mover.ackTimeout().Milliseconds()),
	})
	if err != nil {
		return w.callError("connect", err)
	}
	if len(box.Lanes) != len(w.qps) {
		return fmt.Errorf("connect: the aggregator answers for %d lanes of %d", len(box.Lanes), len(w.qps))
	}
	deadline := time.Now().Add(time.Duration(ms) * time.Millisecond)
	for i, qp := range w.qps {
		if err := w.meet(i, qp, box.Lanes[i], max(time.Until(deadline), time.Millisecond)); err != nil {
			if failed := w.Err(); failed != nil {
				return failed
			}
			return fmt.Errorf("lane %d: %w", i, err)
		}
	}
	return w.Err()
}

// meet connects a lane's queue pair to the aggregator's, and notes what the C worker is told of it.
func (w *Worker) meet(lane int, qp *verbs.QP, box *api.BoxLane, timeout time.Duration) error {
	if err := qp.Connect(box.Endpoint, verbs.ConnectConfig{Active: true, Timeout: timeout, AckTimeout: w.mover.ackTimeout()}); err != nil {
		return err
	}
	// Only now: on a queue pair that did not connect nothing can have arrived.
	if err := qp.PostRecv(uint64(lane), int(w.info.RecvDepth)); err != nil {
		return err
	}
	l := &w.lanes[lane]
	l.QP, l.SlotAddr, l.SlotRKey = qp.Handle(), box.SlotAddr, box.SlotRkey
	return nil
}

// open makes the C worker, once the size of the model is known.
func (w *Worker) open(modelBytes uint64) error {
	isa, _ := kernel.Default() // the aggregator's side says so when the choice is wrong
	attr := w.nics[0].device.Attr()
	nics := make([]cworker.NIC, len(w.nics))
	for i, n := range w.nics {
		nics[i] = cworker.NIC{PD: n.pd.Handle(), CQ: n.cq.Handle(), StagingLKey: w.staging.mrs[i].LKey, StagingRKey: w.staging.mrs[i].RKey}
	}
	c, rc := cworker.Open(&cworker.Config{
		NICs: nics, Lanes: w.lanes, ChunkBytes: int(w.info.ChunkBytes), Window: int(w.info.Window), Staging: w.nstage,
		StagingAddr: w.staging.Addr(), Resumable: w.mover.able, Rank: int(w.info.Rank), ByReference: w.info.ByReference,
		AnyMemory: attr.Has(verbs.DevAnyMemory), Streaming: modelBytes*uint64(max(w.info.LocalWorkers, 1)) > lastLevelCache(),
		ISA: int(isa), Spin: w.cfg.Spin,
	})
	if rc < 0 {
		return w.dataError("open worker", rc)
	}
	for _, m := range w.allocated() {
		if rc := cworker.Region(c, m.mrs); rc < 0 {
			cworker.Close(c)
			return w.dataError("register memory", rc)
		}
	}
	w.handleMu.Lock()
	defer w.handleMu.Unlock()
	w.c = c
	if err := w.Err(); err != nil {
		cworker.Abort(c, err.Error())
		return err
	}
	w.mover.start()
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

// ByReference tells whether the aggregator reads gradients where this worker holds them.
func (w *Worker) ByReference() bool { return w.info.ByReference }

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
	w.mover.wait()
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
	c := w.c
	w.c = nil
	w.handleMu.Unlock()
	var errs []error
	if c != nil {
		cworker.Close(c)
	}
	for _, qp := range w.qps {
		if qp != nil {
			errs = append(errs, qp.Close())
		}
	}
	for i := range w.pins {
		w.pins[i].pinner.Unpin()
	}
	memories := w.allocated()
	if w.staging != nil {
		memories = append(slices.Clone(memories), w.staging)
	}
	for _, m := range memories {
		errs = append(errs, w.free(m))
	}
	for i := range w.nics {
		errs = append(errs, w.nics[i].close())
	}
	return errors.Join(errs...)
}
