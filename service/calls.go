package service

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"connectrpc.com/connect"
	"connectrpc.com/grpchealth"

	"github.com/rackweave/rackweave/aggregate"
	"github.com/rackweave/rackweave/service/api"
	"github.com/rackweave/rackweave/service/api/apiconnect"
	"github.com/rackweave/rackweave/verbs"
)

// active returns the member that calls, if its job has not failed.
func (s *Service) active(ctx context.Context) (*member, error) {
	m, err := s.session(ctx)
	if err != nil {
		return nil, err
	}
	select {
	case <-m.job.failed: // comes first: a failure makes the members leave
		return nil, m.job.failureError()
	default:
	}
	select {
	case <-m.out:
		return nil, refuse(connect.CodeFailedPrecondition, "%v has left job %q", m, m.job.name)
	default:
		return m, nil
	}
}

// Watch implements the schema's Watch.
func (s *Service) Watch(ctx context.Context, r *api.WatchRequest, stream *connect.ServerStream[api.WatchResponse]) error {
	m, err := s.session(ctx)
	if err != nil {
		return err
	}
	if err := m.watch(); err != nil {
		return err
	}
	heartbeat := time.NewTicker(heartbeatEvery)
	defer heartbeat.Stop()
	next := &api.WatchResponse{}
	down, changed := m.job.engine.links.state()
	if len(down) > 0 {
		next.Links = &api.Links{Down: down}
	}
	out := m.out
	for {
		if err := stream.Send(next); err != nil {
			m.lost(disconnected(ctx))
			return err
		}
		next = &api.WatchResponse{}
		select {
		case <-heartbeat.C:
		case <-changed:
			down, changed = m.job.engine.links.state()
			next.Links = &api.Links{Down: down}
		case b := <-m.job.agg.Breaks(m.rank):
			m.job.s.log.Warn("connection broke", "job", m.job.name, "rank", m.rank, "lane", b.Lane)
			next.Links = &api.Links{Down: down, Broken: []*api.BrokenLane{{Lane: uint32(b.Lane), Attempt: b.Attempt}}}
		case <-out:
			switch why := m.lostBy(); {
			case errors.Is(why, errFailed):
				out = nil // the job's failure says why
				continue
			case why != nil:
				return stream.Send(&api.WatchResponse{Failure: &api.Failure{Rank: int32(m.inJob()), Text: why.Error()}})
			}
			return nil
		case <-ctx.Done():
			m.lost(disconnected(ctx))
			return ctx.Err()
		case <-m.job.failed:
			f := m.job.failure
			err := stream.Send(&api.WatchResponse{Failure: &api.Failure{Rank: m.job.inJob(f.Rank), Text: f.Err.Error()}})
			m.depart(errFailed)
			return err
		}
	}
}

// disconnected says how the connection of a call has ended: a peer that is there answers pings.
func disconnected(ctx context.Context) string {
	if silent := callerOf(ctx).conn.Silent(); silent >= pingTimeout {
		return fmt.Sprintf("it has missed its heartbeats for %v: it is stopped, or its host cannot be reached", silent.Round(time.Second))
	}
	return "its connection to the control plane closed"
}

// Connect implements the schema's Connect.
func (s *Service) Connect(ctx context.Context, r *api.ConnectRequest) (*api.ConnectResponse, error) {
	m, err := s.active(ctx)
	if err != nil {
		return nil, err
	}
	j := m.job
	j.mu.Lock()
	again := m.dialled
	m.dialled = true
	j.mu.Unlock()
	if again {
		return nil, refuse(connect.CodeAlreadyExists, "%v of job %q is connected already", m, j.name)
	}
	ctx, cancel := bounded(ctx, r.TimeoutMs)
	defer cancel()
	lanes := make([]aggregate.WorkerLane, len(r.Lanes))
	for i, l := range r.Lanes {
		lanes[i] = aggregate.WorkerLane{
			Endpoint: l.Endpoint, ReplyAddr: l.ReplyAddr, ReplyRKey: l.ReplyRkey, Staging: l.Staging,
			AckTimeout: j.engine.ackTimeout(r.AckTimeoutMs), Resumable: r.Resumable,
		}
	}
	release, err := j.hold()
	if err != nil {
		return nil, err
	}
	defer release()
	ends, err := j.agg.Attach(ctx, m.rank, lanes)
	if err != nil {
		code := connect.CodeInvalidArgument
		if errors.Is(err, aggregate.ErrFull) {
			code = connect.CodeResourceExhausted
		}
		j.agg.Fail(m.rank, fmt.Errorf("%v could not be connected: %w", m, err))
		return nil, connect.NewError(code, err)
	}
	j.mu.Lock()
	m.attached = true
	j.mu.Unlock()
	out := &api.ConnectResponse{}
	for _, l := range ends {
		out.Lanes = append(out.Lanes, &api.AggregatorLane{Endpoint: l.Endpoint, SlotAddr: l.SlotAddr, SlotRkey: l.SlotRKey})
	}
	return out, nil
}

// Resume implements the schema's Resume.
func (s *Service) Resume(ctx context.Context, r *api.ResumeRequest) (*api.ResumeResponse, error) {
	m, err := s.active(ctx)
	if err != nil {
		return nil, err
	}
	j, e := m.job, m.job.engine
	nic, err := e.usableNIC(r.Nic)
	if err != nil {
		return nil, connect.NewError(connect.CodeUnavailable, err)
	}
	if len(r.Regions) > maxRegions {
		return nil, refuse(connect.CodeInvalidArgument,
			"resume lane %d: %d regions of memory, at most %d are taken: allocate fewer, larger ones", r.Lane, len(r.Regions), maxRegions)
	}
	regions := make([]verbs.MR, len(r.Regions))
	for i, g := range r.Regions {
		regions[i] = verbs.MR{Addr: g.Addr, Length: g.Length, RKey: g.Rkey}
	}
	release, err := j.hold()
	if err != nil {
		return nil, err
	}
	defer release()
	out, err := j.agg.Resume(ctx, m.rank, aggregate.Resume{
		Lane: int(min(r.Lane, math.MaxInt32)), Attempt: r.Attempt, NIC: nic, Received: r.Received, Endpoint: r.Endpoint, Regions: regions,
		AckTimeout: e.ackTimeout(r.AckTimeoutMs),
	})
	switch {
	case errors.Is(err, aggregate.ErrProtocol):
		return nil, connect.NewError(connect.CodeInvalidArgument, err)
	case err != nil:
		return nil, connect.NewError(connect.CodeUnavailable, err)
	}
	s.log.Warn("connection resumed", "job", j.name, "rank", m.rank, "lane", r.Lane, "to", e.devices[r.Nic].Attr().Name, "primary",
		e.names[r.Lane])
	return &api.ResumeResponse{
		Lane: &api.AggregatorLane{Endpoint: out.Endpoint, SlotAddr: out.SlotAddr, SlotRkey: out.SlotRKey}, Received: out.Received,
	}, nil
}

// Barrier implements the schema's Barrier.
func (s *Service) Barrier(ctx context.Context, r *api.BarrierRequest) (*api.BarrierResponse, error) {
	m, err := s.active(ctx)
	if err != nil {
		return nil, err
	}
	if err := checkName("barrier", r.Name); err != nil {
		return nil, connect.NewError(connect.CodeInvalidArgument, err)
	}
	ctx, cancel := bounded(ctx, r.TimeoutMs)
	defer cancel()
	all := func() (any, error) { return nil, m.job.acrossRacks(ctx, "barrier "+r.Name, "barrier", r.Name) }
	if _, err := m.job.gather(ctx, "barrier "+r.Name, m.rank, nil, nil, all); err != nil {
		return nil, err
	}
	return &api.BarrierResponse{RestoredStep: m.job.restored.Load()}, nil
}

// Leave implements the schema's Leave.
func (s *Service) Leave(ctx context.Context, r *api.LeaveRequest) (*api.LeaveResponse, error) {
	m, err := s.session(ctx)
	if err != nil {
		return nil, err
	}
	if r.Failure != "" {
		m.giveUp(printable(r.Failure, maxFailureText), r.Blame)
		return &api.LeaveResponse{}, nil
	}
	ctx, cancel := bounded(ctx, 0)
	defer cancel()
	if err := m.leave(ctx); err != nil {
		return nil, connect.NewError(connect.CodeInternal, err)
	}
	return &api.LeaveResponse{}, nil
}

// Drain implements the schema's Drain.
func (s *Service) Drain(ctx context.Context, r *api.DrainRequest) (*api.DrainResponse, error) {
	if !callerOf(ctx).admin {
		s.refusals.count("admin")
		return nil, refuse(connect.CodePermissionDenied, "drain: %w", errNotAdmin)
	}
	n := s.StartDrain(time.Duration(r.TimeoutMs) * time.Millisecond)
	return &api.DrainResponse{Jobs: uint32(n)}, nil
}

// StartDrain refuses new jobs and makes [Service.Serve] return when the present jobs have ended, or after timeout (0: never). It
// returns the number of present jobs.
func (s *Service) StartDrain(timeout time.Duration) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := len(s.jobs)
	if s.draining {
		return n
	}
	s.draining = true
	s.health.SetStatus(apiconnect.JobServiceName, grpchealth.StatusNotServing)
	s.log.Info("draining", "jobs", n, "timeout", timeout)
	s.background.Go(func() { s.drain(timeout) })
	return n
}

func (s *Service) drain(timeout time.Duration) {
	var late <-chan time.Time
	if timeout > 0 {
		late = time.After(timeout)
	}
	poll := time.NewTicker(50 * time.Millisecond)
	defer poll.Stop()
	for {
		s.mu.Lock()
		n := len(s.jobs)
		s.mu.Unlock()
		if n == 0 {
			break
		}
		select {
		case <-poll.C:
			continue
		case <-late:
			s.log.Warn("drain: time is up", "jobs", n)
		case <-s.closing:
		}
		break
	}
	close(s.drained)
}
