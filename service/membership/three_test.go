package membership

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/rackweave/rackweave/service/etcd"
	"github.com/rackweave/rackweave/service/etcd/server"
	"github.com/rackweave/rackweave/service/racks"
)

// threeEtcds runs etcd's members beside the aggregators of racks a, b and c.
func threeEtcds(t *testing.T) map[string]*etcdServer {
	names := []string{"a", "b", "c"}
	var peers []string
	for range names {
		peers = append(peers, fmt.Sprintf("http://127.0.0.1:%d", freePort(t)))
	}
	all := map[string]*etcdServer{}
	for i, name := range names {
		all[name] = &etcdServer{t: t, cfg: etcd.Config{Name: name, Dir: t.TempDir(), Cluster: "test", Peer: peers[i],
			URL:     fmt.Sprintf("http://127.0.0.1:%d", freePort(t)),
			Members: fmt.Sprintf("a=%s,b=%s,c=%s", peers[0], peers[1], peers[2])}}
	}
	for _, err := range every(len(names), func(i int) (err error) { // none serves before two do
		e := all[names[i]]
		e.server, err = server.Start(e.cfg)
		return err
	}) {
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, e := range all {
		t.Cleanup(e.stop)
	}
	return all
}

// kill ends a member without a word to the others.
func (e *etcdServer) kill() {
	e.server.Etcd.Server.HardStop()
	e.stop()
}

// The host is lost on which etcd's leader runs, beside an aggregator. The two members that are left go on: a standby takes the
// rack, and a job begins. A member in place of the third is taken once it has been added.
func TestThreeEtcdsOutliveOne(t *testing.T) {
	t.Parallel()
	etcds := threeEtcds(t)
	edit := func(c *Config) {
		c.Cluster.Racks, c.Cluster.Shape = append(c.Cluster.Racks, racks.Rack{Name: "c"}), "sharded"
	}
	at := map[string]*aggregator{}
	var urls []string
	for _, name := range []string{"a", "b", "c"} {
		at[name] = etcds[name].serve(name, edit)
		urls = append(urls, etcds[name].cfg.URL)
	}
	for _, x := range at {
		x.until("all serve", whole)
	}
	var lost string
	for name, e := range etcds {
		if s := e.server.Etcd.Server; s.Leader() == s.MemberID() {
			lost = name
		}
	}
	at[lost].crash()
	killed, id := time.Now(), etcds[lost].server.Etcd.Server.MemberID()
	etcds[lost].kill()
	standby := etcds[lost].serve(lost, func(c *Config) {
		edit(c)
		c.Standby, c.Access.Endpoints = true, urls // also of the one that is gone
	})
	at[lost] = standby
	for _, x := range at {
		x.until("the standby serves", func(s racks.Standing) bool {
			return whole(s) && s.Plan.Holders[strings.Index("abc", lost)].Aggregator == standby.ID()
		})
	}
	t.Logf("rack %q, with etcd's leader, is served again after %v", lost, time.Since(killed))
	j, err := join(t, "j", soon, at["a"], at["b"], at["c"])
	for end := time.Now().Add(soon); err != nil; j, err = join(t, "j", soon, at["a"], at["b"], at["c"]) {
		if time.Now().After(end) { // a lease may have ended while etcd had no leader
			t.Fatal(err)
		}
	}
	j.mustStep()
	j.end()

	e := etcds[lost]
	if err := os.RemoveAll(e.cfg.Dir); err != nil {
		t.Fatal(err)
	}
	_, err = server.Start(e.cfg)
	says(t, err, "has served before", "member remove ID", "member add "+lost)
	standby.changeEtcds(func(ctx context.Context, c *clientv3.Client) error {
		_, err := c.MemberRemove(ctx, uint64(id))
		return err
	})
	_, err = server.Start(e.cfg) // as a supervisor does
	says(t, err, "was removed", "member add "+lost)
	standby.changeEtcds(func(ctx context.Context, c *clientv3.Client) error {
		_, err := c.MemberAdd(ctx, []string{e.cfg.Peer})
		return err
	})
	e.start()
}

// changeEtcds changes etcd's members, which it allows once they have been connected for a while.
func (r *running) changeEtcds(change func(context.Context, *clientv3.Client) error) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), soon)
	defer cancel()
	for {
		err := change(ctx, r.etcd())
		if err == nil {
			return
		}
		if ctx.Err() != nil || !errors.Is(err, rpctypes.ErrUnhealthy) {
			r.t.Fatal(err)
		}
		pause(ctx, retryAfter)
	}
}
