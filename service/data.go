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

// dataBody bounds a call that opens a set. The state to go on from may have many ranges.
const dataBody = 4 << 20

// serveData mounts the calls that deal rows.
func serveData(s *Service) {
	mountOf(s, apiconnect.DataServiceOpenProcedure, dataBody, ofData(s, (*data.Server).Open))
	mountOf(s, apiconnect.DataServiceNextProcedure, 4<<10, ofData(s, (*data.Server).Next))
	mountOf(s, apiconnect.DataServiceStateProcedure, 4<<10, ofData(s, (*data.Server).State))
	mount(s, apiconnect.DataServiceStatusProcedure, rule{}, dataStatus(s), connect.WithIdempotency(connect.IdempotencyNoSideEffects))
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
type progress struct{ *data.Server }

func (p progress) States(j *job.Job) ([]*api.DataState, error) { return p.Server.States(dealt{j}) }

func (p progress) Restore(j *job.Job, states []*api.DataState) error {
	return p.Server.Restore(dealt{j}, j.Name, states)
}

// ofData calls the server of rows for a member.
func ofData[Q, A any](s *Service, call func(*data.Server, *data.Caller, *Q) (*A, error)) callOf[*job.Member, Q, A] {
	return active(func(m *job.Member, ctx context.Context, r *Q) (*A, error) {
		j := m.Job
		switch {
		case j.Spec.Part > 0:
			return nil, rpc.Refuse(connect.CodeFailedPrecondition, "job %q: the first of its aggregators deals rows: call that one", j.Name)
		case j.Spec.Total > j.Spec.Workers:
			return nil, rpc.Refuse(connect.CodeFailedPrecondition,
				"job %q has workers in several racks, and an aggregator deals rows to its own: use a service beside, rackweave data serve", j.Name)
		}
		c := &data.Caller{Key: dealt{j}, Job: j.Name, Rank: m.Rank, Workers: j.Spec.Workers, Incarnation: m.Session,
			Synchronous: j.Spec.Mode != aggregate.Stream,
			Gone:        func() bool { return m.Active() != nil },
			Account: &data.Account{
				Set: func(bytes int64) (func(), error) {
					x := quota.Amounts{quota.Memory: bytes}
					return func() { j.Account.Return(x) }, j.Charge("a training set", x)
				},
				Call: func(bytes int64) error { return j.ChargeCall(ctx, "a batch of rows", bytes) },
			},
		}
		out, err := call(s.data, c, r)
		return out, dataError(err)
	})
}

// openBeside opens what deals rows beside an aggregator.
func openBeside(o *Options) (*data.Beside, error) {
	timeout := cmp.Or(o.Beside.LeaseTimeout, time.Minute)
	if timeout < time.Second {
		return nil, fmt.Errorf("lease timeout of %v: use 1s or more", timeout)
	}
	return data.NewBeside(o.DataDir, timeout, o.Beside.Journal, o.Beside.JournalBytes, o.Beside.Replay)
}

// besideBody bounds a call that opens a set beside an aggregator, which any tenant makes.
const besideBody = 256 << 10

// serveBeside mounts the calls of a service that deals rows alone.
func serveBeside(s *Service, b *data.Beside) {
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
			out, err := b.Open(r, account(ctx))
			return out, dataError(err)
		})
	mount(s, apiconnect.DataServiceNextProcedure, rule{},
		func(ctx context.Context, r *api.NextRowsRequest) (*api.NextRowsResponse, error) {
			out, err := b.Next(job.CallerOf(ctx).Dealt, r, account(ctx))
			return out, dataError(err)
		})
	mount(s, apiconnect.DataServiceStateProcedure, rule{},
		func(ctx context.Context, r *api.DataStateRequest) (*api.DataStateResponse, error) {
			out, err := b.State(job.CallerOf(ctx).Dealt, r)
			return out, dataError(err)
		})
	mount(s, apiconnect.DataServiceStatusProcedure, rule{},
		func(ctx context.Context, _ *api.DataStatusRequest) (*api.DataStatusResponse, error) {
			return &api.DataStatusResponse{Sets: b.Status(func(name string) bool { return mayOpen(ctx, s, name) == nil })}, nil
		}, connect.WithIdempotency(connect.IdempotencyNoSideEffects))
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

// dataError gives an error of the server of rows a code.
func dataError(err error) error {
	code := connect.CodeInvalidArgument
	switch {
	case err == nil || connect.CodeOf(err) != connect.CodeUnknown:
		return err
	case errors.Is(err, data.ErrReopen):
		code = connect.CodeAborted
	case errors.Is(err, data.ErrUnknown), errors.Is(err, fs.ErrNotExist):
		code = connect.CodeNotFound
	case errors.Is(err, data.ErrFull):
		code = connect.CodeResourceExhausted
	case errors.Is(err, deal.ErrSequence), errors.Is(err, deal.ErrNotHeld), errors.Is(err, deal.ErrEpoch):
		code = connect.CodeFailedPrecondition
	case errors.Is(err, manifest.ErrCorrupt):
		code = connect.CodeDataLoss
	}
	return connect.NewError(code, err)
}

// dataStatus describes sets. A tenant learns of its own job's, the admin of all.
func dataStatus(s *Service) func(context.Context, *api.DataStatusRequest) (*api.DataStatusResponse, error) {
	return func(ctx context.Context, _ *api.DataStatusRequest) (*api.DataStatusResponse, error) {
		out := &api.DataStatusResponse{}
		for _, j := range s.jobs.AllJobs() {
			if job.CallerOf(ctx).Owns(j) {
				out.Sets = append(out.Sets, s.data.Status(dealt{j}, j.Name)...)
			}
		}
		return out, nil
	}
}
