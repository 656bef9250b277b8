package service

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"connectrpc.com/connect"

	"github.com/rackweave/rackweave/aggregate"
	deal "github.com/rackweave/rackweave/data"
	"github.com/rackweave/rackweave/data/manifest"
	"github.com/rackweave/rackweave/service/api"
	"github.com/rackweave/rackweave/service/api/apiconnect"
	"github.com/rackweave/rackweave/service/data"
	"github.com/rackweave/rackweave/service/job"
	"github.com/rackweave/rackweave/service/quota"
	"github.com/rackweave/rackweave/service/rpc"
)

// Bounds of a call that opens a set, by a worker of a job and by any tenant. The state to go on from may have many ranges.
const (
	dataBody   = 4 << 20
	besideBody = 256 << 10
)

// LeastLease is the shortest time after which a worker that does not call is lost. One that waits for its step calls every 3 s.
const LeastLease = 10 * time.Second

// serveData mounts the calls that deal rows to the workers of jobs.
func serveData(s *Service) {
	of := func(most int64) rule { return rule{ofMember, most} }
	mountData(s, apiconnect.DataServiceOpenProcedure, of(dataBody), memberOf[*api.OpenDataRequest], s.data.Open)
	mountData(s, apiconnect.DataServiceNextProcedure, of(4<<10), memberOf[*api.NextRowsRequest], s.data.Next)
	mountData(s, apiconnect.DataServiceStateProcedure, of(4<<10), memberOf[*api.DataStateRequest], s.data.State)
	mountDataStatus(s, func(ctx context.Context, k data.Key) bool { return job.CallerOf(ctx).Owns(k.(dealt).Job) })
}

// serveBeside mounts the calls of a service that deals rows alone, to whoever opens a set.
func serveBeside(s *Service) {
	ledger := s.jobs.Ledger.Open(quota.Amounts{})
	account := func(ctx context.Context) *data.Account {
		charge := func(bytes int64) (func(), error) {
			x := quota.Amounts{quota.Memory: bytes}
			return func() { ledger.Return(x) }, ledger.Charge(x)
		}
		return &data.Account{Set: charge, Call: func(bytes int64) error {
			giveBack, err := charge(bytes)
			if err == nil {
				job.CallerOf(ctx).Owe(giveBack)
			}
			return err
		}}
	}
	mount(s, apiconnect.DataServiceOpenProcedure, rule{most: besideBody},
		func(ctx context.Context, r *api.OpenDataRequest) (*api.OpenDataResponse, error) {
			if err := mayOpen(ctx, s, r.Job); err != nil {
				return nil, err
			}
			out, err := s.beside.Open(r, account(ctx))
			return out, dataError(err)
		})
	caller := func(ctx context.Context) (*data.Caller, error) {
		return s.beside.Caller(job.CallerOf(ctx).Dealt, account(ctx))
	}
	mountData(s, apiconnect.DataServiceNextProcedure, rule{},
		func(ctx context.Context, _ *api.NextRowsRequest) (*data.Caller, error) { return caller(ctx) }, s.data.Next)
	mountData(s, apiconnect.DataServiceStateProcedure, rule{},
		func(ctx context.Context, _ *api.DataStateRequest) (*data.Caller, error) { return caller(ctx) }, s.data.State)
	mountDataStatus(s, func(ctx context.Context, k data.Key) bool { return mayOpen(ctx, s, string(k.(data.JobName))) == nil })
}

// mountData mounts a call of the server of rows. of returns who calls.
func mountData[Q, A any](s *Service, procedure string, r rule, of func(context.Context, *Q) (*data.Caller, error),
	call func(*data.Caller, *Q) (*A, error)) {
	mount(s, procedure, r, func(ctx context.Context, q *Q) (out *A, err error) {
		c, err := of(ctx, q)
		if err == nil {
			out, err = call(c, q)
		}
		return out, dataError(err)
	})
}

// mountDataStatus mounts the call that describes the sets that a caller may see.
func mountDataStatus(s *Service, may func(context.Context, data.Key) bool) {
	mount(s, apiconnect.DataServiceStatusProcedure, rule{},
		func(ctx context.Context, _ *api.DataStatusRequest) (*api.DataStatusResponse, error) {
			return &api.DataStatusResponse{Sets: s.data.Status(func(k data.Key) bool { return may(ctx, k) })}, nil
		}, connect.WithIdempotency(connect.IdempotencyNoSideEffects))
}

// dealt is the key of a job's sets.
type dealt struct{ *job.Job }

// Over implements [data.Key].
func (d dealt) Over() bool {
	select {
	case <-d.Job.Over:
		return true
	default:
		return false
	}
}

// progress implements [checkpoint.Progress].
type progress struct{ *Service }

func (p progress) States(j *job.Job) ([]*api.DataState, error) { return p.data.States(dealt{j}) }

func (p progress) Restore(j *job.Job, states []*api.DataState) error {
	return p.data.Restore(dealt{j}, j.Name, states)
}

// memberOf returns the member that calls.
func memberOf[Q interface{ GetIncarnation() string }](ctx context.Context, r Q) (*data.Caller, error) {
	m := job.CallerOf(ctx).Member
	j := m.Job
	if err := m.Active(); err != nil {
		return nil, err
	}
	switch {
	case len(r.GetIncarnation()) > rpc.MaxNameBytes:
		return nil, rpc.Refuse(connect.CodeInvalidArgument, "an incarnation of %d bytes: use at most %d",
			len(r.GetIncarnation()), rpc.MaxNameBytes)
	case j.Spec.Part > 0:
		return nil, rpc.Refuse(connect.CodeFailedPrecondition, "job %q: the first of its aggregators deals rows: call that one", j.Name)
	case j.Spec.Total > j.Spec.Workers:
		return nil, rpc.Refuse(connect.CodeFailedPrecondition,
			"job %q has workers in several racks, and an aggregator deals rows to its own: use a service beside, rackweave data serve", j.Name)
	}
	return &data.Caller{
		Key: dealt{j}, Job: j.Name, Rank: m.Rank, Workers: j.Spec.Workers, Incarnation: m.Session + r.GetIncarnation(),
		Synchronous: j.Spec.Mode != aggregate.Stream, Gone: m.Active,
		Account: &data.Account{
			Set: func(bytes int64) (func(), error) {
				x := quota.Amounts{quota.Memory: bytes}
				return func() { j.Account.Return(x) }, j.Charge("a training set", x)
			},
			Call: func(bytes int64) error { return j.ChargeCall(ctx, "a batch of rows", bytes) },
		},
	}, nil
}

// openBeside opens what deals rows beside an aggregator.
func openBeside(o *Options) (*data.Beside, error) {
	timeout := cmp.Or(o.Beside.LeaseTimeout, time.Minute)
	if timeout < LeastLease {
		return nil, fmt.Errorf("lease timeout of %v: use %v or more", timeout, LeastLease)
	}
	return data.NewBeside(o.DataDir, timeout, o.Beside.Journal, o.Beside.JournalBytes, o.Beside.Replay)
}

// mayOpen refuses a caller without the token of a job.
func mayOpen(ctx context.Context, s *Service, name string) error {
	by := job.CallerOf(ctx)
	p, err := s.policy(name, by)
	if err == nil && p.Token != "" && !by.Admin && !rpc.Equal(by.Token, p.Token) {
		err = rpc.Refuse(connect.CodePermissionDenied, "job %q: wrong token", name)
	}
	return err
}

// dataErrors are the codes of errors of the server of rows. Others are of arguments.
var dataErrors = []struct {
	err  error
	code connect.Code
}{
	{data.ErrReopen, connect.CodeAborted}, {data.ErrUnknown, connect.CodeNotFound}, {fs.ErrNotExist, connect.CodeNotFound},
	{data.ErrFull, connect.CodeResourceExhausted}, {deal.ErrSequence, connect.CodeFailedPrecondition},
	{deal.ErrNotHeld, connect.CodeFailedPrecondition}, {deal.ErrEpoch, connect.CodeFailedPrecondition},
	{manifest.ErrCorrupt, connect.CodeDataLoss}, {data.ErrJournal, connect.CodeUnavailable}, // workers ask again until it is restarted
}

// dataError gives an error of the server of rows a code.
func dataError(err error) error {
	if err == nil || connect.CodeOf(err) != connect.CodeUnknown {
		return err
	}
	for _, e := range dataErrors {
		if errors.Is(err, e.err) {
			return connect.NewError(e.code, err)
		}
	}
	return connect.NewError(connect.CodeInvalidArgument, err)
}
