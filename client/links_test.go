package client_test

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rackweave/rackweave/client"
	"github.com/rackweave/rackweave/service"
	"github.com/rackweave/rackweave/service/api"
	"github.com/rackweave/rackweave/service/api/apiconnect"
	"github.com/rackweave/rackweave/service/racks"
	"github.com/rackweave/rackweave/verbs"
)

func TestALinkIsMeasuredBetweenEachTwoRacks(t *testing.T) {
	services := serveRacksWith(t, 3, service.Options{Providers: []string{verbs.ProviderTCP}, Cores: 1, AdminToken: "admin"}, nil)
	cfg := client.Config{Server: services[1].URL(), Token: "admin", Timeout: time.Minute}
	l, err := client.Links(context20(t), cfg, "")
	if err != nil {
		t.Fatal(err)
	}
	if len(l.Links) != 6 || l.Provider != verbs.ProviderTCP || l.Core != "f32" || !slices.Equal(l.Racks, []string{"r0", "r1", "r2"}) {
		t.Fatalf("%v", l)
	}
	for _, k := range l.Links {
		if !(k.BytesPerSecond > 0) || !(k.LatencySeconds > 0) || k.From == k.To {
			t.Errorf("%v", k)
		}
	}
	// A measurement leaves nothing behind that keeps the next from beginning, whoever has it made.
	cfg.Server = services[2].URL()
	if _, err := client.Links(context20(t), cfg, verbs.ProviderTCP); err != nil {
		t.Error(err)
	}
	if _, err := client.Links(context20(t), cfg, verbs.ProviderIBV); err == nil || !strings.Contains(err.Error(), `provider "ibv" is not served here`) {
		t.Errorf("a provider that is not there: %v", err)
	}
}

func TestLinksToARackThatIsNotThereNameIt(t *testing.T) {
	t.Parallel()
	services := serveRacksWith(t, 3, service.Options{Providers: []string{verbs.ProviderTCP}, Cores: 1, AdminToken: "admin"}, nil)
	if err := services[2].Close(); err != nil {
		t.Fatal(err)
	}
	_, err := client.Links(context20(t), client.Config{Server: services[0].URL(), Token: "admin", Timeout: 8 * time.Second}, "")
	if err == nil || !strings.Contains(err.Error(), `rack "r2"`) {
		t.Errorf("%v, want it to name the rack", err)
	}
}

func TestRacksOfShapeAutoTakeTheShapeThatTheFirstChooses(t *testing.T) {
	services := serveRacks(t, 3, func(_ int, c *racks.Cluster) { c.Shape = "auto" })
	workers, errs := joinRacks(t, services, client.Config{Job: "j", Token: "t", Provider: verbs.ProviderTCP, Optimizer: "sgd_torch",
		Mode: "eager", Hyper: map[string]float64{"lr": 1}})
	if err := cmp.Or(errs...); err != nil {
		t.Fatal(err)
	}
	defer closeAll(t, workers)
	each(t, workers, func(rank int, w *client.Worker) error {
		if err := w.Register(context20(t), model()); err != nil {
			return err
		}
		i, _ := w.Lookup("layer7.weight")
		x, g := make([]float32, 100_000), slices.Repeat([]float32{float32(rank)}, 100_000)
		h, err := w.Broadcast(i, client.Bytes(x))
		if err == nil {
			err = h.Wait(context20(t))
		}
		if err == nil {
			h, err = w.PushPull(i, client.Bytes(g), client.Bytes(x), 0)
		}
		if err == nil {
			err = h.Wait(context20(t))
		}
		if err == nil && (x[0] != -15 || x[99_999] != -15) {
			err = fmt.Errorf("parameters %v, %v, want -15", x[0], x[99_999])
		}
		return err
	})
	shape := ""
	for rack, s := range services {
		status, err := client.Status(context20(t), client.Config{Server: s.URL(), Token: "t"})
		if err != nil {
			t.Fatal(err)
		}
		j := status.Jobs[0]
		if shape = cmp.Or(shape, j.Shape); j.Shape != shape || !strings.Contains(j.ShapeReason, "sharded") ||
			!strings.Contains(j.ShapeReason, "as the links were over tcp") {
			t.Errorf("rack %d has shape %q, another %q, because %q", rack, j.Shape, shape, j.ShapeReason)
		}
	}
}

// What a link is measured to carry is near what the same processor moves without queue pairs at about the same time. A busy machine
// may spoil one of the two, but not always. The race detector slows down what is in Go alone.
func TestTheLinkToAnAggregatorIsMeasured(t *testing.T) {
	for _, tc := range []struct {
		provider string
		direct   func(t *testing.T) float64
	}{{verbs.ProviderTCP, throughASocket}, {verbs.ProviderSHM, throughMemory}} {
		t.Run(tc.provider, func(t *testing.T) {
			s := serve(t, service.Options{Providers: []string{tc.provider}, Cores: 1, AdminToken: "admin"})
			cfg := client.Config{Server: s.URL(), Token: "admin", Timeout: deadline}
			for tries := 5; ; tries-- {
				l, err := client.MeasureLink(context20(t), cfg)
				if err != nil {
					t.Fatal(err)
				}
				direct := tc.direct(t)
				near := func(w client.Way) bool {
					return w.Rate > direct/20 && (raceEnabled || w.Rate < 4*direct) && w.Latency > 0 && w.Latency < time.Second
				}
				if l.Provider == tc.provider && near(l.Up) && near(l.Down) && l.Took < 10*time.Second {
					return
				}
				if tries == 0 {
					t.Fatalf("%+v, and %.4g B/s without queue pairs", l, direct)
				}
			}
		})
	}
}

const moved = 64 << 20

// throughASocket returns the bytes per second that a plain connection carries.
func throughASocket(t *testing.T) float64 {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		if c, err := net.Dial("tcp", l.Addr().String()); err == nil {
			defer c.Close()
			for b := make([]byte, 256<<10); err == nil; _, err = c.Write(b) {
			}
		}
	}()
	c, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	began, b := time.Now(), make([]byte, 256<<10)
	for left := moved; left > 0; {
		n, err := c.Read(b)
		if err != nil {
			t.Fatal(err)
		}
		left -= n
	}
	return moved / time.Since(began).Seconds()
}

// throughMemory returns the bytes per second that a copy from cache to cache moves.
func throughMemory(*testing.T) float64 {
	from, to := make([]byte, 32<<10), make([]byte, 32<<10)
	began := time.Now()
	for left := 4 * moved; left > 0; left -= len(from) {
		copy(to, from)
	}
	return 4 * moved / time.Since(began).Seconds()
}

func TestALinkThatCannotBeMeasuredSaysWhy(t *testing.T) {
	s := serve(t, service.Options{Providers: []string{verbs.ProviderTCP}, Cores: 1, AdminToken: "admin"})
	for _, tc := range []struct {
		cfg  client.Config
		want string
	}{
		{client.Config{Server: s.URL(), Token: "other"}, "measure a link: "},
		{client.Config{Server: s.URL(), Token: "admin", Provider: verbs.ProviderSHM}, "measure a link over shm: served here: tcp"},
		{client.Config{Server: s.URL() + ",http://b:7077", Token: "admin"}, "measure one after the other"},
	} {
		_, err := client.MeasureLink(context20(t), tc.cfg)
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%v: want it to say %q", err, tc.want)
		}
	}
}

// Hosts that measure at once all do, and beside a job, whose sums stay right.
func TestLinksAreMeasuredInTurn(t *testing.T) {
	s := serve(t, service.Options{Providers: []string{verbs.ProviderTCP}, Cores: 1, AdminToken: "admin"})
	workers := joinAll(t, s, client.Config{Job: "j", Token: "t", Workers: 2, Provider: verbs.ProviderTCP, Mode: "aggregate"})
	const elems = 100_000
	ctx := context20(t)
	each(t, workers, func(_ int, w *client.Worker) error {
		return w.Register(ctx, []client.Tensor{{Name: "w", Shape: []uint64{elems}}})
	})
	hosts := make(chan error, 2)
	for range cap(hosts) {
		go func() {
			_, err := client.MeasureLink(ctx, client.Config{Server: s.URL(), Token: "admin"})
			hosts <- err
		}()
	}
	for step, left := 1, cap(hosts); left > 0; step++ {
		each(t, workers, func(rank int, w *client.Worker) error {
			x := slices.Repeat([]float32{float32(step + rank)}, elems)
			h, err := w.PushPull(0, client.Bytes(x), client.Bytes(x), 0)
			if err == nil {
				err = h.Wait(ctx)
			}
			want := float32(2*step + 1)
			if i := slices.IndexFunc(x, func(v float32) bool { return v != want }); err == nil && i >= 0 {
				err = fmt.Errorf("step %d: sum %v at %d, want %v", step, x[i], i, want)
			}
			return err
		})
		select {
		case err := <-hosts:
			if left--; err != nil {
				t.Error(err)
			}
		default:
		}
	}
}

// A host that has died as it measured has other hosts wait, and racks, which may hold jobs meanwhile, do not.
func TestRacksDoNotWaitForAHostThatMeasures(t *testing.T) {
	services := serveRacksWith(t, 2, service.Options{Providers: []string{verbs.ProviderTCP}, Cores: 1, AdminToken: "admin"}, nil)
	h := &http.Client{Transport: &http.Transport{}}
	defer h.CloseIdleConnections()
	rpc := apiconnect.NewJobServiceClient(h, services[1].URL(), api.Identify(nil, "admin"))
	ask := func(kind api.ProbeQuestion_Kind) error {
		_, err := rpc.Probe(context20(t), &api.ProbeRequest{Providers: []string{verbs.ProviderTCP},
			Question: &api.ProbeQuestion{Probe: "dead", Kind: kind, Others: []uint32{0}}})
		return err
	}
	if err := ask(api.ProbeQuestion_OPEN); err != nil {
		t.Fatal(err)
	}
	cfg := client.Config{Server: services[1].URL(), Token: "admin", Timeout: time.Second}
	if _, err := client.MeasureLink(context20(t), cfg); !errors.Is(err, client.ErrTimeout) {
		t.Errorf("another host: %v, want it to wait", err)
	}
	cfg.Timeout = 8 * time.Second
	if _, err := client.Links(context20(t), cfg, ""); err != nil {
		t.Error(err)
	}
	if err := ask(api.ProbeQuestion_LATENCY); err == nil || !strings.Contains(err.Error(), "measure again") {
		t.Errorf("the host that was ended: %v", err)
	}
}
