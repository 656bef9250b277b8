package job

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/rackweave/rackweave/service/quota"
)

// badRacks cannot form a job.
type badRacks struct {
	OneRack
	form  func(context.Context) error
	ended chan error
}

func (r badRacks) Form(ctx context.Context, _ *Job) (Placement, error) {
	return Placement{}, r.form(ctx)
}
func (r badRacks) End(why error) { r.ended <- why }

// starts begins a job, and returns why it could not, as this rack and the others learn it.
func starts(t *testing.T, call context.Context, form func(context.Context) error, despair error) (here, there error) {
	t.Helper()
	table := &Table{Config: Config{Log: slog.New(slog.DiscardHandler)}}
	racks := badRacks{form: form, ended: make(chan error, 1)}
	j := &Job{Table: table, Spec: Spec{Racks: racks}, Account: quota.New(quota.Amounts{}).Open(quota.Amounts{})}
	j.hopeless, j.despair = context.WithCancelCause(t.Context())
	if despair != nil {
		j.despair(despair)
	}
	here = j.begin(call, t.Context(), &Member{Rank: 7, Host: "host"})
	select {
	case there = <-racks.ended:
	default:
		t.Error("other racks are not told")
	}
	table.Running.Wait() // the service's end does
	return here, there
}

func TestAJobWhoseStartPanicsHasEnded(t *testing.T) {
	here, there := starts(t, t.Context(), func(context.Context) error { panic("it cannot form") }, nil)
	if here == nil || !strings.Contains(here.Error(), "panic at its start") {
		t.Errorf("it has begun with %v", here)
	}
	if there == nil {
		t.Error("other racks do not learn that it has failed")
	}
}

// The workers of the other racks wait for the one that has died as those of its own do.
func TestOtherRacksLearnWhoWentAwayWhileAJobBegan(t *testing.T) {
	wait := func(ctx context.Context) error {
		<-ctx.Done()
		return ctx.Err()
	}
	gone := errors.New("worker 3 went away while the job began")
	if here, there := starts(t, t.Context(), wait, gone); here != gone || there != gone {
		t.Errorf("this rack learns %v, the others %v", here, there)
	}
	call, hangUp := context.WithCancel(t.Context())
	hangUp()
	_, there := starts(t, call, func(context.Context) error { return call.Err() }, nil)
	if there == nil || !strings.Contains(there.Error(), "worker 7 (host, pid 0) went away while the job began") {
		t.Errorf("the others learn %v of the last worker to join", there)
	}
}
