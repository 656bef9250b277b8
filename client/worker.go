package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/rackweave/rackweave/cgo/kernel"
	cworker "github.com/rackweave/rackweave/cgo/worker"
	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/client/lanes"
	"github.com/rackweave/rackweave/client/membership"
	"github.com/rackweave/rackweave/numa"
	"github.com/rackweave/rackweave/service/api"
	"github.com/rackweave/rackweave/verbs"
)

// Worker is one worker's membership in a job. Its methods may be called from any goroutine.
type Worker struct {
	exchange
	place    place
	devices  []*verbs.Device
	failover follower

	// registering serialises Register and Alloc.
	registering sync.Mutex
	plan        *chunk.Plan

	closing sync.Once
}

// Join makes this process a worker of a job. It returns when all workers of the job have joined and this one is connected. Its
// error wraps [ErrRefused] if the aggregator does not take the worker, [ErrTimeout] if workers are missing at the deadline,
// which the error names, and [ErrServerLost] if no aggregator answers.
func Join(ctx context.Context, cfg Config) (*Worker, error) {
	if err := cfg.complete(); err != nil {
		return nil, fmt.Errorf("join job %q: %w", cfg.Job, err)
	}
	w := new(Worker)
	w.cfg = cfg
	w.tensors.Store(new([]Tensor))
	w.failover = follower{w: w, kick: make(chan struct{}, 1), down: map[int][]int{}}
	if err := w.join(ctx); err != nil {
		return nil, fmt.Errorf("join job %q at %s: %w", cfg.Job, cfg.Server, err)
	}
	return w, nil
}

// join takes the steps of joining. On an error it undoes them and notifies the aggregator.
func (w *Worker) join(ctx context.Context) error {
	r, err := w.cfg.request()
	if err != nil {
		return err
	}
	m := membership.Config{Access: w.cfg.access(), Links: w.failover.report, Codecs: w.failover.recode}
	if w.member, err = membership.Join(ctx, m, r); err != nil {
		return err
	}
	w.info = w.member.All[0].Info
	w.place = place{int(w.info.Rank), int(w.info.Workers), w.info.Rack, w.info.Racks, w.info.RackWorkers}
	if err = w.connect(ctx); err != nil {
		w.leave(err)
		return errors.Join(err, w.release())
	}
	return nil
}

// connect opens the devices and connects to every lane.
func (w *Worker) connect(ctx context.Context) error {
	var err error
	if w.devices, err = openDevices(&w.cfg, w.info); err != nil {
		return err
	}
	// By reference few buffers are enough. Otherwise every slot has one.
	staging := w.info.Window
	if w.info.ByReference {
		staging = min(staging, stagingByReference)
	}
	plan := chunk.Config{ChunkBytes: int(w.info.ChunkBytes), Lanes: w.member.Lanes()}
	nics := make([]int, len(plan.Lanes))
	for i, l := range plan.Lanes {
		nics[i] = l.NIC
	}
	if w.plan, err = chunk.NewPlan(plan); err != nil {
		return err
	}
	isa, _ := kernel.Default() // the aggregator reports a wrong choice
	w.session, err = lanes.Open(lanes.Config{
		Name: "rackweave " + w.cfg.Job, Control: controlPlane{w.member}, Devices: w.devices, Lanes: nics,
		Each: chunk.NICs(w.member.All[0].Lanes()),
		Worker: cworker.Config{
			Rank: w.info.Rank, ChunkBytes: w.info.ChunkBytes, Window: w.info.Window, Staging: staging,
			ByReference: w.info.ByReference, AnyMemory: w.devices[0].Attr().Has(verbs.DevAnyMemory), Steps: w.Stream(),
			Answers:    answersOf(w.info),
			CacheBytes: uint64(numa.LastLevelCache()) / uint64(max(w.info.LocalWorkers, 1)), ISA: int32(isa), Spin: uint32(w.cfg.Spin),
		},
		SendDepth: int(w.info.SendDepth), RecvDepth: int(w.info.RecvDepth),
		AckTimeout: noticeWithin, LinkTimeout: time.Duration(w.info.LinkTimeoutMs) * time.Millisecond,
		ReconnectTimeout: reconnectWithin, Cancel: w.Failed(),
	})
	if err != nil {
		return err
	}
	w.failover.open()
	// A failure ends the wait for a queue pair.
	stop := context.AfterFunc(ctx, func() {
		if errors.Is(ctx.Err(), context.Canceled) {
			w.member.Fail(context.Cause(ctx))
		}
	})
	defer stop()
	timeout := w.cfg.Timeout
	if d, ok := ctx.Deadline(); ok {
		timeout = min(timeout, time.Until(d))
	}
	err = w.session.Attach(ctx, timeout)
	if err = cmp.Or(w.Err(), err); err == nil {
		w.failover.start()
	}
	return err
}

// answersOf returns what the answers to gradients hold.
func answersOf(info *api.JoinResponse) uint8 {
	switch {
	case info.Answers == nil:
		return cworker.AnswersWhole
	case info.Mode == "aggregate":
		return cworker.AnswersSums
	}
	return cworker.AnswersChanges
}

// stagingByReference is the number of staging buffers of a lane if the aggregator reads payloads in place: four a sparse tensor.
const stagingByReference = 128

// Close leaves the job and releases everything. Memory from [Worker.Alloc] must not be touched afterwards. A worker that closes
// with operations in flight fails the job. Closing again does nothing.
func (w *Worker) Close() (err error) {
	w.closing.Do(func() { err = w.close() })
	return err
}

func (w *Worker) close() error {
	reason := w.Err()
	if reason == nil && cworker.Active(w.session.C) > 0 {
		reason = errors.New("it was closed with operations in flight")
	}
	for _, r := range w.sets.all() {
		_ = r.Close() // an error is the worker's failure
	}
	// The aggregator detaches the worker first, or the end of its connections would be a failure.
	w.leave(reason)
	w.using.Lock()
	defer w.using.Unlock()
	return w.release()
}

// leave ends the worker's part in the control plane, and what follows from that.
func (w *Worker) leave(reason error) {
	_ = w.member.Leave(reason) // an error is the worker's failure
	w.member.Close()
	w.failover.work.Wait()
}

// release closes what join opened.
func (w *Worker) release() error {
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
