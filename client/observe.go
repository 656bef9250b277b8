package client

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"

	"github.com/rackweave/rackweave/client/membership"
	"github.com/rackweave/rackweave/service/api"
)

// Observer captures the parameters of a running job, in which it has no rank and stops nobody, to evaluate them. One goroutine uses
// it.
type Observer struct {
	cfg Config
	all []*membership.Aggregator
}

// Captured is a tensor's parameters after a step.
type Captured struct {
	Name   string
	Shape  []uint64
	Values []float32 // in row-major order
}

// Observe prepares to observe a job. It uses Server, CA, Job, Token, Insecure and Timeout of the configuration. An aggregator of
// this user on this host needs no token.
func Observe(c Config) (*Observer, error) {
	if err := c.complete(); err != nil {
		return nil, err
	}
	o := &Observer{cfg: c}
	for _, server := range c.servers() {
		access := c.access()
		access.Server = server
		access.UseSocket()
		a, err := membership.Dial(access)
		if err != nil {
			o.Close()
			return nil, err
		}
		o.all = append(o.all, a)
	}
	return o, nil
}

// Close closes the observer's connections.
func (o *Observer) Close() {
	for _, a := range o.all {
		a.Close()
	}
}

const (
	captureSilence = 15 * time.Second // of aggregators that capture: each sends a message every second
	captureTries   = 5                // at steps that all aggregators of a job can still capture
	captureAhead   = 8                // steps by which the second try is later; then four times as many
	mostCaptured   = 1 << 34          // elements: the aggregator's word alone allocates no more
)

// Capture returns the parameters as they were after one step of every chunk, which is a step or two ahead of the workers, and that
// step. Every tensor must be updated in each step. Of a job over several racks it returns the parameters of the asked aggregator's.
// ctx or the configured timeout bounds the wait for the step: then the error wraps [ErrTimeout]. If the job has ended, the error is
// a refusal with the code not found.
func (o *Observer) Capture(ctx context.Context) (step uint32, tensors []Captured, err error) {
	for try, ahead := 1, uint32(captureAhead); ; try, ahead = try+1, 4*ahead {
		c := capture{step: step}
		err := c.run(ctx, o)
		if err == nil {
			return c.step, c.tensors, nil
		}
		if try == captureTries || connect.CodeOf(err) != connect.CodeOutOfRange {
			return 0, nil, fmt.Errorf("capture of job %q: %w", o.cfg.Job, err)
		}
		step = c.step + ahead
	}
}

// capture is a capture of one step at all aggregators.
type capture struct {
	step    uint32 // if 0, the first aggregator chooses it
	tensors []Captured
	missing atomic.Int64 // elements that have not come
}

func (c *capture) run(ctx context.Context, o *Observer) error {
	call, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	silence := time.AfterFunc(captureSilence, func() { fail(fmt.Errorf("%w: %v of silence", ErrServerLost, captureSilence)) })
	defer silence.Stop()
	within := o.cfg.Timeout
	if d, ok := ctx.Deadline(); ok {
		within = min(within, time.Until(d)*9/10) // so that the aggregator names the tensor that lags
	}
	var all sync.WaitGroup
	for _, a := range o.all {
		r := &api.CaptureRequest{Job: o.cfg.Job, Step: c.step, TimeoutMs: uint32(max(within.Milliseconds(), 1))}
		s, err := a.RPC.Capture(call, r)
		if err == nil && !s.Receive() {
			err = cmp.Or(s.Err(), error(connect.NewError(connect.CodeUnavailable, io.ErrUnexpectedEOF)))
		}
		if err != nil {
			fail(a.Classify(err))
			break
		}
		if err := c.begin(s.Msg()); err != nil {
			fail(err)
			break
		}
		all.Go(func() {
			for s.Receive() {
				silence.Reset(captureSilence)
				if !c.take(s.Msg()) {
					fail(fmt.Errorf("%s sends values of tensors that the job does not have", a.Server))
				}
			}
			if s.Err() != nil {
				fail(a.Classify(s.Err()))
			}
		})
	}
	all.Wait()
	if err := context.Cause(call); err != nil {
		return err
	}
	if n := c.missing.Load(); n != 0 {
		return fmt.Errorf("%d of its parameters are missing: name all of its aggregators", n)
	}
	return nil
}

// begin takes an aggregator's first message, and makes room for the tensors of the first one's.
func (c *capture) begin(m *api.CaptureResponse) error {
	if c.step = m.Step; c.tensors != nil {
		return nil
	}
	total := 0.0
	for _, t := range m.Tensors {
		n := 1.0
		for _, d := range t.Shape {
			n *= float64(d)
		}
		if total += n; total > mostCaptured {
			return fmt.Errorf("tensor %q of shape %v is too large", t.Name, t.Shape)
		}
		c.tensors = append(c.tensors, Captured{t.Name, t.Shape, make([]float32, int(n))})
	}
	c.missing.Store(int64(total))
	return nil
}

// take takes the values of a message, and reports false if they belong to no tensor.
func (c *capture) take(m *api.CaptureResponse) bool {
	n := uint64(len(m.Data) / 4)
	if n == 0 {
		return true
	}
	if int(m.Tensor) >= len(c.tensors) {
		return false
	}
	to := c.tensors[m.Tensor].Values
	if m.Offset > uint64(len(to)) || n > uint64(len(to))-m.Offset {
		return false
	}
	copy(Bytes(to[m.Offset:][:n]), m.Data) // this processor is little-endian, too
	c.missing.Add(-int64(n))
	return true
}

// Report reports the validation loss of the parameters after a step, to the job's policy, and if there are any, the losses of the
// groups of the training set by which the service that deals the job's rows may favour some: 0 for a group that was not evaluated.
func (o *Observer) Report(ctx context.Context, step uint32, loss float64, groups []float64) error {
	call, cancel, _ := membership.Bound(ctx, o.cfg.Timeout)
	defer cancel()
	_, err := o.all[0].RPC.ReportLoss(call, &api.ReportLossRequest{Job: o.cfg.Job, Step: step, Loss: loss, GroupLosses: groups})
	if err != nil {
		return fmt.Errorf("report loss of job %q: %w", o.cfg.Job, o.all[0].Classify(err))
	}
	return nil
}
