package membership

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/rackweave/rackweave/service/membership/view"
	"github.com/rackweave/rackweave/service/racks"
)

// toy is etcd as the model has it: keys under leases, and a history that watchers follow at their own speed.
type toy struct {
	revision int64
	keys     map[string]*mvccpb.KeyValue
	history  []*clientv3.Event
	granted  clientv3.LeaseID
}

var errCut = errors.New("cut off")

func (e *toy) put(key, value string, lease clientv3.LeaseID) {
	e.revision++
	kv := &mvccpb.KeyValue{Key: []byte(key), Value: []byte(value), CreateRevision: e.revision, ModRevision: e.revision,
		Lease: int64(lease)}
	if was := e.keys[key]; was != nil {
		kv.CreateRevision = was.CreateRevision
	}
	e.keys[key] = kv
	e.history = append(e.history, &clientv3.Event{Type: mvccpb.Event_PUT, Kv: kv})
}

// end ends a lease.
func (e *toy) end(lease clientv3.LeaseID) {
	for key, kv := range e.keys {
		if kv.Lease == int64(lease) {
			delete(e.keys, key)
			e.revision++
			e.history = append(e.history, &clientv3.Event{Type: mvccpb.Event_DELETE, Kv: &mvccpb.KeyValue{Key: []byte(key)}})
		}
	}
}

func (e *toy) created(key string) int64 {
	if kv := e.keys[key]; kv != nil {
		return kv.CreateRevision
	}
	return 0
}

// wire is a member's way to the toy.
type wire struct {
	*toy
	m *modelled
}

func (w *wire) claim(_ context.Context, key, value string, created int64, lease clientv3.LeaseID) error {
	if w.m.cut {
		return errCut
	}
	if w.created(key) == created && !w.m.expired {
		w.put(key, value, lease)
	}
	return nil
}

func (w *wire) decide(_ context.Context, value string, token, epoch int64) error {
	if w.m.cut {
		return errCut
	}
	var mod int64
	if kv := w.toy.keys[w.m.view.Keys.Plan]; kv != nil {
		mod = kv.ModRevision
	}
	if w.created(w.m.view.Keys.Leader) == token && mod == epoch {
		w.put(w.m.view.Keys.Plan, value, 0)
	}
	return nil
}

// modelled is a member that a test drives.
type modelled struct {
	*Member
	seen    int // of the history
	cut     bool
	expired bool // its lease has ended
	old     []clientv3.LeaseID
	ended   bool // it gave up
	epoch   int64
}

// model is a cluster of two racks, with more aggregators than racks.
type model struct {
	toy     *toy
	members []*modelled
}

func newModel(n int) *model {
	w := &model{toy: &toy{keys: map[string]*mvccpb.KeyValue{}}}
	for i := range n {
		c := testCluster([]string{"a", "b"}[i%2])
		c.OnLoss = racks.LossGoOn
		x := &modelled{Member: &Member{
			cfg: Config{Cluster: c, TTL: MaxTTL, Standby: true, Log: slog.New(slog.DiscardHandler)}, id: fmt.Sprint("aggregator", i),
			url: fmt.Sprintf("http://%d", i), view: view.New(c, 0), changed: make(chan struct{}), standing: racks.Standing{Refusal: errCut},
		}}
		x.contest = &wire{toy: w.toy, m: x}
		x.begin(w.toy)
		w.members = append(w.members, x)
	}
	return w
}

// begin gives a member a new lease, and has it read all keys, as Run does.
func (x *modelled) begin(e *toy) {
	e.granted++
	x.lease, x.expired, x.asked = e.granted, false, time.Now()
	x.view.Clear()
	for _, kv := range e.keys {
		x.view.Put(string(kv.Key), kv.Value, kv.CreateRevision, kv.ModRevision, kv.Lease)
	}
	x.seen = len(e.history)
}

// act has a member do what is due, as Run does.
func (x *modelled) act(e *toy) error {
	if x.expired && !x.cut { // it hears that its lease is gone
		x.begin(e)
	}
	err := x.Member.act(context.Background())
	if err == nil {
		err = x.publish()
	}
	if fatal(err) {
		x.ended = true
		e.end(x.lease)
		return nil
	}
	if errors.Is(err, errCut) {
		return nil
	}
	return err
}

// step does one thing, drawn at random.
func (w *model) step(t *testing.T, r *rand.Rand) {
	x := w.members[r.IntN(len(w.members))]
	if x.ended {
		return
	}
	often := []string{"act", "act", "act", "hear", "hear", "hear", "expire", "lease", "lapse", "end", "cut", "restore"}
	switch often[r.IntN(len(often))] {
	case "act":
		if err := x.act(w.toy); err != nil {
			t.Fatal(err)
		}
	case "hear":
		if !x.cut {
			n := 1 + r.IntN(4)
			to := min(len(w.toy.history), x.seen+n)
			x.apply(w.toy.history[x.seen:to])
			x.seen = to
		}
	case "expire": // by its own clock a member's lease has ended when etcd ends it
		x.asked = time.Now().Add(-MaxTTL)
		x.update(func() { x.renewed = x.asked })
		x.expired = true
		w.toy.end(x.lease)
	case "lease": // another, while the first has not ended
		if !x.cut && !x.expired {
			x.old = append(x.old, x.lease)
			x.begin(w.toy)
		}
	case "lapse": // the first ends, too, and the others go on before it hears or does anything
		if !x.cut && !x.expired {
			x.old = append(x.old, x.lease)
			x.begin(w.toy)
			w.endOld(x)
			w.goOn(t, x)
		}
	case "end":
		w.endOld(x)
	case "cut":
		x.cut = true
	case "restore":
		x.cut = false
	}
}

// goOn lets all members but one hear all and act, until they have a plan.
func (w *model) goOn(t *testing.T, but *modelled) {
	for range 4 {
		for _, x := range w.members {
			if x == but || x.ended || x.cut {
				continue
			}
			x.apply(w.toy.history[x.seen:])
			x.seen = len(w.toy.history)
			if err := x.act(w.toy); err != nil {
				t.Fatal(err)
			}
			w.check(t)
		}
	}
}

// endOld ends leases that a member renews no more: not before their time, by its own clock.
func (w *model) endOld(x *modelled) {
	if kv := w.toy.keys[x.view.Keys.Rack(x.cfg.Cluster.Own)]; kv != nil && slices.Contains(x.old, clientv3.LeaseID(kv.Lease)) {
		x.update(func() { x.renewed = time.Now().Add(-MaxTTL) })
	}
	for _, l := range x.old {
		w.toy.end(l)
	}
	x.old = nil
}

// check holds what must hold at any time.
func (w *model) check(t *testing.T) {
	serving := map[string]string{}
	for _, x := range w.members {
		s := x.Standing()
		if s.Plan.Epoch < x.epoch {
			t.Errorf("%s went back from epoch %d to %d", x.id, x.epoch, s.Plan.Epoch)
		}
		x.epoch = s.Plan.Epoch
		if s.Refusal != nil {
			continue
		}
		own := x.cfg.Cluster.Own
		if other := serving[own]; other != "" {
			t.Errorf("%s and %s serve rack %s at once", other, x.id, own)
		}
		serving[own] = x.id
	}
}

var modelSeeds = flag.Int("model-seeds", 500, "interleavings of the model to try")

func TestAtMostOneAggregatorServesARack(t *testing.T) {
	for seed := range *modelSeeds {
		r := rand.New(rand.NewPCG(uint64(seed), 0))
		w := newModel(4)
		for range r.IntN(200) {
			w.step(t, r)
			w.check(t)
		}
		for range 40 { // all is well again
			for _, x := range w.members {
				x.cut = false
				w.endOld(x)
			}
			w.goOn(t, nil)
		}
		w.settled(t)
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

// settled holds that all have one plan, in which a rack is served if any aggregator would have it.
func (w *model) settled(t *testing.T) {
	var plan *racks.Plan
	wanted := map[string]bool{}
	for _, x := range w.members {
		if x.ended {
			continue
		}
		s := x.Standing()
		if plan != nil && (plan.Epoch != s.Plan.Epoch || !slices.Equal(plan.Holders, s.Plan.Holders)) {
			t.Errorf("%s has plan %+v, another has %+v", x.id, s.Plan, *plan)
		}
		plan = &s.Plan
		wanted[x.cfg.Cluster.Own] = true
		if s.Fenced {
			t.Errorf("%s is fenced and goes on", x.id)
		}
	}
	if plan == nil {
		return
	}
	if len(plan.Holders) != 2 {
		t.Errorf("nothing is decided: %+v", *plan)
		return
	}
	for i, name := range []string{"a", "b"} {
		h := plan.Holders[i]
		if wanted[name] != (h.Aggregator != "") {
			t.Errorf("rack %s is served by %v, and wanted is %v: %+v", name, h, wanted[name], *plan)
		}
	}
}
