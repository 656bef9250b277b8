// Package observe serves observers, who look at a running job and do not train: they capture its parameters after a step, evaluate
// them, and report the losses. An observer has the token of the job, and no rank in it. Members may call, too.
package observe

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"time"

	"connectrpc.com/connect"

	"github.com/rackweave/rackweave/aggregate"
	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/numa"
	"github.com/rackweave/rackweave/service/api"
	"github.com/rackweave/rackweave/service/job"
	"github.com/rackweave/rackweave/service/rpc"
)

const (
	// maxGroups bounds the groups of a report.
	maxGroups = 1 << 16
	// mostData bounds the values of a message with several chunks, in bytes.
	mostData = 1 << 20
	// messageCopies bounds the copies of a message in memory. JSON makes it longer, and is written more than once.
	messageCopies  = 8
	heartbeatEvery = time.Second
	turnWithin     = 5 * time.Second

	// After each mostData bytes the sender rests restTimes times as long as sending them took, but at most longestRest, because
	// workers use the same links and processors.
	restTimes   = 19
	longestRest = 50 * time.Millisecond
	// leastRate is the rate, in bytes per second, below which a reader is cut off once the call's timeout has passed again.
	leastRate = 4 << 20
)

// Server serves observers.
type Server struct {
	// Running returns a job of the caller's that runs.
	Running func(ctx context.Context, what, name string) (*job.Job, error)
	// Losses receives the losses of a job's groups.
	Losses func(j *job.Job, losses []float64) error
}

type answer = connect.ServerStream[api.CaptureResponse]

// find returns the job that a call is about, and the caller's rank, or -1 for an observer. An observer's connection stops counting
// as a stranger's.
func (s *Server) find(ctx context.Context, what, name string) (*job.Job, int, error) {
	c := job.CallerOf(ctx)
	if m := c.Member; m != nil && (name == "" || name == m.Job.Name) {
		return m.Job, m.Rank, m.Active()
	}
	j, err := s.Running(ctx, what, name)
	if err == nil {
		c.IsObserver(j)
	}
	return j, -1, err
}

// Capture sends the parameters of a job as they were after a step: the step and the tensors, and once all chunks have had it, the
// values. The wait for the step ends at the deadline of the call. Meanwhile messages without values are sent. The copy is in memory
// until its reader has it. A reader that needs longer than another timeout must read leastRate.
func (s *Server) Capture(ctx context.Context, r *api.CaptureRequest, stream *answer) (err error) {
	j, _, err := s.find(ctx, "capture", r.Job)
	if err != nil {
		return err
	}
	c, err := capture(ctx, j, r, stream)
	if c != nil {
		defer func() { err = errors.Join(err, c.Close()) }()
	}
	if err != nil {
		return refusal(j, err)
	}
	reading, cancel := rpc.Bounded(ctx, r.TimeoutMs)
	defer cancel()
	return send(reading, j, c.Chunks(), stream.Send)
}

// capture makes a capture, in its turn.
func capture(ctx context.Context, j *job.Job, r *api.CaptureRequest, stream *answer) (*aggregate.Capture, error) {
	ctx, cancel := rpc.Bounded(ctx, r.TimeoutMs)
	defer cancel()
	select {
	case j.Capturing <- struct{}{}:
		defer func() { <-j.Capturing }()
	case <-ctx.Done():
		return nil, fmt.Errorf("capture: job %q is captured already: %w", j.Name, context.Cause(ctx))
	case <-time.After(turnWithin): // not at once: the other may be one that its caller has abandoned
		return nil, rpc.Refuse(connect.CodeFailedPrecondition, "capture: job %q is captured already: wait until that ends", j.Name)
	}
	c, head, err := begin(ctx, j, r.Step)
	if err == nil {
		err = stream.Send(head)
	}
	if err == nil {
		err = await(ctx, c, stream)
	}
	return c, err
}

// begin begins a capture, and returns the first message of the answer.
func begin(ctx context.Context, j *job.Job, step uint32) (*aggregate.Capture, *api.CaptureResponse, error) {
	j.Model.RLock()
	defer j.Model.RUnlock()
	release, err := j.Hold()
	if err != nil {
		return nil, nil, err
	}
	defer release()
	head, plan := &api.CaptureResponse{}, j.Model.Plan
	if plan.NumTensors() == 0 {
		return nil, nil, rpc.Refuse(connect.CodeFailedPrecondition, "capture: job %q has no tensors yet", j.Name)
	}
	cost := j.Agg.CaptureBytes(plan) + messageCopies*int64(max(mostData, 2*plan.ChunkBytes()))
	for i, shape := range j.Model.Shapes {
		t := plan.Tensor(i)
		head.Tensors = append(head.Tensors, &api.Tensor{Name: t.Name, Shape: shape, Dtype: t.DType.String(), Sparse: t.Width > 0})
		cost += messageCopies * int64(rpc.MessageCost+len(t.Name)+8*len(shape))
	}
	if err := j.ChargeCall(ctx, "a capture", cost); err != nil {
		return nil, nil, err
	}
	c, err := j.Agg.Capture(ctx, plan, step)
	if err != nil {
		return nil, nil, err
	}
	head.Step = c.Step
	return c, head, nil
}

// await waits for a capture, and tells the caller so every second.
func await(ctx context.Context, c *aggregate.Capture, stream *answer) error {
	for {
		tick, cancel := context.WithTimeout(ctx, heartbeatEvery)
		err := c.Wait(tick)
		cancel()
		switch {
		case ctx.Err() != nil:
			return c.Late(err)
		case err == nil || !errors.Is(err, context.DeadlineExceeded):
			return err
		}
		if err := stream.Send(&api.CaptureResponse{}); err != nil {
			return err
		}
	}
}

// send sends the values of the tensors, and no more once the job's account is closed, or after the deadline to a slow reader.
func send(ctx context.Context, j *job.Job, chunks iter.Seq2[chunk.Chunk, []byte], send func(*api.CaptureResponse) error) error {
	m, began, sent := &api.CaptureResponse{Data: make([]byte, 0, mostData)}, time.Now(), 0
	unrested, spent := 0, time.Duration(0)
	flush := func() error {
		at := time.Now()
		took := at.Sub(began)
		select {
		case <-j.Over: // also if the deadline has passed: the account is closed
			return rpc.Refuse(connect.CodeNotFound, "capture: job %q has ended", j.Name)
		default:
		}
		select {
		case <-ctx.Done():
			if float64(sent) < leastRate*took.Seconds() {
				return rpc.Refuse(connect.CodeDeadlineExceeded, "capture of job %q: its reader took %d bytes in %v: read %d bytes/s, or give a "+
					"longer timeout", j.Name, sent, took.Round(time.Millisecond), leastRate)
			}
		default:
		}
		if err := send(m); err != nil {
			return err
		}
		sent, unrested, spent = sent+len(m.Data), unrested+len(m.Data), spent+time.Since(at)
		if unrested >= mostData {
			time.Sleep(min(restTimes*spent, longestRest))
			unrested, spent = 0, 0
		}
		return nil
	}
	for x, values := range chunks {
		if m.Tensor != uint32(x.Tensor) || m.Offset+uint64(len(m.Data)/4) != x.Offset || len(m.Data)+len(values) > mostData {
			if err := flush(); err != nil {
				return err
			}
			m.Tensor, m.Offset, m.Data = uint32(x.Tensor), x.Offset, m.Data[:0]
		}
		m.Data = append(m.Data, values...)
	}
	return flush()
}

// codes are those of errors of captures. connect knows those of contexts.
var codes = map[error]connect.Code{
	aggregate.ErrPassed: connect.CodeOutOfRange, aggregate.ErrReplaced: connect.CodeFailedPrecondition,
	aggregate.ErrNoSnapshot: connect.CodeInvalidArgument, numa.ErrNoMemory: connect.CodeResourceExhausted,
}

// refusal gives the error of a call a code.
func refusal(j *job.Job, err error) error {
	switch {
	case errors.Is(err, aggregate.ErrClosed):
		return rpc.Refuse(connect.CodeNotFound, "job %q has ended", j.Name)
	case j.Agg.Failure() != nil:
		select { // the control plane may know the reason a moment later
		case <-j.Failed:
			return j.FailureError()
		case <-time.After(2 * job.ReasonWait):
			return connect.NewError(connect.CodeAborted, err)
		}
	case j.State() == "ended":
		return rpc.Refuse(connect.CodeNotFound, "job %q has ended", j.Name)
	}
	for is, code := range codes {
		if errors.Is(err, is) {
			return connect.NewError(code, err)
		}
	}
	return err
}

// Report tells the job's policy of a loss, and the service that deals its rows of the groups' losses.
func (s *Server) Report(ctx context.Context, r *api.ReportLossRequest) (*api.ReportLossResponse, error) {
	j, rank, err := s.find(ctx, "report loss", r.Job)
	if err != nil {
		return nil, err
	}
	if n := len(r.GroupLosses); n > maxGroups {
		return nil, rpc.Refuse(connect.CodeInvalidArgument, "report loss: job %q: %d groups: report at most %d", j.Name, n, maxGroups)
	}
	for i, x := range r.GroupLosses {
		if !(x >= 0) || math.IsInf(x, 1) {
			return nil, rpc.Refuse(connect.CodeInvalidArgument,
				"report loss: job %q: loss %v of group %d: use a finite number of at least 0, and 0 for a group that was not evaluated", j.Name, x, i)
		}
	}
	release, err := j.Hold()
	if err != nil {
		return nil, refusal(j, err)
	}
	defer release()
	if g := j.Agg.Gate; g != nil { // other modes are synchronous
		if err := g.Loss(rank, r.Loss, j.Agg.Now()); err != nil {
			return nil, rpc.Refuse(connect.CodeFailedPrecondition, "report loss: job %q: %w", j.Name, err)
		}
	}
	if len(r.GroupLosses) > 0 {
		if err := s.Losses(j, r.GroupLosses); err != nil {
			return nil, rpc.Refuse(connect.CodeInvalidArgument, "report loss: job %q: %w", j.Name, err)
		}
	}
	return &api.ReportLossResponse{}, nil
}
