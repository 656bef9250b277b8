package service

import (
	"cmp"
	"context"
	"errors"
	"time"

	"connectrpc.com/connect"

	"github.com/rackweave/rackweave/aggregate"
	"github.com/rackweave/rackweave/service/api"
	"github.com/rackweave/rackweave/service/job"
	"github.com/rackweave/rackweave/service/rpc"
)

const (
	longestTrace  = time.Minute
	defaultEvents = 1 << 16 // of each lane
	mostEvents    = 1 << 18
	// toldEventBytes is the memory of an event in the answer, as a message and encoded.
	toldEventBytes = 200
)

func (s *Service) trace(ctx context.Context, r *api.TraceRequest) (*api.TraceResponse, error) {
	j, err := s.running(ctx, "trace", r.Job)
	if err != nil {
		return nil, err
	}
	d, events := time.Duration(r.DurationMs)*time.Millisecond, cmp.Or(int(r.Events), defaultEvents)
	switch {
	case d <= 0 || d > longestTrace:
		return nil, rpc.Refuse(connect.CodeInvalidArgument, "trace of %v: use 1ms to %v", d, longestTrace)
	case events > mostEvents:
		return nil, rpc.Refuse(connect.CodeInvalidArgument, "trace of %d events in each lane: use at most %d", events, mostEvents)
	case !j.Tracing.CompareAndSwap(false, true):
		return nil, rpc.Refuse(connect.CodeFailedPrecondition, "trace: job %q is traced already: wait until that ends", r.Job)
	}
	defer j.Tracing.Store(false)
	release, err := j.Hold()
	if err != nil {
		return nil, err
	}
	each := aggregate.TraceBytes(events) + int64(events)*toldEventBytes
	if err = j.ChargeCall(ctx, "trace", int64(len(j.Engine.Agg.Lanes()))*each); err != nil {
		release()
		return nil, err
	}
	begun := j.Agg.Now()
	if _, _, err = j.Agg.Trace(ctx, events); err != nil {
		_, _, stopErr := j.Agg.Trace(context.WithoutCancel(ctx), 0)
		err = errors.Join(err, stopErr)
	}
	release()
	if err != nil {
		return nil, err
	}
	over := time.NewTimer(d)
	defer over.Stop()
	select {
	case <-over.C:
	case <-ctx.Done():
	case <-j.Failed:
	case <-j.Ended:
	}
	j.Model.RLock() // before the memory: see the order of locks
	defer j.Model.RUnlock()
	if release, err = j.Hold(); err != nil {
		return nil, err
	}
	defer release()
	return traced(j, begun)
}

// traced ends a trace that began at this time. The caller has locked the job's model and memory.
func traced(j *job.Job, begun int64) (*api.TraceResponse, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	lanes, lost, err := j.Agg.Trace(ctx, 0)
	if err != nil {
		return nil, err
	}
	out := &api.TraceResponse{Mode: j.Spec.Mode.String(), Workers: uint32(j.Spec.Workers), Lost: lost}
	if g := j.Agg.Gate; g != nil {
		for rank := range j.Spec.Workers {
			held := int64(0)
			if since := g.Look(rank).Since; since > 0 {
				held = j.Agg.Now() - max(since, begun)
			}
			out.HeldNs = append(out.HeldNs, held)
		}
	}
	plan := j.Model.Plan
	for i := range plan.NumTensors() {
		out.Tensors = append(out.Tensors, plan.Tensor(i).Name)
	}
	for i, events := range lanes {
		lane := &api.LaneTrace{}
		for _, id := range plan.LaneChunks(i) {
			lane.Tensors = append(lane.Tensors, uint32(plan.Chunk(int(id)).Tensor))
		}
		out.Lanes = append(out.Lanes, lane)
		for k := range events {
			e := &events[k]
			lane.Events = append(lane.Events, &api.TraceEvent{Kind: api.TraceEvent_Kind(e.Kind), At: e.At, Took: e.Took, Posted: e.Posted,
				Chunk: e.Chunk, Worker: e.Worker, Epoch: uint32(e.Epoch), Bytes: e.Bytes, Codec: uint32(e.Codec)})
		}
	}
	return out, nil
}
