package membership

import (
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/rackweave/rackweave/service/membership/view"
	"github.com/rackweave/rackweave/service/racks"
)

// stranger can write to etcd and does not know the cluster's secret.
type stranger struct {
	t    *testing.T
	etcd *clientv3.Client
	keys view.Keys
}

// write writes to every key of the cluster what a value says, under a lease of so many seconds; 0: under none.
func (s *stranger) write(seconds int64, value func(key string) string) {
	s.t.Helper()
	var under []clientv3.OpOption
	if seconds > 0 {
		lease, err := s.etcd.Grant(s.t.Context(), seconds)
		if err != nil {
			s.t.Fatal(err)
		}
		under = append(under, clientv3.WithLease(lease.ID))
	}
	k := s.keys
	for _, key := range []string{k.Rack("a"), k.Rack("b"), k.Rack("nobody"), k.Leader, k.Plan, k.Prefix} {
		if _, err := s.etcd.Put(s.t.Context(), key, value(key), under...); err != nil {
			s.t.Fatal(err)
		}
	}
}

// mended waits until etcd holds a plan of this cluster's for all racks, and nothing else that it reads.
func (s *stranger) mended(a *aggregator) {
	s.t.Helper()
	for end := time.Now().Add(soon); ; time.Sleep(20 * time.Millisecond) {
		v := view.New(testCluster("a"), 0)
		all, _, err := (&store{s.etcd, s.keys}).read(s.t.Context(), v.Read())
		if err != nil {
			s.t.Fatal(err)
		}
		for _, kv := range all {
			v.Put(string(kv.Key), kv.Value, kv.CreateRevision, kv.ModRevision, kv.Lease)
		}
		now := v.Current()
		plan := racks.Plan{}
		if now != nil {
			plan.Holders = now.Holders
		}
		if len(v.Foreign) == 0 && plan.Served() == 2 && a.Standing().Plan.Epoch == now.Epoch {
			return
		}
		if time.Now().After(end) {
			s.t.Fatalf("etcd holds %+v by others, and plan %+v", v.Foreign, now)
		}
	}
}

func TestWhatAStrangerWritesToEtcdEndsNothing(t *testing.T) {
	t.Parallel()
	e := startEtcd(t)
	reader := e.open("a", nil)
	defer reader.Close()
	s := &stranger{t, reader.etcd(), reader.view.Keys}
	junk := func(string) string { return "junk" }
	s.write(int64(time.Hour/time.Second), junk) // before they begin

	a, b := e.serve("a", nil), e.serve("b", nil)
	s.mended(a)
	j := mustJoin(t, "j", a, b)
	defer j.end()
	j.mustStep()
	sealed, err := s.etcd.Get(t.Context(), s.keys.Rack("b"))
	if err != nil || len(sealed.Kvs) != 1 {
		t.Fatalf("%v, %v", sealed, err)
	}
	for _, w := range []struct {
		what    string
		seconds int64
		value   func(key string) string
	}{
		{"junk", 0, junk},
		{"nothing", int64(time.Hour / time.Second), func(string) string { return "" }},
		{"another rack's claim", 30, func(key string) string {
			if key == s.keys.Rack("b") {
				return "junk"
			}
			return string(sealed.Kvs[0].Value)
		}},
		{"another secret's claim", 30, func(key string) string {
			text, err := view.Encode("another secret of racks", key, &view.Claim{Rack: "a", Aggregator: "x", URL: "http://x"})
			if err != nil {
				t.Error(err)
			}
			return text
		}},
	} {
		for range 3 { // the last finds what the aggregators make of the first
			s.write(w.seconds, w.value)
			j.mustStep()
		}
		s.mended(a)
		for _, x := range []*aggregator{a, b} {
			if s := x.until(w.what, whole); s.Fenced {
				t.Fatalf("%s fences an aggregator: %v", w.what, s.Refusal)
			}
		}
		next := mustJoin(t, "next", a, b)
		next.mustStep()
		next.end()
	}
	j.mustStep()
}
