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
	"github.com/rackweave/rackweave/client/lanes"
	"github.com/rackweave/rackweave/numa"
	"github.com/rackweave/rackweave/service/api"
	"github.com/rackweave/rackweave/service/api/apiconnect"
	"github.com/rackweave/rackweave/verbs"
)

// enrol makes the Join call, which waits until all workers have joined.
func (w *Worker) enrol(ctx context.Context) error {
	client, transport, err := w.cfg.httpClient()
	if err != nil {
		return err
	}
	w.transport = transport
	w.noteServer()
	w.rpc = apiconnect.NewJobServiceClient(client, w.cfg.Server,
		api.Identify(func() string { return w.info.GetSession() }, w.cfg.Token))
	providers, err := w.cfg.providersHere()
	if err != nil {
		return err
	}
	host, _ := os.Hostname()
	ctx, cancel, ms := callTimeout(ctx, w.cfg.Timeout)
	defer cancel()
	w.info, err = w.rpc.Join(ctx, &api.JoinRequest{
		Job: w.cfg.Job, Rank: int32(w.cfg.Rank), Workers: uint32(w.cfg.Workers), Mode: w.cfg.Mode,
		Policy: w.cfg.Policy, Optimizer: w.cfg.Optimizer, Hyper: w.cfg.Hyper, ChunkBytes: uint32(w.cfg.ChunkBytes),
		Provider: w.cfg.Provider, Providers: providers, HostId: api.HostID(), Host: host, Pid: int64(os.Getpid()),
		Uid: uint32(os.Geteuid()), TimeoutMs: ms,
	})
	if err != nil {
		transport.CloseIdleConnections()
		return w.cfg.classifyFirst(err)
	}
	if len(w.info.Record) != hyperParameters || len(w.info.Lanes) == 0 || w.info.Window == 0 {
		return errors.New("the aggregator's answer is incomplete: client and aggregator are of different versions")
	}
	w.hyper = hyperOf(w.info.Record)
	return nil
}

// noteServer makes every connection for calls note the address it leads to.
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
	stream, err := w.rpc.Watch(ctx, &api.WatchRequest{})
	if err != nil {
		cancel(err)
		close(w.watching)
		return classify(err)
	}
	// An aggregator that sends no heartbeat for this long is gone, even if its host answers pings.
	patience := 10 * time.Duration(w.info.HeartbeatMs) * time.Millisecond
	silence := time.AfterFunc(patience, func() { cancel(fmt.Errorf("no heartbeat for %v", patience)) })
	go func() {
		defer close(w.watching)
		defer stream.Close()
		defer silence.Stop()
		for stream.Receive() {
			silence.Reset(patience)
			if l := stream.Msg().Links; l != nil {
				w.failover.told(l)
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

// connect opens the devices and connects to every lane.
func (w *Worker) connect(ctx context.Context) error {
	if err := w.openDevices(); err != nil {
		return err
	}
	// By reference a few buffers, which stay in the cache, are enough. Otherwise every slot has one.
	staging := int(w.info.Window)
	if w.info.ByReference {
		staging = min(staging, stagingByReference)
	}
	plan := chunk.Config{ChunkBytes: int(w.info.ChunkBytes)}
	primaries := make([]int, len(w.info.Lanes))
	for i, l := range w.info.Lanes {
		plan.Lanes = append(plan.Lanes, chunk.Lane{NIC: int(l.Nic), Core: int(l.Core), Weight: l.Weight})
		primaries[i] = int(l.Nic)
	}
	var err error
	if w.plan, err = chunk.NewPlan(plan); err != nil {
		return err
	}
	w.session, err = lanes.Open(lanes.Config{
		Name: "rackweave " + w.cfg.Job, Control: controlPlane{w}, Devices: w.devices, Lanes: primaries, Rank: int(w.info.Rank),
		ChunkBytes: int(w.info.ChunkBytes), Window: int(w.info.Window), Staging: staging,
		SendDepth: int(w.info.SendDepth), RecvDepth: int(w.info.RecvDepth),
		AckTimeout: noticeWithin, LinkTimeout: time.Duration(w.info.LinkTimeoutMs) * time.Millisecond,
		ReconnectTimeout: reconnectWithin, Cancel: w.failed,
	})
	if err != nil {
		return err
	}
	w.failover.open(w)
	// A failure ends the wait for a queue pair.
	stop := context.AfterFunc(ctx, func() {
		if errors.Is(ctx.Err(), context.Canceled) {
			w.fail(context.Cause(ctx))
		}
	})
	defer stop()
	timeout := w.cfg.Timeout
	if d, ok := ctx.Deadline(); ok {
		timeout = min(timeout, time.Until(d))
	}
	err = w.session.Attach(ctx, timeout)
	if failed := w.Err(); failed != nil {
		return failed
	}
	return err
}

// stagingByReference is how many staging buffers a lane has where payloads are read where they lie.
const stagingByReference = 32

// open opens the C worker, once the size of the model is known.
func (w *Worker) open(modelBytes uint64) error {
	isa, _ := kernel.Default() // the aggregator's side says so when the choice is wrong
	err := w.session.Start(lanes.WorkerConfig{
		ByReference: w.info.ByReference, AnyMemory: w.devices[0].Attr().Has(verbs.DevAnyMemory),
		Streaming: modelBytes*uint64(max(w.info.LocalWorkers, 1)) > uint64(numa.LastLevelCache()), ISA: int(isa), Spin: w.cfg.Spin,
		Steps: w.Stream(),
	})
	if err != nil {
		return w.sessionError(err)
	}
	w.handleMu.Lock()
	defer w.handleMu.Unlock()
	w.c = w.session.C
	if err := w.Err(); err != nil {
		cworker.Abort(w.c, err.Error())
		return err
	}
	w.failover.start()
	return nil
}
