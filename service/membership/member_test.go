package membership

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rackweave/rackweave/service/racks"
)

func says(t *testing.T, err error, want ...string) {
	t.Helper()
	for _, w := range want {
		if err == nil || !strings.Contains(err.Error(), w) {
			t.Errorf("%v\nwant it to say %q", err, w)
		}
	}
}

func TestAggregatorsShareOnePlan(t *testing.T) {
	t.Parallel()
	e := startEtcd(t)
	a := e.join("a", "http://a:1", nil)
	s := a.until("alone", func(s racks.Standing) bool { return s.Refusal == nil })
	if s.Plan.Holders[0].Aggregator != a.ID() || s.Plan.Holders[1].Aggregator != "" {
		t.Errorf("the plan is %+v", s.Plan)
	}
	b := e.join("b", "http://b:1", nil)
	first, second := a.until("both", whole).Plan, b.until("both", whole).Plan
	if first.Epoch != second.Epoch || first.Holders[1] != second.Holders[1] || first.Holders[1].URL != "http://b:1" ||
		first.Holders[1].Aggregator != b.ID() || first.Holders[0].Token >= first.Holders[1].Token {
		t.Errorf("plans %+v and %+v", first, second)
	}
	if err := a.leave(); err != nil {
		t.Errorf("it left with %v", err)
	}
	s = b.until("a has left", func(s racks.Standing) bool { return s.Refusal == nil && s.Plan.Holders[0].Aggregator == "" })
	if s.Store.Leader != "b" || s.Plan.Epoch <= first.Epoch {
		t.Errorf("rack %q leads in epoch %d", s.Store.Leader, s.Plan.Epoch)
	}
	again := e.join("a", "http://a:2", nil)
	if h := again.until("again", whole).Plan.Holders[0]; h.Token <= first.Holders[0].Token || h.URL != "http://a:2" {
		t.Errorf("the second claim is %v, the first was %v", h, first.Holders[0])
	}
}

func TestASecondAggregatorOfARackIsRefusedByName(t *testing.T) {
	t.Parallel()
	e := startEtcd(t)
	first := e.join("a", "http://first:1", nil)
	first.until("first", func(s racks.Standing) bool { return s.Refusal == nil })
	second := e.join("a", "http://second:1", nil)
	err := second.refused()
	says(t, err, `rack "a"`, "http://first:1", "token ")
	if !errors.Is(err, ErrTaken) {
		t.Errorf("%v is not ErrTaken", err)
	}
	if s := first.Standing(); s.Refusal != nil || s.Plan.Holders[0].URL != "http://first:1" {
		t.Errorf("the first stands at %+v", s)
	}
}

func TestAStandbyTakesTheRackOfOneThatIsGone(t *testing.T) {
	t.Parallel()
	e := startEtcd(t)
	first := e.join("a", "http://first:1", nil)
	first.until("first", func(s racks.Standing) bool { return s.Refusal == nil })
	second := e.join("a", "http://second:1", func(c *Config) { c.Standby = true })
	s := second.until("it waits", func(s racks.Standing) bool { return s.Refusal != nil && errors.Is(s.Refusal, ErrTaken) })
	says(t, s.Refusal, "http://first:1")
	first.leave()
	second.until("it serves", func(s racks.Standing) bool { return s.Refusal == nil && s.Plan.Holders[0].URL == "http://second:1" })
}

// An aggregator that was away for longer than its lease finds its rack taken: it must not serve it any more.
func TestAnAggregatorWhoseRackWasTakenIsFenced(t *testing.T) {
	t.Parallel()
	e := startEtcd(t)
	first := e.join("a", "http://first:1", nil)
	first.until("first", func(s racks.Standing) bool { return s.Refusal == nil })
	second := e.join("a", "http://second:1", func(c *Config) { c.Standby = true })
	second.until("it waits", func(s racks.Standing) bool { return errors.Is(s.Refusal, ErrTaken) })
	key := first.view.Keys.Rack("a")
	if _, err := first.etcd().Delete(t.Context(), key); err != nil { // as if its lease had ended
		t.Fatal(err)
	}
	// Whoever claims first has it. The other is refused: fenced, if it was the first.
	deadline := time.After(soon)
	for !first.Standing().Fenced && second.Standing().Refusal != nil {
		select {
		case <-time.After(50 * time.Millisecond):
		case <-deadline:
			t.Fatal("nobody has the rack")
		}
		first.etcd().Delete(t.Context(), key)
	}
	says(t, first.refused(), `rack "a" is served by the aggregator at http://second:1`)
	if s := first.Standing(); !s.Fenced || s.Refusal == nil {
		t.Errorf("the first stands at %+v", s)
	}
}

func TestEtcdMayBeAway(t *testing.T) {
	t.Parallel()
	e := startEtcd(t)
	a, b := e.join("a", "http://a:1", nil), e.join("b", "http://b:1", nil)
	was := a.until("both", whole).Plan
	e.stop()
	s := a.until("unreachable", func(s racks.Standing) bool { return s.Refusal != nil })
	says(t, s.Refusal, "etcd does not answer", e.cfg.URL, "jobs that run go on")
	if s.Fenced || s.Store.Reachable || s.Plan.Epoch != was.Epoch || s.Plan.Holders[1] != was.Holders[1] {
		t.Errorf("the standing is %+v, the plan was %+v", s, was)
	}
	e.start()
	for _, r := range []*running{a, b} {
		now := r.until("again", whole)
		for i, h := range now.Plan.Holders {
			if h.Aggregator != was.Holders[i].Aggregator || now.Fenced {
				t.Errorf("rack %d is served by %v, and was by %v", i, h, was.Holders[i])
			}
		}
	}
}

func TestWipedDataAreWrittenAgain(t *testing.T) {
	t.Parallel()
	e := startEtcd(t)
	a, b := e.join("a", "http://a:1", nil), e.join("b", "http://b:1", nil)
	was := a.until("both", whole).Plan
	for range 300 { // the revisions of the new data begin below
		if _, err := a.etcd().Put(t.Context(), "/other", "x"); err != nil {
			t.Fatal(err)
		}
	}
	e.stop()
	for _, r := range []*running{a, b} {
		r.until("unreachable", func(s racks.Standing) bool { return s.Refusal != nil })
	}
	if err := os.RemoveAll(filepath.Join(e.cfg.Dir, "data")); err != nil {
		t.Fatal(err)
	}
	e.start()
	for _, r := range []*running{a, b} {
		now := r.until("again", whole)
		for i, h := range now.Plan.Holders {
			if h.Aggregator != was.Holders[i].Aggregator || h.URL != was.Holders[i].URL {
				t.Errorf("rack %d is served by %v, and was by %v", i, h, was.Holders[i])
			}
		}
	}
}

func TestClustersThatDifferAreRefusedNamingBoth(t *testing.T) {
	t.Parallel()
	e := startEtcd(t)
	a := e.join("a", "http://a:1", nil)
	a.until("a", func(s racks.Standing) bool { return s.Refusal == nil })
	b := e.join("b", "http://b:1", func(c *Config) { c.Cluster.Shape = "root" })
	err := b.refused()
	says(t, err, `rack "a"`, "shape auto", `rack "b"`, "shape root")
	if !errors.Is(err, ErrDiffers) {
		t.Errorf("%v is not ErrDiffers", err)
	}
}

func TestAnAggregatorWithoutTheSecretIsRefused(t *testing.T) {
	t.Parallel()
	e := startEtcd(t)
	a := e.join("a", "http://a:1", nil)
	a.until("a", func(s racks.Standing) bool { return s.Refusal == nil })
	stranger := e.join("a", "http://stranger:1", func(c *Config) { c.Cluster.Secret = "another secret of racks" })
	says(t, stranger.refused(), "is not sealed with this cluster's secret", "remove the key")
	other := e.join("b", "http://stranger:2", func(c *Config) { c.Cluster.Secret = "another secret of racks" })
	says(t, other.refused(), "is not sealed with this cluster's secret")
	s := a.until("still", func(s racks.Standing) bool { return s.Refusal == nil })
	if h := s.Plan.Holders[1]; h.Aggregator != "" {
		t.Errorf("the stranger serves rack b: %v", h)
	}
}

func TestEtcdThatIsNotThereIsNamedInTime(t *testing.T) {
	t.Parallel()
	began := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_, err := Open(ctx, Config{Cluster: testCluster("a"), Access: Access{Endpoints: []string{"http://127.0.0.1:1"}}})
	says(t, err, "etcd does not answer at http://127.0.0.1:1", "--etcd embed")
	if !errors.Is(err, ErrUnreachable) || time.Since(began) > soon/2 {
		t.Errorf("%v after %v", err, time.Since(began))
	}
}
