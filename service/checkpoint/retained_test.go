package checkpoint

import (
	"log/slog"
	"testing"
	"time"

	"github.com/rackweave/rackweave/aggregate"
	"github.com/rackweave/rackweave/service/job"
	"github.com/rackweave/rackweave/service/quota"
)

// What is kept gives way to a job that fits then, and to no other: else any tenant could take it from all by asking for too much.
func TestKeptStatesGiveWayOnlyWhereThatIsEnough(t *testing.T) {
	l := quota.New(quota.Amounts{quota.Memory: 1000})
	log := slog.New(slog.DiscardHandler)
	s := NewStore("", log, nil, nil)
	jobs := &job.Table{Config: job.Config{Retainer: s, Refused: func(string) {}}}
	for i, name := range []string{"a", "b", "c"} {
		k := &retained{Tenant: job.Tenant{Job: name}, state: &aggregate.Retained{}, account: l.Open(nil),
			expiry: time.AfterFunc(time.Hour, func() {})}
		k.Failed = int64(i)
		if err := k.account.Charge(quota.Amounts{quota.Memory: 200}); err != nil {
			t.Fatal(err)
		}
		s.retained[k.Tenant] = k
	}
	small := &job.Job{Name: "small", Table: jobs, Account: l.Open(quota.Amounts{quota.Memory: 100})}
	large := &job.Job{Name: "large", Table: jobs, Account: l.Open(nil)}
	for _, c := range []struct {
		j    *job.Job
		most int64
		fits bool
		kept int
	}{{small, 101, false, 3}, {large, 1001, false, 3}, {small, 100, true, 3}, {large, 400, true, 2}, {large, 1000, false, 2}} {
		if err := c.j.Charge("it", quota.Amounts{quota.Memory: c.most}); (err == nil) != c.fits || len(s.retained) != c.kept {
			t.Errorf("%d bytes for job %s: %v, %d states are kept, want %d", c.most, c.j.Name, err, len(s.retained), c.kept)
		}
	}
	if s.retained[job.Tenant{Job: "a"}] != nil {
		t.Error("the oldest did not give way first")
	}
}

func TestWhatIsKeptOfAJobStaysWhenAnotherTokensJobOfItsNameFails(t *testing.T) {
	s := NewStore("", slog.New(slog.DiscardHandler), nil, nil)
	mine, theirs := job.Tenant{Job: "j", Token: "mine"}, job.Tenant{Job: "j", Token: "theirs"}
	for _, of := range []job.Tenant{mine, theirs} {
		s.retain(&retained{Tenant: of, state: &aggregate.Retained{}, account: quota.New(nil).Open(nil)})
	}
	for _, of := range []job.Tenant{mine, theirs} {
		if k := s.retainedOf(of); k == nil || k.Tenant != of {
			t.Errorf("of %v: %v is kept", of, k)
		}
	}
	if !s.DropOldest(theirs) || s.retainedOf(mine) != nil || s.retainedOf(theirs) == nil {
		t.Error("a job of the same name gave way to none")
	}
	s.dropThis(s.retainedOf(theirs))
}
