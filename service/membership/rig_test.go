package membership

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/rackweave/rackweave/service/etcd"
	"github.com/rackweave/rackweave/service/etcd/server"
	"github.com/rackweave/rackweave/service/racks"
)

const (
	testSecret = "a secret of the racks"
	soon       = 60 * time.Second // on a crowded machine
)

func freePort(t testing.TB) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// etcdServer is a server that a test may stop, start again, and wipe.
type etcdServer struct {
	t      testing.TB
	cfg    etcd.Config
	server *server.Server
}

func startEtcd(t testing.TB) *etcdServer {
	t.Helper()
	e := &etcdServer{t: t, cfg: etcd.Config{Name: "test", Dir: t.TempDir(), Cluster: "test",
		URL: fmt.Sprintf("http://127.0.0.1:%d", freePort(t)), Peer: fmt.Sprintf("http://127.0.0.1:%d", freePort(t))}}
	e.start()
	t.Cleanup(e.stop)
	return e
}

func (e *etcdServer) start() {
	e.t.Helper()
	var err error
	if e.server, err = server.Start(e.cfg); err != nil {
		e.t.Fatal(err)
	}
}

func (e *etcdServer) stop() {
	if e.server != nil {
		e.server.Close()
		e.server = nil
	}
}

func testCluster(own string) *racks.Cluster {
	return &racks.Cluster{Name: "test", Secret: testSecret, Own: own, Dynamic: true, Racks: []racks.Rack{{Name: "a"}, {Name: "b"}}}
}

// running is a member whose Run is under way.
type running struct {
	*Member
	t      testing.TB
	cancel context.CancelFunc
	ended  chan error
}

// join begins the membership of a rack's aggregator at a URL.
func (e *etcdServer) join(rack, url string, edit func(*Config)) *running {
	e.t.Helper()
	m := e.open(rack, edit)
	ctx, cancel := context.WithCancel(context.Background())
	r := &running{m, e.t, cancel, make(chan error, 1)}
	go func() { r.ended <- m.Run(ctx, url) }()
	e.t.Cleanup(func() { r.leave() })
	return r
}

// open is a membership that is to be run.
func (e *etcdServer) open(rack string, edit func(*Config)) *Member {
	e.t.Helper()
	c := Config{Cluster: testCluster(rack), Access: Access{Endpoints: []string{e.cfg.URL}}, TTL: MinTTL,
		Log: slog.New(slog.NewTextHandler(testLog{e.t, rack}, nil))}
	if edit != nil {
		edit(&c)
	}
	m, err := Open(e.t.Context(), c)
	if err != nil {
		e.t.Fatal(err)
	}
	return m
}

// etcd returns the client.
func (m *Member) etcd() *clientv3.Client { return m.store.client }

type testLog struct {
	t   testing.TB
	who string
}

func (l testLog) Write(b []byte) (int, error) {
	l.t.Logf("%s: %s", l.who, b)
	return len(b), nil
}

// crash ends the membership as the end of its process does: the claim stays until its lease ends.
func (r *running) crash() {
	r.Close()
	r.leave()
}

// leave ends the membership.
func (r *running) leave() error {
	if r.cancel == nil {
		return nil
	}
	r.cancel()
	r.cancel = nil
	err := <-r.ended
	r.Close()
	return err
}

// until waits for a standing.
func (r *running) until(what string, is func(racks.Standing) bool) racks.Standing {
	r.t.Helper()
	deadline := time.After(soon)
	for {
		changed := r.Changed()
		s := r.Standing()
		if is(s) {
			return s
		}
		select {
		case <-changed:
		case <-time.After(100 * time.Millisecond): // a lease ends without a word
		case <-deadline:
			r.t.Fatalf("%s: not in time; the standing is %+v", what, s)
		}
	}
}

// refused waits until the membership ends with an error.
func (r *running) refused() error {
	r.t.Helper()
	select {
	case err := <-r.ended:
		r.ended <- err
		if err == nil {
			r.t.Fatal("it ended without an error")
		}
		return err
	case <-time.After(soon):
		r.t.Fatalf("it was not refused; the standing is %+v", r.Standing())
		return nil
	}
}

func whole(s racks.Standing) bool { return s.Refusal == nil && s.Plan.Served() == len(s.Plan.Holders) }
