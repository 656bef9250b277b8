package service

import (
	"context"
	"time"

	"connectrpc.com/connect"

	"github.com/rackweave/rackweave/policy"
	"github.com/rackweave/rackweave/service/api"
	"github.com/rackweave/rackweave/service/api/apiconnect"
	"github.com/rackweave/rackweave/service/checkpoint"
	"github.com/rackweave/rackweave/service/job"
	"github.com/rackweave/rackweave/service/observe"
	"github.com/rackweave/rackweave/service/rpc"
)

// serveCalls mounts the calls of the schema, with the most bytes that the bodies of members' calls may have.
func (s *Service) serveCalls() {
	mount(s, apiconnect.JobServiceJoinProcedure, rule{}, s.jobs.Join)
	mount(s, apiconnect.JobServiceStatusProcedure, rule{}, s.serveStatus, connect.WithIdempotency(connect.IdempotencyNoSideEffects))
	mount(s, apiconnect.JobServiceSetPolicyProcedure, rule{}, s.setPolicy)
	mount(s, apiconnect.JobServiceSetCodecProcedure, rule{}, s.setCodec)
	mount(s, apiconnect.JobServiceTraceProcedure, rule{}, s.trace)
	mount(s, apiconnect.JobServiceDrainProcedure, rule{of: ofAdmin}, s.serveDrain)
	mount(s, apiconnect.JobServiceLinksProcedure, rule{of: ofAdmin}, s.cluster.ServeLinks)
	mount(s, apiconnect.RackServiceAskProcedure, rule{of: ofRack}, s.cluster.Serve)

	s.handle(apiconnect.JobServiceWatchProcedure, rule{ofMember, 4 << 10},
		connect.NewServerStreamHandlerSimple(apiconnect.JobServiceWatchProcedure,
			func(ctx context.Context, _ *api.WatchRequest, stream *connect.ServerStream[api.WatchResponse]) error {
				return job.CallerOf(ctx).Member.Follow(ctx, stream)
			}, s.callOptions()...))
	mountOf(s, apiconnect.JobServiceLeaveProcedure, 64<<10, (*job.Member).Leave)
	mountOf(s, apiconnect.JobServiceConnectProcedure, 1<<20, active((*job.Member).Connect))
	mountOf(s, apiconnect.JobServiceResumeProcedure, 1<<20, active((*job.Member).Resume))
	mountOf(s, apiconnect.JobServiceRegisterProcedure, maxMessageBytes, active((*job.Member).Register))
	mountOf(s, apiconnect.JobServiceBarrierProcedure, 4<<10, active((*job.Member).Barrier))
	mountOf(s, apiconnect.JobServiceAcceptCodecsProcedure, 4<<10, active((*job.Member).AcceptCodecs))
	observer := observe.Server{
		Running: s.running,
		Losses:  func(j *job.Job, losses []float64) error { return s.data.Losses(dealt{j}, losses) },
	}
	mount(s, apiconnect.JobServiceReportLossProcedure, rule{ofObserver, 2 << 20}, observer.Report)
	s.handle(apiconnect.JobServiceCaptureProcedure, rule{ofObserver, 4 << 10},
		connect.NewServerStreamHandlerSimple(apiconnect.JobServiceCaptureProcedure, observer.Capture, s.callOptions()...))
	mountOf(s, apiconnect.JobServiceSaveProcedure, 64<<10, ofState(s, (*checkpoint.State).Save))
	mountOf(s, apiconnect.JobServiceRestoreProcedure, 64<<10, ofState(s, (*checkpoint.State).Restore))
	mountOf(s, apiconnect.JobServiceReadStateProcedure, 4<<10, ofState(s, (*checkpoint.State).ReadState))
	mountOf(s, apiconnect.JobServiceWriteStateProcedure, maxMessageBytes, ofState(s, (*checkpoint.State).WriteState))
	mountOf(s, apiconnect.JobServiceReadManifestProcedure, 4<<10, ofState(s, (*checkpoint.State).ReadManifest))
	mountOf(s, apiconnect.JobServiceWriteManifestProcedure, 64<<10, ofState(s, (*checkpoint.State).WriteManifest))
}

// callOf is a call on something, such as a member.
type callOf[T, Q, A any] func(on T, ctx context.Context, r *Q) (*A, error)

func mount[Q, A any](s *Service, procedure string, r rule, call func(context.Context, *Q) (*A, error),
	more ...connect.HandlerOption) {
	s.handle(procedure, r, connect.NewUnaryHandlerSimple(procedure, call, append(s.callOptions(), more...)...))
}

// mountOf mounts a call that needs a session: the guard lets members through alone.
func mountOf[Q, A any](s *Service, procedure string, most int64, call callOf[*job.Member, Q, A]) {
	mount(s, procedure, rule{ofMember, most},
		func(ctx context.Context, r *Q) (*A, error) { return call(job.CallerOf(ctx).Member, ctx, r) })
}

// active refuses a call of a member that has left, or whose job has failed.
func active[Q, A any](call callOf[*job.Member, Q, A]) callOf[*job.Member, Q, A] {
	return func(m *job.Member, ctx context.Context, r *Q) (*A, error) {
		if err := m.Active(); err != nil {
			return nil, err
		}
		return call(m, ctx, r)
	}
}

func ofState[Q, A any](s *Service, call callOf[*checkpoint.State, Q, A]) callOf[*job.Member, Q, A] {
	return active(func(m *job.Member, ctx context.Context, r *Q) (*A, error) { return call(s.states.Of(m.Job), ctx, r) })
}

func (s *Service) callOptions() []connect.HandlerOption {
	return append([]connect.HandlerOption{connect.WithReadMaxBytes(maxMessageBytes), connect.WithRecover(s.recovered)}, codecs...)
}

// Status describes the aggregator to the admin.
func (s *Service) Status(ctx context.Context, r *api.StatusRequest) (*api.StatusResponse, error) {
	return s.serveStatus((&job.Caller{Admin: true}).With(ctx), r)
}

// serveStatus describes the aggregator. A tenant learns of its own job, the admin of all.
func (s *Service) serveStatus(ctx context.Context, _ *api.StatusRequest) (*api.StatusResponse, error) {
	by := job.CallerOf(ctx)
	out := &api.StatusResponse{Version: s.opts.Version, UptimeSeconds: time.Since(s.start).Seconds()}
	_, out.Draining = s.jobs.State()
	s.cluster.Describe(out)
	for _, p := range s.engines.Served {
		out.Engines = append(out.Engines, s.engines.By[p].Status(by.Admin))
	}
	for _, j := range s.jobs.AllJobs() {
		if by.Owns(j) {
			if err := j.ChargeStatus(ctx, by); err != nil {
				return nil, err
			}
			out.Jobs = append(out.Jobs, j.Status(ctx))
		}
	}
	out.Jobs = append(out.Jobs, s.states.Status(by.MayKnow)...)
	return out, nil
}

// running returns a job of the caller's that runs.
func (s *Service) running(ctx context.Context, what, name string) (*job.Job, error) {
	j := s.jobs.Find(name)
	if j == nil || !job.CallerOf(ctx).Owns(j) {
		return nil, rpc.Refuse(connect.CodePermissionDenied, "%s: no job %q has this token", what, name)
	}
	switch state := j.State(); state {
	case "running":
	case "failed":
		return nil, j.FailureError()
	default:
		return nil, rpc.Refuse(connect.CodeFailedPrecondition, "%s: job %q is %s, not running", what, name, state)
	}
	return j, nil
}

func (s *Service) setPolicy(ctx context.Context, r *api.SetPolicyRequest) (*api.SetPolicyResponse, error) {
	j, err := s.running(ctx, "set policy", r.Job)
	if err != nil {
		return nil, err
	}
	spec, err := policy.Parse(r.Policy)
	if err == nil {
		err = spec.Check(j.Spec.Workers)
	}
	if err != nil {
		return nil, connect.NewError(connect.CodeInvalidArgument, err)
	}
	release, err := j.Hold()
	if err != nil {
		return nil, err
	}
	defer release()
	if j.Agg.Gate == nil {
		return nil, rpc.Refuse(connect.CodeFailedPrecondition, "set policy: job %q: only mode stream has a policy to change", r.Job)
	}
	was, err := j.Agg.Gate.Change(spec, j.Agg.Now())
	if err != nil {
		return nil, rpc.Refuse(connect.CodeFailedPrecondition, "set policy: job %q: %w", r.Job, err)
	}
	s.log.Info("policy changes", "job", j.Name, "from", was, "to", spec)
	return &api.SetPolicyResponse{Was: was.String()}, nil
}

func (s *Service) setCodec(ctx context.Context, r *api.SetCodecRequest) (*api.SetCodecResponse, error) {
	j, err := s.running(ctx, "set codec", r.Job)
	if err != nil {
		return nil, err
	}
	was, err := j.SetCodec(r.Codec)
	if err != nil {
		return nil, rpc.Refuse(connect.CodeFailedPrecondition, "set codec: job %q: %w", r.Job, err)
	}
	s.log.Info("codecs are set", "job", j.Name, "to", r.Codec)
	return &api.SetCodecResponse{Was: was}, nil
}
