package cluster

import (
	"context"

	"connectrpc.com/connect"

	"github.com/rackweave/rackweave/service/api"
	"github.com/rackweave/rackweave/service/engine"
	"github.com/rackweave/rackweave/service/job"
	"github.com/rackweave/rackweave/service/racks"
	"github.com/rackweave/rackweave/service/rpc"
)

// Alone is the part in a cluster of an aggregator that is in none.
type Alone struct{ job.NoCluster }

// Open does nothing.
func (Alone) Open(*engine.Set) {}

// OwnURL returns "".
func (Alone) OwnURL() string { return "" }

// CheckTLS returns nil.
func (Alone) CheckTLS() error { return nil }

func errAlone() error {
	return rpc.Refuse(connect.CodeFailedPrecondition,
		"this aggregator is of no cluster: start it with --cluster, or take it out of the file")
}

// Serve refuses the question.
func (Alone) Serve(context.Context, *api.AskRequest) (*api.AskResponse, error) {
	return nil, errAlone()
}

// ServeLinks refuses the question.
func (Alone) ServeLinks(context.Context, *api.LinksRequest) (*api.LinksResponse, error) {
	return nil, errAlone()
}

// Standing returns false.
func (Alone) Standing() (s racks.Standing, dynamic bool) { return s, false }

// FollowPlan returns at once.
func (Alone) FollowPlan(func() []*job.Job) {}

// Describe adds nothing.
func (Alone) Describe(*api.StatusResponse) {}

// CloseIdleConnections does nothing.
func (Alone) CloseIdleConnections() {}
