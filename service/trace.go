package service

import (
	"context"
	"time"

	"connectrpc.com/connect"

	"github.com/rackweave/rackweave/aggregate"
	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/service/api"
)

const (
	longestTrace  = time.Minute
	defaultEvents = 1 << 16 // of each lane
	mostEvents    = 1 << 18
)

// Trace implements the schema's Trace.
func (s *Service) Trace(ctx context.Context, r *api.TraceRequest) (*api.TraceResponse, error) {
	s.mu.Lock()
	j := s.jobs[r.Job]
	s.mu.Unlock()
	if j == nil || !callerOf(ctx).owns(j) {
		return nil, refuse(connect.CodePermissionDenied, "trace: there is no job %q with this token", r.Job)
	}
	d, events := time.Duration(r.DurationMs)*time.Millisecond, int(r.Events)
	if events == 0 {
		events = defaultEvents
	}
	switch {
	case d <= 0 || d > longestTrace:
		return nil, refuse(connect.CodeInvalidArgument, "trace of %v: use 1ms to %v", d, longestTrace)
	case events > mostEvents:
		return nil, refuse(connect.CodeInvalidArgument, "trace of %d events in each lane: use at most %d", events, mostEvents)
	case j.state() != "running":
		return nil, refuse(connect.CodeFailedPrecondition, "trace: job %q is %s, not running", r.Job, j.state())
	case !j.tracing.TryLock():
		return nil, refuse(connect.CodeFailedPrecondition, "trace: job %q is traced already: wait until that ends", r.Job)
	}
	defer j.tracing.Unlock()
	release, err := j.hold()
	if err != nil {
		return nil, err
	}
	err = j.agg.Trace(ctx, events)
	release()
	if err != nil {
		return nil, err
	}
	over := time.NewTimer(d)
	defer over.Stop()
	select {
	case <-over.C:
	case <-ctx.Done():
	case <-j.failed:
	case <-j.ended:
	}
	if release, err = j.hold(); err != nil {
		return nil, err
	}
	defer release()
	return j.traced()
}

// traced ends a trace.
func (j *job) traced() (*api.TraceResponse, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	lanes, lost, err := j.agg.Traced(ctx)
	if err == nil {
		err = j.agg.Trace(ctx, 0)
	}
	if err != nil {
		return nil, err
	}
	out := &api.TraceResponse{Mode: j.spec.mode.String(), Workers: uint32(j.spec.workers), Lost: lost}
	j.model.Lock()
	defer j.model.Unlock()
	plan := j.plan
	for i := range plan.NumTensors() {
		out.Tensors = append(out.Tensors, plan.Tensor(i).Name)
	}
	for i, events := range lanes {
		lane := &api.LaneTrace{}
		for _, id := range plan.LaneChunks(i) {
			lane.Tensors = append(lane.Tensors, uint32(plan.Chunk(int(id)).Tensor))
		}
		out.Lanes = append(out.Lanes, lane)
		lane.Events = make([]*api.TraceEvent, len(events))
		for k := range events {
			lane.Events[k] = traceEvent(&events[k])
		}
		nameGuests(lane, plan)
	}
	return out, nil
}

// nameGuests numbers the chunks that came from other lanes behind those that the plan has placed in this one.
func nameGuests(lane *api.LaneTrace, plan *chunk.Plan) {
	numbers := map[uint32]uint32{}
	for _, e := range lane.Events {
		if e.Chunk&chunk.GuestBit == 0 {
			continue
		}
		n, known := numbers[e.Chunk]
		if !known {
			n = uint32(len(lane.Tensors))
			numbers[e.Chunk] = n
			home, index := chunk.Home(e.Chunk, plan.NumLanes())
			lane.Tensors = append(lane.Tensors, uint32(plan.Chunk(int(plan.LaneChunks(home)[index])).Tensor))
		}
		e.Chunk = n
	}
}

func traceEvent(e *aggregate.TraceEvent) *api.TraceEvent {
	return &api.TraceEvent{
		Kind: api.TraceEvent_Kind(e.Kind), At: e.At, Took: e.Took, Posted: e.Posted, Chunk: e.Chunk, Worker: e.Worker,
		Epoch: uint32(e.Epoch),
	}
}
