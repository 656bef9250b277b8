package service

import (
	"context"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rackweave/rackweave/hierarchy/planner"
	"github.com/rackweave/rackweave/service/api"
	"github.com/rackweave/rackweave/service/quota"
)

// Handler answers requests as the port does, of peers that have no connection.
func (s *Service) Handler() http.Handler { return http.HandlerFunc(s.guard) }

// Collector gives the service's metrics to a registry.
func (s *Service) Collector() prometheus.Collector { return collector{s} }

// Join joins as a call does that no connection brings.
func (s *Service) Join(ctx context.Context, r *api.JoinRequest) (*api.JoinResponse, error) {
	return s.jobs.Join(ctx, r)
}

// SetLinks takes the place of a measurement of the links between the cluster's racks.
func (s *Service) SetLinks(l *planner.Links) { s.cluster.SetLinks(l) }

// TakeAway lets the machine have less of a resource.
func (s *Service) TakeAway(resource string, n int64) { s.jobs.Ledger.Add(quota.Amounts{resource: -n}) }
