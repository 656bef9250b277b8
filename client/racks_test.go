package client_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/rackweave/rackweave/client"
	"github.com/rackweave/rackweave/service"
	"github.com/rackweave/rackweave/service/racks"
	"github.com/rackweave/rackweave/verbs"
)

const clusterSecret = "a secret of the racks"

// serveRacks runs an aggregator for each rack. spoil may change what a rack's own knows of the cluster.
func serveRacks(t testing.TB, n int, spoil func(rack int, c *racks.Cluster)) []*service.Service {
	t.Helper()
	return serveRacksWith(t, n, service.Options{Providers: []string{verbs.ProviderTCP}, Cores: 1}, spoil)
}

func serveRacksWith(t testing.TB, n int, o service.Options, spoil func(rack int, c *racks.Cluster)) []*service.Service {
	t.Helper()
	c := racks.Cluster{Secret: clusterSecret, Shape: "sharded"} // choosing one would measure links at the start of every job
	listeners := make([]net.Listener, n)
	for i := range listeners {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		listeners[i] = l
		c.Racks = append(c.Racks, racks.Rack{Name: fmt.Sprintf("r%d", i), URL: "http://" + l.Addr().String()})
	}
	services := make([]*service.Service, n)
	for i, l := range listeners {
		own := c
		own.Own = c.Racks[i].Name
		if spoil != nil {
			spoil(i, &own)
		}
		o.Listener, o.Cluster = l, &own
		services[i] = serve(t, o)
	}
	return services
}

// joinRacks joins two workers in each of two racks.
func joinRacks(t testing.TB, services []*service.Service, cfg client.Config) ([]*client.Worker, []error) {
	workers := make([]*client.Worker, 2*len(services))
	errs := every(workers, func(i int, _ *client.Worker) (err error) {
		own := cfg
		own.Server, own.Rank, own.Workers, own.Timeout = services[i/2].URL(), i, len(workers), deadline
		workers[i], err = client.Join(bounded(t), own)
		return err
	})
	return workers, errs
}

func TestRacksTrainTogetherInEveryShape(t *testing.T) {
	for _, tc := range []struct {
		shape       string
		racks, pods int
	}{{"sharded", 2, 1}, {"root", 3, 1}, {"chain", 3, 1}, {"pods", 4, 2}} {
		t.Run(tc.shape, func(t *testing.T) { trainTogether(t, tc.shape, tc.racks, tc.pods) })
	}
}

func trainTogether(t *testing.T, shape string, n, pods int) {
	services := serveRacks(t, n, func(_ int, c *racks.Cluster) {
		c.Shape, c.Racks = shape, slices.Clone(c.Racks)
		for i := range c.Racks {
			if pods > 1 {
				c.Racks[i].Pod = fmt.Sprintf("p%d", i*pods/n)
			}
		}
	})
	workers, errs := joinRacks(t, services, client.Config{Job: "j", Token: "t", Provider: verbs.ProviderTCP, Optimizer: "sgd_torch",
		Mode: "eager", Hyper: map[string]float64{"lr": 1}})
	for _, err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
	defer closeAll(t, workers)
	each(t, workers, func(rank int, w *client.Worker) error {
		if by, in := w.Racks(); w.Rank() != rank || len(by) != n || by[0] != 2 || by[1] != 2 || in != pods {
			return fmt.Errorf("rank %d of racks %v with %d pods", w.Rank(), by, in)
		}
		return w.Register(bounded(t), model())
	})
	each(t, workers, func(rank int, w *client.Worker) error {
		i := 7 // layer7.weight
		x, g := make([]float32, 100_000), make([]float32, 100_000)
		for k := range x {
			x[k], g[k] = float32(100*(rank+1)), float32(rank)
		}
		for _, op := range []func() (client.Handle, error){
			func() (client.Handle, error) { return w.Broadcast(i, client.Bytes(x)) },
			func() (client.Handle, error) { return w.PushPull(i, client.Bytes(g), client.Bytes(x), 0) },
		} {
			h, err := op()
			if err == nil {
				err = h.Wait(bounded(t))
			}
			if err != nil {
				return err
			}
		}
		if want := float32(100 - n*(2*n-1)); x[0] != want || x[99_999] != want {
			return fmt.Errorf("parameters %v, %v, want %v", x[0], x[99_999], want)
		}
		return w.Barrier(bounded(t), "end")
	})
	var want uint64
	for _, tensor := range model() {
		want += 4 * tensor.Elems()
	}
	waitFor(t, "the lanes' counters", func() bool { // lanes publish them now and then
		status, err := client.Status(bounded(t), client.Config{Server: services[0].URL(), Token: "t"})
		if err != nil {
			t.Fatal(err)
		}
		if len(status.Jobs) != 1 || len(status.Jobs[0].Racks) != n {
			t.Fatalf("the status has no job over %d racks: %v", n, status)
		}
		var owned uint64
		for _, r := range status.Jobs[0].Racks {
			owned += r.OwnedBytes
		}
		if owned > want {
			t.Fatalf("the racks own %d bytes of a model of %d", owned, want)
		}
		other := status.Jobs[0].Racks[1]
		if other.Name != "r1" || other.Own || other.Workers != 2 {
			t.Fatalf("the other rack is %v", other)
		}
		return owned == want && other.ReceivedBytes > 0 && other.SentBytes > 0
	})
}

func TestRacksThatDoNotAgreeAreRefusedByName(t *testing.T) {
	secure := httptest.NewTLSServer(http.NotFoundHandler())
	secure.Config.ErrorLog = log.New(io.Discard, "", 0)
	t.Cleanup(secure.Close)
	at := func(url string) func(int, *racks.Cluster) { // where rack 0 looks for rack 1
		return func(rack int, c *racks.Cluster) {
			if rack == 0 {
				c.Racks = slices.Clone(c.Racks)
				c.Racks[1].URL = url
			}
		}
	}
	unlike := func(edit func(*racks.Cluster)) func(int, *racks.Cluster) { // what rack 1 has in its file
		return func(rack int, c *racks.Cluster) {
			if rack == 1 {
				c.Racks = slices.Clone(c.Racks)
				edit(c)
			}
		}
	}
	const files = "give all aggregators the same cluster's file"
	for _, tc := range []struct {
		name  string
		spoil func(rack int, c *racks.Cluster)
		edit  func(rank int, c *client.Config)
		want  string
	}{
		{"secret", func(rack int, c *racks.Cluster) { c.Secret += fmt.Sprint(rack) }, nil, "has not this cluster's secret"},
		{"shape", func(rack int, c *racks.Cluster) { c.Shape = []string{"sharded", "root"}[rack] }, nil,
			`rack "r1" has shape root with 1 pods`},
		{"mode", nil, func(rank int, c *client.Config) {
			if rank > 1 {
				c.Mode, c.Optimizer = "eager", "sgd_torch"
			}
		}, `rack "r1" has mode eager`},
		{"token", nil, func(rank int, c *client.Config) { c.Token = fmt.Sprint(rank / 2) }, "token's digest"},
		{"type between racks", func(rack int, c *racks.Cluster) { c.Core = []string{"f32", "bf16"}[rack] }, nil,
			`rack "r1" has type between racks bf16`},
		{"address", at("http://127.0.0.1:1"), nil, "no aggregator serves it there: start its aggregator, or mend its url"},
		{"scheme", at(strings.Replace(secure.URL, "https:", "http:", 1)), nil, "it serves TLS: write its url with https://"},
		{"certificate", at(secure.URL), nil, "give the sha256:FINGERPRINT that its aggregator printed as ca"},
		{"order of racks", unlike(func(c *racks.Cluster) { slices.Reverse(c.Racks) }), nil, files},
		{"number of racks", unlike(func(c *racks.Cluster) {
			c.Racks = append(c.Racks, racks.Rack{Name: "r2", URL: "http://127.0.0.1:1"})
		}), nil, files},
		{"size", unlike(func(c *racks.Cluster) { c.Racks[0].Size = 3 }), nil, files},
		{"outer", unlike(func(c *racks.Cluster) { c.Outer = "every=4,rule=sgd,lr=1" }), nil, files},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			services := serveRacks(t, 2, tc.spoil)
			began := time.Now()
			workers := make([]*client.Worker, 4)
			var said []string
			ctx, cancel := context.WithCancel(bounded(t))
			defer cancel()
			var ended [2]atomic.Bool // by rack: once both have, a worker that comes later would wait
			for i, err := range every(workers, func(i int, _ *client.Worker) error {
				cfg := client.Config{Server: services[i/2].URL(), Job: "j", Rank: i, Workers: 4, Provider: verbs.ProviderTCP,
					Timeout: time.Hour}
				if tc.edit != nil {
					tc.edit(i, &cfg)
				}
				w, err := client.Join(ctx, cfg)
				if err == nil {
					w.Close()
				} else if ended[i/2].Store(true); ended[1-i/2].Load() {
					cancel()
				}
				return err
			}) {
				if err == nil {
					t.Fatalf("worker %d joined", i)
				}
				said = append(said, err.Error())
			}
			if all := strings.Join(said, "\n"); !strings.Contains(all, tc.want) {
				t.Errorf("%s\nwant one to say %q", all, tc.want)
			}
			if took := time.Since(began); took > deadline/2 {
				t.Errorf("took %v", took)
			}
		})
	}
}

// Aggregators of a cluster are not limited as strangers, however often their racks come to a barrier.
func TestBarriersOverRacksAreNotThrottled(t *testing.T) {
	const times = 1500 // a stranger may call about a thousand times
	if os.Getenv("RACKWEAVE_LONG") == "" {
		t.Skip("RACKWEAVE_LONG is not set: barriers over racks are waited for half a minute")
	}
	workers, errs := joinRacks(t, serveRacks(t, 2, nil), client.Config{Job: "j", Mode: "aggregate"})
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	for range times {
		if err := errors.Join(every(workers, func(_ int, w *client.Worker) error { return w.Barrier(t.Context(), "b") })...); err != nil {
			t.Fatal(err)
		}
	}
	every(workers, func(_ int, w *client.Worker) error { return w.Close() })
}

// Workers need to know one aggregator only: each is sent to that of its rank's rack, however uneven the racks are.
func TestWorkersThatComeToAnotherRackAreSentToTheirOwn(t *testing.T) {
	services := serveRacks(t, 2, func(_ int, c *racks.Cluster) {
		c.Racks = slices.Clone(c.Racks)
		c.Racks[0].Size, c.Racks[1].Size = 3, 1
	})
	for first, s := range services {
		workers := make([]*client.Worker, 4)
		errs := every(workers, func(rank int, _ *client.Worker) (err error) {
			workers[rank], err = client.Join(bounded(t), client.Config{Server: s.URL(), Job: fmt.Sprint("j", first), Token: "t",
				Rank: rank, Workers: 4, Provider: verbs.ProviderTCP})
			return err
		})
		if err := errors.Join(errs...); err != nil {
			t.Fatalf("all come to rack %d: %v", first, err)
		}
		for rank, w := range workers {
			if by, _ := w.Racks(); w.Rank() != rank || !slices.Equal(by, []int{3, 1}) {
				t.Errorf("rank %d is %d of racks %v", rank, w.Rank(), by)
			}
		}
		closeAll(t, workers)
	}
	_, err := client.Join(bounded(t), client.Config{Server: services[0].URL(), Job: "none", Rank: 1, Workers: 1})
	refused(t, err, connect.CodeInvalidArgument, "rank 1 in a job of 1 workers")
}

// An aggregator that listens on every address does not know by which one another reaches it: neither a job's connections nor those
// that measure links may need it to.
func TestRacksThatListenOnEveryAddressConnect(t *testing.T) {
	services := serveRacksWith(t, 3, service.Options{Providers: []string{verbs.ProviderTCP}, Cores: 1,
		ProviderOptions: map[string]string{verbs.ProviderTCP: "listen=0.0.0.0"}}, nil)
	workers, errs := joinRacks(t, services, client.Config{Job: "j", Token: "t", Provider: verbs.ProviderTCP})
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	defer closeAll(t, workers)
	each(t, workers, func(_ int, w *client.Worker) error { return w.Register(bounded(t), model()) })
	status, err := client.Status(bounded(t), client.Config{Server: services[0].URL(), Token: "t"})
	if err != nil || len(status.Jobs) != 1 || strings.Contains(status.Jobs[0].ShapeReason, "listens on every address") {
		t.Errorf("%v, %v", status, err)
	}
}

func TestARackThatIsDrainingIsSaidToBe(t *testing.T) {
	t.Parallel()
	services := serveRacks(t, 2, nil)
	ctx, cancel := context.WithCancel(bounded(t))
	defer cancel()
	go client.Join(ctx, client.Config{Server: services[1].URL(), Job: "before", Rank: 2, Workers: 4})
	waitFor(t, "a job that keeps the aggregator", func() bool { return forming(t, services[1]) == 1 })
	services[1].StartDrain(0)
	_, err := client.Join(bounded(t), client.Config{Server: services[0].URL(), Job: "j", Rank: 0, Workers: 2, Timeout: time.Hour})
	refused(t, err, connect.CodeFailedPrecondition, `rack "r1" at `)
	refused(t, err, connect.CodeFailedPrecondition, "draining and takes no workers")
}

// A worker that gives up while another rack is waited for says why, and the others of its rack learn who it was.
func TestAWorkerThatGivesUpWhileTheJobBeginsIsNamed(t *testing.T) {
	t.Parallel()
	for who, want := range []string{"went away while the job began", "went away while the job began: rack \"r1\" at "} {
		giveUpWhileTheJobBegins(t, who, want)
	}
}

func giveUpWhileTheJobBegins(t *testing.T, who int, want string) {
	services := serveRacks(t, 2, nil)
	ctx, giveUp := context.WithCancelCause(context.Background())
	defer giveUp(nil)
	var joined [2]chan error
	ctxs := []context.Context{bounded(t), bounded(t)}
	ctxs[who] = ctx
	for rank, ctx := range ctxs {
		joined[rank] = make(chan error, 1)
		go func() {
			_, err := client.Join(ctx, client.Config{Server: services[0].URL(), Job: "j", Rank: rank, Workers: 4})
			joined[rank] <- err
		}()
		waitFor(t, "the worker", func() bool { return forming(t, services[0]) == rank+1 })
	}
	giveUp(errors.New("nobody comes"))
	if err := <-joined[who]; !errors.Is(err, context.Canceled) || !strings.HasSuffix(err.Error(), "context canceled: nobody comes") {
		t.Errorf("the worker that gave up: %v", err)
	}
	err := <-joined[1-who]
	refused(t, err, connect.CodeFailedPrecondition, want)
	refused(t, err, connect.CodeFailedPrecondition, fmt.Sprintf("worker %d (", who))
	if strings.Contains(err.Error(), "\n") {
		t.Errorf("%q has several lines", err)
	}
}

func TestARackThatDoesNotComeIsNamed(t *testing.T) {
	services := serveRacks(t, 2, nil)
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	_, err := client.Join(ctx, client.Config{Server: services[0].URL(), Job: "j", Rank: 0, Workers: 2, Provider: verbs.ProviderTCP,
		Timeout: 300 * time.Millisecond})
	if err == nil || !strings.Contains(err.Error(), `rack "r1" at http://`) {
		t.Errorf("%v: want it to name rack r1", err)
	}
}

// A job that fails in one rack fails in all, at once, and says where.
func TestAWorkerLostInOneRackEndsTheJobInAll(t *testing.T) {
	services := serveRacks(t, 2, nil)
	workers, errs := joinRacks(t, services, client.Config{Job: "j", Provider: verbs.ProviderTCP})
	for _, err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
	each(t, workers, func(_ int, w *client.Worker) error { return w.Register(bounded(t), model()) })
	began := time.Now()
	for i, err := range every(workers, func(rank int, w *client.Worker) error {
		if rank == 2 {
			return nil
		}
		x := make([]float32, 100_000)
		i := 7 // layer7.weight
		h, err := w.PushPull(i, client.Bytes(x), client.Bytes(x), 0)
		if err != nil {
			return err
		}
		if rank == 3 {
			return w.Close() // with an operation in flight
		}
		return h.Wait(bounded(t))
	}) {
		if i < 2 && (err == nil || !strings.Contains(err.Error(), `rack "r1"`) || !strings.Contains(err.Error(), "worker 3")) {
			t.Errorf("worker %d: %v: want it to name rack r1 and worker 3", i, err)
		}
	}
	if took := time.Since(began); took > promptly {
		t.Errorf("took %v", took)
	}
	for _, w := range workers {
		w.Close()
	}
}

// An aggregator that ends in mid-step is an error at every worker of every rack, soon and by name.
func TestAnAggregatorLostInOneRackEndsTheJobInAll(t *testing.T) {
	services := serveRacks(t, 2, nil)
	workers, errs := joinRacks(t, services, client.Config{Job: "j", Provider: verbs.ProviderTCP})
	for _, err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
	each(t, workers, func(_ int, w *client.Worker) error { return w.Register(bounded(t), model()) })
	began := time.Now()
	for rank, err := range every(workers, func(rank int, w *client.Worker) error {
		switch rank {
		case 2:
			return nil // nobody's chunk can be finished without it
		case 3:
			return services[1].Close()
		}
		x := make([]float32, 100_000)
		i := 7 // layer7.weight
		h, err := w.PushPull(i, client.Bytes(x), client.Bytes(x), 0)
		if err != nil {
			return err
		}
		return h.Wait(bounded(t))
	}) {
		if rank < 2 && (err == nil || !strings.Contains(err.Error(), `rack "r1"`)) {
			t.Errorf("worker %d: %v: want it to name rack r1", rank, err)
		}
	}
	if took := time.Since(began); took > promptly {
		t.Errorf("took %v", took)
	}
	for _, w := range workers {
		w.Close()
	}
}

// A quota that one rack's workers fit into is exceeded by what its aggregator holds for the other's.
func TestTheSumsOfRacksCountAgainstTheQuota(t *testing.T) {
	o := service.Options{Providers: []string{verbs.ProviderTCP}, Cores: 1, Window: 8, Quota: service.Quota{MemoryBytes: 32 << 20}}
	cfg := client.Config{Job: "j", Provider: verbs.ProviderTCP, Mode: "aggregate", ChunkBytes: 256 << 10}
	for n, fits := range map[int]bool{1: true, 2: false} {
		workers, errs := joinRacks(t, serveRacksWith(t, n, o, nil), cfg)
		for i, err := range errs {
			if fits != (err == nil) || err != nil && !strings.Contains(err.Error(), `workers of job "j"`) {
				t.Errorf("%d racks: %v, want it to fit: %t", n, err, fits)
			}
			if workers[i] != nil {
				workers[i].Close()
			}
		}
	}
}

// A remedy is not offered to a job that cannot use it.
func TestAJobOverRacksIsNotToldToSpread(t *testing.T) {
	t.Parallel()
	o := service.Options{Providers: []string{verbs.ProviderTCP}, Cores: 1, Window: 8, Quota: service.Quota{MemoryBytes: 64 << 20}}
	cfg := client.Config{Job: "j", Provider: verbs.ProviderTCP, Mode: "eager", Optimizer: "sgd_torch"}
	workers, errs := joinRacks(t, serveRacksWith(t, 2, o, nil), cfg)
	noErrors(t, errs)
	register := func(_ int, w *client.Worker) error {
		return w.Register(bounded(t), []client.Tensor{{Name: "large", Shape: []uint64{1 << 25}}})
	}
	quota, elsewhere := "it may have 67108864 in all", `failed in rack "r0"`
	for _, err := range every(workers[:2], register) {
		if err == nil || !strings.Contains(err.Error(), quota) || strings.Contains(err.Error(), "spread") {
			t.Errorf("%v, want the quota named and no job spread", err)
		}
	}
	// The other rack refuses, too, unless it has heard by then.
	for _, err := range every(workers[2:], register) {
		if err == nil || !strings.Contains(err.Error(), quota) && !strings.Contains(err.Error(), elsewhere) ||
			strings.Contains(err.Error(), "spread") {
			t.Errorf("%v, want the quota or the rack named that refused first, and no job spread", err)
		}
	}
}

func TestAnAggregatorSaysWhetherItIsOfACluster(t *testing.T) {
	alone := serve(t, service.Options{Providers: []string{verbs.ProviderTCP}, Cores: 1})
	for url, want := range map[string]bool{alone.URL(): false, serveRacks(t, 2, nil)[1].URL(): true} {
		if is, err := client.OfCluster(bounded(t), client.Config{Server: url}); err != nil || is != want {
			t.Errorf("%s: %t, %v, want %t", url, is, err, want)
		}
	}
	other := httptest.NewUnstartedServer(http.NotFoundHandler())
	other.Config.Protocols = new(http.Protocols)
	other.Config.Protocols.SetUnencryptedHTTP2(true)
	other.Start()
	defer other.Close()
	_, err := client.OfCluster(bounded(t), client.Config{Server: other.URL})
	if err == nil || !strings.Contains(err.Error(), other.URL) {
		t.Errorf("of what is no aggregator: %v", err)
	}
}
