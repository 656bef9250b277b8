package service

import (
	"context"

	"connectrpc.com/connect"

	"github.com/rackweave/rackweave/policy"
	"github.com/rackweave/rackweave/service/api"
)

// ReportLoss implements the schema's ReportLoss.
func (s *Service) ReportLoss(ctx context.Context, r *api.ReportLossRequest) (*api.ReportLossResponse, error) {
	m, err := s.active(ctx)
	if err != nil {
		return nil, err
	}
	release, err := m.job.hold()
	if err != nil {
		return nil, err
	}
	defer release()
	if err := m.job.agg.ReportLoss(m.rank, r.Loss); err != nil {
		return nil, connect.NewError(connect.CodeFailedPrecondition, err)
	}
	return &api.ReportLossResponse{}, nil
}

// SetPolicy implements the schema's SetPolicy.
func (s *Service) SetPolicy(ctx context.Context, r *api.SetPolicyRequest) (*api.SetPolicyResponse, error) {
	s.mu.Lock()
	j := s.jobs[r.Job]
	s.mu.Unlock()
	if j == nil || !callerOf(ctx).owns(j) {
		return nil, refuse(connect.CodePermissionDenied, "set policy: there is no job %q with this token", r.Job)
	}
	spec, err := policy.Parse(r.Policy)
	if err == nil {
		err = spec.Check(j.spec.workers)
	}
	if err != nil {
		return nil, connect.NewError(connect.CodeInvalidArgument, err)
	}
	if j.state() != "running" {
		return nil, refuse(connect.CodeFailedPrecondition, "set policy: job %q is %s, not running", r.Job, j.state())
	}
	release, err := j.hold()
	if err != nil {
		return nil, err
	}
	defer release()
	was, err := j.agg.SetPolicy(spec)
	if err != nil {
		return nil, connect.NewError(connect.CodeFailedPrecondition, err)
	}
	s.log.Info("policy changes", "job", j.name, "from", was, "to", spec)
	return &api.SetPolicyResponse{Was: was.String()}, nil
}
