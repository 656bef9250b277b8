package job

import (
	"context"
	"log/slog"
	"strings"
	"testing"

	"github.com/rackweave/rackweave/service/quota"
)

// badRacks panics when a job forms.
type badRacks struct {
	OneRack
	ended chan error
}

func (badRacks) Form(context.Context, *Job) (Placement, error) { panic("it cannot form") }
func (r badRacks) End(why error)                               { r.ended <- why }

func TestAJobWhoseStartPanicsHasEnded(t *testing.T) {
	table := &Table{Config: Config{Log: slog.New(slog.DiscardHandler)}}
	racks := badRacks{ended: make(chan error, 1)}
	j := &Job{Table: table, Spec: Spec{Racks: racks}, Account: quota.New(quota.Amounts{}).Open(quota.Amounts{})}
	if err := j.begin(t.Context()); err == nil || !strings.Contains(err.Error(), "panic at its start") {
		t.Errorf("it has begun with %v", err)
	}
	select {
	case why := <-racks.ended:
		if why == nil {
			t.Error("other racks do not learn that it has failed")
		}
	default:
		t.Error("other racks are not told")
	}
	table.Running.Wait() // the service's end does
}
