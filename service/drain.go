package service

import (
	"context"
	"time"

	"connectrpc.com/grpchealth"

	"github.com/rackweave/rackweave/service/api"
	"github.com/rackweave/rackweave/service/api/apiconnect"
)

func (s *Service) serveDrain(_ context.Context, r *api.DrainRequest) (*api.DrainResponse, error) {
	return &api.DrainResponse{Jobs: uint32(s.StartDrain(time.Duration(r.TimeoutMs) * time.Millisecond))}, nil
}

// StartDrain refuses new jobs and makes [Service.Serve] return when the present jobs have ended, or after timeout. If timeout is 0,
// it waits for them. It returns the number of present jobs.
func (s *Service) StartDrain(timeout time.Duration) int {
	n, already := s.jobs.Drain()
	if already {
		return n
	}
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
	for n, _ := s.jobs.State(); n > 0; n, _ = s.jobs.State() {
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
