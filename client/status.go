package client

import (
	"context"
	"fmt"
	"math"
	"time"

	"connectrpc.com/connect"
	"connectrpc.com/grpchealth"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/rackweave/rackweave/client/membership"
	"github.com/rackweave/rackweave/service/api"
	"github.com/rackweave/rackweave/service/api/apiconnect"
)

// Status asks an aggregator what it is doing. It uses Server, CA, Token and Timeout of the configuration. An aggregator of this
// user on this host, whose Unix socket it finds by itself, tells of all jobs, and so does one that is given the admin's token; with
// a job's token it tells of that one.
func Status(ctx context.Context, c Config) (*api.StatusResponse, error) {
	return control(ctx, c, "status", apiconnect.JobServiceClient.Status, &api.StatusRequest{})
}

// DataStatus asks an aggregator, or a service beside one, how far jobs have come in their training sets. It uses the configuration
// as Status does.
func DataStatus(ctx context.Context, c Config) (status *api.DataStatusResponse, err error) {
	err = ask(ctx, c, "data status", func(ctx context.Context, a *membership.Aggregator) (err error) {
		status, err = a.Data.Status(ctx, &api.DataStatusRequest{})
		return err
	})
	return status, err
}

// OfCluster reports whether an aggregator is that of a rack in a cluster, whose racks' workers may be of one job. Everybody may
// ask. It uses Server, CA and Timeout of the configuration.
func OfCluster(ctx context.Context, c Config) (is bool, err error) {
	if err := c.complete(); err != nil {
		return false, err
	}
	access := c.access()
	h, err := access.HTTP()
	if err != nil {
		return false, err
	}
	defer h.CloseIdleConnections()
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	// The messages of grpc.health.v1 have one field each, so they travel as these do.
	health := connect.NewClient[wrapperspb.StringValue, wrapperspb.Int32Value](h, c.Server+"/grpc.health.v1.Health/Check",
		connect.WithReadMaxBytes(1<<10))
	answer, err := health.CallUnary(ctx, connect.NewRequest(wrapperspb.String(apiconnect.RackServiceName)))
	switch {
	case err == nil:
		return answer.Msg.Value == int32(grpchealth.StatusServing), nil
	case connect.CodeOf(err) == connect.CodeNotFound:
		return false, nil
	}
	return false, fmt.Errorf("ask %s whether it is of a cluster: %w", c.Server, access.Classify(err))
}

// longest is the longest time that a message has room for, in whole milliseconds.
const longest = math.MaxUint32 * time.Millisecond

// Drain makes an aggregator refuse new jobs, and end when those it has are done or after timeout; 0 means no timeout. It
// returns how many jobs there are. It uses Server, CA and Timeout of the configuration, and Token, which is the aggregator's
// admin token. An aggregator of this user on this host needs no token.
func Drain(ctx context.Context, c Config, timeout time.Duration) (jobs int, err error) {
	if timeout < 0 || timeout > longest {
		return 0, fmt.Errorf("drain that ends after %v: use 0, which waits for the jobs, to %v", timeout, longest)
	}
	ms := uint32((timeout + time.Millisecond - 1).Milliseconds()) // 0 has its meaning, so a fraction counts as one
	r, err := control(ctx, c, "drain", apiconnect.JobServiceClient.Drain, &api.DrainRequest{TimeoutMs: ms})
	return int(r.GetJobs()), err
}

// Links has the aggregators of a cluster measure the links between their racks, over a provider. If it is empty, they use
// the fastest that leads to other hosts. It uses Server, CA and Timeout of the configuration, and Token, which is the aggregator's
// admin token.
func Links(ctx context.Context, c Config, provider string) (*api.LinksResponse, error) {
	within := c.Timeout - min(c.Timeout/2, 3*time.Second) // so that the aggregator can say which rack it waited for
	return control(ctx, c, "measure links", apiconnect.JobServiceClient.Links,
		&api.LinksRequest{Provider: provider, TimeoutMs: uint32(within.Milliseconds())})
}

// SetPolicy lets another synchronization policy decide who waits for whom in a running job of mode stream, and returns the one
// until now. It uses Server, CA, Job, Token and Timeout of the configuration.
func SetPolicy(ctx context.Context, c Config, policy string) (was string, err error) {
	r, err := control(ctx, c, "set policy", apiconnect.JobServiceClient.SetPolicy, &api.SetPolicyRequest{Job: c.Job, Policy: policy})
	return r.GetWas(), err
}

// SetCodec switches all gradients of a running job whose codecs a controller chooses to a codec, or with auto lets it choose
// again. It returns the last decision, if there was one. It uses Server, CA, Job, Token and Timeout of the configuration.
func SetCodec(ctx context.Context, c Config, codec string) (was string, err error) {
	r, err := control(ctx, c, "set codec", apiconnect.JobServiceClient.SetCodec, &api.SetCodecRequest{Job: c.Job, Codec: codec})
	return r.GetWas(), err
}

// Trace records what happens to a running job's chunks and steps for a while, at most so many events in each of the
// aggregator's lanes, 0 being its default. It uses Server, CA, Job, Token and Timeout of the configuration.
func Trace(ctx context.Context, c Config, d time.Duration, events int) (trace *api.TraceResponse, err error) {
	if d < 0 || d > longest || uint64(events) > math.MaxUint32 {
		return nil, fmt.Errorf("trace of %v, of %d events in each lane: use a millisecond to a minute, and 0 events or more", d, events)
	}
	if c.Timeout == 0 {
		c.Timeout = DefaultTimeout
	}
	c.Timeout += d
	return control(ctx, c, "trace", apiconnect.JobServiceClient.Trace,
		&api.TraceRequest{Job: c.Job, DurationMs: uint32(d.Milliseconds()), Events: uint32(events)})
}

// control makes a call that is not a worker's.
func control[Q, R any](ctx context.Context, c Config, what string,
	call func(apiconnect.JobServiceClient, context.Context, *Q) (*R, error), q *Q) (r *R, err error) {
	err = ask(ctx, c, what, func(ctx context.Context, a *membership.Aggregator) (err error) {
		r, err = call(a.RPC, ctx, q)
		return err
	})
	return r, err
}

// ask calls an aggregator, or a service beside one, that no worker has joined.
func ask(ctx context.Context, c Config, what string, call func(context.Context, *membership.Aggregator) error) error {
	if err := c.complete(); err != nil {
		return err
	}
	if len(c.servers()) > 1 {
		return fmt.Errorf("%s of %s: ask one aggregator after the other", what, c.Server)
	}
	access := c.access()
	access.UseSocket()
	a, err := membership.Dial(access)
	if err != nil {
		return err
	}
	defer a.Close()
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	if err := call(ctx, a); err != nil {
		return fmt.Errorf("%s of %s: %w", what, c.Server, a.Classify(err))
	}
	return nil
}
