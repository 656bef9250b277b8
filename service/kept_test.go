package service

import (
	"log/slog"
	"testing"
	"time"

	"github.com/rackweave/rackweave/aggregate"
	"github.com/rackweave/rackweave/service/quota"
)

// What is kept gives way to a job that fits then, and to no other: else any tenant could take it from all by asking for too much.
func TestKeptStatesGiveWayOnlyWhereThatIsEnough(t *testing.T) {
	l := quota.New(quota.Amounts{quota.Memory: 1000})
	log := slog.New(slog.DiscardHandler)
	s := &Service{kept: map[tenant]*kept{}, log: log, ledger: l, refusals: newRefusals(log)}
	for i, name := range []string{"a", "b", "c"} {
		k := &kept{tenant: tenant{job: name}, state: &aggregate.Remains{}, account: l.Open(nil),
			expiry: time.AfterFunc(time.Hour, func() {})}
		k.Failed = int64(i)
		if err := k.account.Charge(quota.Amounts{quota.Memory: 200}); err != nil {
			t.Fatal(err)
		}
		s.kept[k.tenant] = k
	}
	small := &job{name: "small", s: s, account: l.Open(quota.Amounts{quota.Memory: 100})}
	large := &job{name: "large", s: s, account: l.Open(nil)}
	for _, c := range []struct {
		j    *job
		most int64
		fits bool
		kept int
	}{{small, 101, false, 3}, {large, 1001, false, 3}, {small, 100, true, 3}, {large, 400, true, 2}, {large, 1000, false, 2}} {
		if err := c.j.charge("it", quota.Amounts{quota.Memory: c.most}); (err == nil) != c.fits || len(s.kept) != c.kept {
			t.Errorf("%d bytes for job %s: %v, %d states are kept, want %d", c.most, c.j.name, err, len(s.kept), c.kept)
		}
	}
	if s.kept[tenant{job: "a"}] != nil {
		t.Error("the oldest did not give way first")
	}
}

func TestWhatIsKeptOfAJobStaysWhenAnotherTokensJobOfItsNameFails(t *testing.T) {
	s := &Service{kept: map[tenant]*kept{}, log: slog.New(slog.DiscardHandler)}
	mine, theirs := tenant{"j", "mine"}, tenant{"j", "theirs"}
	for _, of := range []tenant{mine, theirs} {
		s.keep(&kept{tenant: of, state: &aggregate.Remains{}, account: quota.New(nil).Open(nil)})
	}
	for _, of := range []tenant{mine, theirs} {
		if k := s.keptOf(of); k == nil || k.tenant != of {
			t.Errorf("of %v: %v is kept", of, k)
		}
	}
	if !s.dropOldest(theirs) || s.keptOf(mine) != nil || s.keptOf(theirs) == nil {
		t.Error("a job of the same name gave way to none")
	}
	s.dropKept(theirs)
}
