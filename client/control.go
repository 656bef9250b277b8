package client

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/rackweave/rackweave/client/lanes"
	"github.com/rackweave/rackweave/service/api"
)

// resumeWithin bounds the call that resumes a lane.
const resumeWithin = time.Second

// controlPlane is how a worker's session asks the aggregator to connect: by calls.
type controlPlane struct{ w *Worker }

// Attach implements [lanes.Control].
func (c controlPlane) Attach(ctx context.Context, ends []lanes.WorkerLane) ([]lanes.AggregatorLane, error) {
	out := make([]lanes.AggregatorLane, len(ends))
	err := c.w.everywhere(func(_ int, a *aggregator) error {
		n := len(a.info.Lanes)
		return a.attach(ctx, ends[a.lane:a.lane+n], out[a.lane:a.lane+n])
	})
	if err != nil {
		return nil, c.w.callError("connect", err)
	}
	return out, nil
}

// attach connects to an aggregator's lanes.
func (a *aggregator) attach(ctx context.Context, ends []lanes.WorkerLane, out []lanes.AggregatorLane) error {
	call, cancel, ms := callTimeout(ctx, a.cfg.Timeout)
	defer cancel()
	r := &api.ConnectRequest{TimeoutMs: ms}
	for _, e := range ends {
		r.Resumable, r.AckTimeoutMs = e.Resumable, uint32(e.AckTimeout.Milliseconds())
		r.Lanes = append(r.Lanes, &api.WorkerLane{
			Endpoint: e.Endpoint, ReplyAddr: e.ReplyAddr, ReplyRkey: e.ReplyRKey, Staging: e.Staging,
		})
	}
	answer, err := a.rpc.Connect(call, r)
	if err != nil {
		return err
	}
	if len(answer.Lanes) != len(ends) {
		return fmt.Errorf("the aggregator answers for %d lanes of %d", len(answer.Lanes), len(ends))
	}
	for i, l := range answer.Lanes {
		out[i] = aggregatorLane(l)
	}
	return nil
}

// Resume implements [lanes.Control].
func (c controlPlane) Resume(ctx context.Context, r lanes.Resume) (lanes.Resumed, error) {
	ctx, cancel := context.WithTimeout(ctx, resumeWithin)
	defer cancel()
	a := c.w.of(r.Lane)
	req := &api.ResumeRequest{
		Lane: uint32(r.Lane - a.lane), Attempt: r.Attempt, Nic: uint32(r.NIC - a.nic), Received: r.Received,
		Endpoint: r.Endpoint, AckTimeoutMs: uint32(r.AckTimeout.Milliseconds()),
	}
	for _, mr := range r.Regions {
		req.Regions = append(req.Regions, &api.Region{Addr: mr.Addr, Length: mr.Length, Rkey: mr.RKey})
	}
	answer, err := a.rpc.Resume(ctx, req)
	switch {
	case err != nil:
		return lanes.Resumed{}, err
	case answer.Lane == nil:
		return lanes.Resumed{}, errors.New("resume: the aggregator's answer is incomplete")
	}
	return lanes.Resumed{AggregatorLane: aggregatorLane(answer.Lane), Received: answer.Received}, nil
}

func aggregatorLane(l *api.AggregatorLane) lanes.AggregatorLane {
	return lanes.AggregatorLane{Endpoint: l.Endpoint, SlotAddr: l.SlotAddr, SlotRKey: l.SlotRkey}
}
