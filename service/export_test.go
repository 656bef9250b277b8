package service

import (
	"context"
	"net/http"
	"time"

	"github.com/rackweave/rackweave/hierarchy"
	"github.com/rackweave/rackweave/service/quota"
)

// Handler answers requests as the port does, of peers that have no connection.
func (s *Service) Handler() http.Handler { return s.guarded }

// WatchLinks sets what a job's window of steps lasts at least, and how the links of the aggregator's cluster are measured.
func (s *Service) WatchLinks(window time.Duration, measure func() (*hierarchy.Links, error)) {
	w := &s.cluster.watching
	w.window = window
	w.measure = func(*cluster, context.Context, *Service, string, time.Duration) (*hierarchy.Links, error) {
		return measure()
	}
}

// TakeAway lets the machine have less of a resource.
func (s *Service) TakeAway(resource string, n int64) { s.ledger.Add(quota.Amounts{resource: -n}) }
