package membership

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/service/api"
	"github.com/rackweave/rackweave/service/api/apiconnect"
)

// Aggregator is an aggregator, which a worker may have joined.
type Aggregator struct {
	Access
	RPC       apiconnect.JobServiceClient
	Data      apiconnect.DataServiceClient
	Info      *api.JoinResponse // if nil, it was not joined
	Number    int               // among the aggregators of the job
	Lane, NIC int               // the numbers of its first lane and NIC, in the whole job

	http *http.Client
}

// Dial prepares calls to an aggregator.
func Dial(access Access) (*Aggregator, error) {
	client, err := access.HTTP()
	if err != nil {
		return nil, err
	}
	a := &Aggregator{Access: access, http: client}
	session := func() string { return a.Info.GetSession() }
	a.RPC = apiconnect.NewJobServiceClient(client, access.Server, api.Identify(session, access.Token))
	a.Data = apiconnect.NewDataServiceClient(client, access.Server, api.Identify(session, access.Token))
	return a, nil
}

// Close closes the connections of calls that have ended.
func (a *Aggregator) Close() { a.http.CloseIdleConnections() }

// Lanes returns the aggregator's lanes, in the plan's form.
func (a *Aggregator) Lanes() []chunk.Lane {
	out := make([]chunk.Lane, len(a.Info.Lanes))
	for i, l := range a.Info.Lanes {
		out[i] = chunk.Lane{NIC: int(l.Nic), Core: int(l.Core), Weight: l.Weight}
	}
	return out
}

// join makes the Join call, which waits until all workers have joined.
func (a *Aggregator) join(ctx context.Context, r *api.JoinRequest) error {
	err := api.Contact(ctx, a.Timeout, func(within time.Duration) (err error) {
		call, cancel, ms := Bound(ctx, within)
		defer cancel()
		r.TimeoutMs = ms
		a.Info, err = a.RPC.Join(call, r)
		return err
	})
	if err != nil {
		a.Close()
		return withCause(ctx, a.Classify(err))
	}
	if len(a.Info.Aggregators) == 0 &&
		(len(a.Info.Record) != chunk.RecordValues || len(a.Info.Lanes) == 0 || a.Info.Window == 0) {
		return errors.New("the aggregator's answer is incomplete: client and aggregator are of different versions")
	}
	return nil
}
