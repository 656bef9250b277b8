package view

import (
	"slices"
	"testing"
	"time"

	"github.com/rackweave/rackweave/service/racks"
)

const testSecret = "a secret of the racks"

func testCluster() *racks.Cluster {
	return &racks.Cluster{Name: "test", Secret: testSecret, Own: "a", Dynamic: true, OnLoss: racks.LossGoOn,
		Racks: []racks.Rack{{Name: "a"}, {Name: "b"}}}
}

// story is a view that a test tells what etcd does.
type story struct {
	*View
	t        *testing.T
	revision int64
}

func (s *story) put(key string, value any) {
	s.t.Helper()
	s.revision++
	s.Put(key, sealed(s.t, key, value), s.revision, s.revision, 0)
	if len(s.Foreign) > 0 {
		s.t.Fatalf("of its own keys it refuses %v", s.Foreign)
	}
}

func (s *story) claim(rack, aggregator string) {
	s.t.Helper()
	s.put(s.Keys.Rack(rack), Claim{Rack: rack, Aggregator: aggregator, URL: "http://" + aggregator, Declared: s.Declared})
}

// decides holds what the leader should write, and writes it.
func (s *story) decides(at time.Time, want ...racks.Holder) {
	s.t.Helper()
	d, differs := s.Decide(at)
	if !differs || !slices.Equal(d.Holders, want) || d.Leader != "a" || d.Token != s.Leader.Revision {
		s.t.Fatalf("it decides %+v, which differs: %v; want holders %v, with the leader's token %d", d, differs, want, s.Leader.Revision)
	}
	s.put(s.Keys.Plan, d)
	if again, differs := s.Decide(at); differs {
		s.t.Fatalf("what is written it would write again: %+v", again)
	}
	if now := s.Current(); now == nil || now.Epoch != s.revision || !slices.Equal(now.Holders, want) {
		s.t.Fatalf("the plan is %+v, want epoch %d", now, s.revision)
	}
}

func newStory(t *testing.T) *story {
	s := &story{View: New(testCluster(), 10*time.Second), t: t}
	s.put(s.Keys.Leader, Claim{Rack: "a", Aggregator: "0", URL: "http://0", Declared: s.Declared})
	s.claim("a", "0")
	return s
}

func TestThePlanFollowsTheClaims(t *testing.T) {
	s, now := newStory(t), time.Unix(0, 0)
	a := racks.Holder{Aggregator: "0", URL: "http://0", Token: 2}
	s.decides(now, a, racks.Holder{}) // b was never served: nothing begins without it
	s.claim("b", "1")
	s.decides(now, a, racks.Holder{Aggregator: "1", URL: "http://1", Token: 4})
	s.Drop(s.Keys.Rack("b"))
	s.decides(now, a, racks.Holder{Token: 4})
	s.claim("b", "2")
	s.decides(now, a, racks.Holder{Aggregator: "2", URL: "http://2", Token: 7})
}

func TestARackIsOutWhenItWasLostForLong(t *testing.T) {
	s, now := newStory(t), time.Unix(0, 0)
	a := racks.Holder{Aggregator: "0", URL: "http://0", Token: 2}
	s.claim("b", "1")
	s.decides(now, a, racks.Holder{Aggregator: "1", URL: "http://1", Token: 3})
	s.Drop(s.Keys.Rack("b"))
	s.decides(now, a, racks.Holder{Token: 3})
	if d, differs := s.Decide(now.Add(9 * time.Second)); differs {
		t.Errorf("too soon it decides %+v", d)
	}
	s.decides(now.Add(10*time.Second), a, racks.Holder{Token: 3, Out: true})
	s.claim("b", "1")
	s.decides(now.Add(time.Minute), a, racks.Holder{Aggregator: "1", URL: "http://1", Token: 7})
	s.Drop(s.Keys.Rack("b"))
	s.decides(now.Add(time.Hour), a, racks.Holder{Token: 7}) // it is lost anew
}

func TestAPlanCountsUntilAnotherLeaderIsThere(t *testing.T) {
	s, now := newStory(t), time.Unix(0, 0)
	s.decides(now, racks.Holder{Aggregator: "0", URL: "http://0", Token: 2}, racks.Holder{})
	s.Drop(s.Keys.Leader)
	if d := s.Current(); d != nil || s.Plan == nil {
		t.Errorf("without a leader the current plan is %+v, and the last %+v", d, s.Plan)
	}
	s.put(s.Keys.Leader, Claim{Rack: "a", Aggregator: "0", URL: "http://0", Declared: s.Declared})
	if d := s.Current(); d != nil {
		t.Errorf("another leader's is current: %+v", d)
	}
	s.decides(now, racks.Holder{Aggregator: "0", URL: "http://0", Token: 2}, racks.Holder{})
}

func TestWhatTheClusterDidNotWriteIsForeign(t *testing.T) {
	s := newStory(t)
	for _, key := range []string{s.Keys.Rack("b"), s.Keys.Leader, s.Keys.Plan} {
		s.Put(key, []byte("?"), 9, 9, 0)
		if s.Foreign[key].Err == nil {
			t.Errorf("%s is taken", key)
		}
		s.Drop(key)
		if err := s.Foreign[key].Err; err != nil {
			t.Errorf("%s is gone, and still %v", key, err)
		}
	}
	other := sealed(t, s.Keys.Rack("b"), Claim{Rack: "a", Aggregator: "1", URL: "http://1"})
	s.Put(s.Keys.Rack("b"), other, 9, 9, 0)
	if s.Foreign[s.Keys.Rack("b")].Err == nil || s.Claims["a"].Aggregator != "0" {
		t.Errorf("rack b's key gives rack a to %+v", s.Claims["a"])
	}
	s.Clear()
	if len(s.Foreign)+len(s.Claims) > 0 || s.Leader != nil || s.Plan != nil {
		t.Errorf("nothing is read, and it has %+v", s.View)
	}
}
