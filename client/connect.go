package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/rackweave/rackweave/cgo/kernel"
	cworker "github.com/rackweave/rackweave/cgo/worker"
	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/service/api"
	"github.com/rackweave/rackweave/service/api/apiconnect"
	"github.com/rackweave/rackweave/verbs"
)

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
		Providers: providers, HostId: api.HostID(), Host: host, Pid: int64(os.Getpid()), Uid: uint32(os.Geteuid()), TimeoutMs: ms,
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
	// A failure ends the wait for a queue pair (meet).
	stop := context.AfterFunc(ctx, func() {
		if errors.Is(ctx.Err(), context.Canceled) {
			w.fail(context.Cause(ctx))
		}
	})
	defer stop()
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
	if err := qp.Connect(box.Endpoint, verbs.ConnectConfig{
		Active: true, Timeout: timeout, AckTimeout: w.mover.ackTimeout(), Cancel: w.failed,
	}); err != nil {
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
