package client

import (
	"context"
	"errors"
	"time"

	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/client/membership"
	"github.com/rackweave/rackweave/service/api"
)

// resumeWithin bounds the call that resumes a lane.
const resumeWithin = time.Second

// controlPlane asks the aggregators of a worker's session to connect, by calls.
type controlPlane struct{ member *membership.Membership }

// Attach implements lanes.Control.
func (c controlPlane) Attach(ctx context.Context, ends []chunk.WorkerLane) ([]chunk.AggregatorLane, error) {
	call, cancel, ms := membership.Bound(ctx, c.member.All[0].Timeout)
	defer cancel()
	r := &api.ConnectRequest{TimeoutMs: ms}
	for _, e := range ends {
		r.Resumable, r.AckTimeoutMs = e.Resumable, uint32(e.AckTimeout.Milliseconds())
		r.Lanes = append(r.Lanes, &api.WorkerLane{
			Endpoint: e.Endpoint, ReplyAddr: e.ReplyAddr, ReplyRkey: e.ReplyRKey, Staging: e.Staging,
		})
	}
	answer, err := c.member.Connect(call, r)
	if err != nil {
		return nil, err
	}
	out := make([]chunk.AggregatorLane, len(answer))
	for i, l := range answer {
		out[i] = aggregatorLane(l)
	}
	return out, nil
}

// Resume implements lanes.Control.
func (c controlPlane) Resume(ctx context.Context, r chunk.Resume) (chunk.Resumed, error) {
	ctx, cancel := context.WithTimeout(ctx, resumeWithin)
	defer cancel()
	a := c.member.Of(r.Lane)
	req := &api.ResumeRequest{
		Lane: uint32(r.Lane - a.Lane), Attempt: r.Attempt, Nic: uint32(r.NIC - a.NIC), Received: r.Received,
		Endpoint: r.Endpoint, AckTimeoutMs: uint32(r.AckTimeout.Milliseconds()),
	}
	for _, mr := range r.Regions {
		req.Regions = append(req.Regions, &api.Region{Addr: mr.Addr, Length: mr.Length, Rkey: mr.RKey})
	}
	answer, err := a.RPC.Resume(ctx, req)
	switch {
	case err != nil:
		return chunk.Resumed{}, err
	case answer.Lane == nil:
		return chunk.Resumed{}, errors.New("resume: the aggregator's answer is incomplete")
	}
	return chunk.Resumed{AggregatorLane: aggregatorLane(answer.Lane), Received: answer.Received}, nil
}

func aggregatorLane(l *api.AggregatorLane) chunk.AggregatorLane {
	return chunk.AggregatorLane{Endpoint: l.Endpoint, SlotAddr: l.SlotAddr, SlotRKey: l.SlotRkey}
}
