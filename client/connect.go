package client

import (
	"context"
	"errors"
	"time"

	"github.com/rackweave/rackweave/cgo/kernel"
	cworker "github.com/rackweave/rackweave/cgo/worker"
	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/client/lanes"
	"github.com/rackweave/rackweave/numa"
	"github.com/rackweave/rackweave/verbs"
)

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
	plan := chunk.Config{ChunkBytes: int(w.info.ChunkBytes), Lanes: w.places()}
	nics := make([]int, len(plan.Lanes))
	for i, l := range plan.Lanes {
		nics[i] = l.NIC
	}
	var err error
	if w.plan, err = chunk.NewPlan(plan); err != nil {
		return err
	}
	w.session, err = lanes.Open(lanes.Config{
		Name: "rackweave " + w.cfg.Job, Control: controlPlane{w}, Devices: w.devices, Lanes: nics,
		Primary: w.primaries(nics), Each: w.each(), Rank: int(w.info.Rank),
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

// open opens the C worker, once there are tensors.
func (w *Worker) open() error {
	isa, _ := kernel.Default() // the aggregator's side says so when the choice is wrong
	err := w.session.Start(lanes.WorkerConfig{
		ByReference: w.info.ByReference, AnyMemory: w.devices[0].Attr().Has(verbs.DevAnyMemory),
		CacheBytes: uint64(numa.LastLevelCache()) / uint64(max(w.info.LocalWorkers, 1)), ISA: int(isa), Spin: w.cfg.Spin,
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
