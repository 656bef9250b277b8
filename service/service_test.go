package service_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/rackweave/rackweave/client"
	"github.com/rackweave/rackweave/service"
	"github.com/rackweave/rackweave/service/api"
	"github.com/rackweave/rackweave/service/api/apiconnect"
	"github.com/rackweave/rackweave/verbs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const deadline = 2 * time.Minute

func within(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	t.Cleanup(cancel)
	return ctx
}

func TestAServiceLogsWhereItsLanesAre(t *testing.T) {
	for _, tc := range []struct {
		unpinned bool
		cpu      string
	}{{true, "any"}, {false, `\d+`}} {
		var log bytes.Buffer
		s, err := service.New(service.Options{Listen: "127.0.0.1:0", Providers: []string{"tcp"}, Cores: 1, Unpinned: tc.unpinned,
			Log: slog.New(slog.NewTextHandler(&log, nil))})
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if want := regexp.MustCompile(`provider=tcp lanes="127\.0\.0\.1 and node \d+: cpus ` + tc.cpu + `"`); !want.Match(log.Bytes()) {
			t.Errorf("want %v in\n%s", want, log.Bytes())
		}
	}
}

// serve runs an aggregator over tcp; ended gets Serve's result.
func serve(t testing.TB, o service.Options) (s *service.Service, ended <-chan error) {
	t.Helper()
	o.Listen = "127.0.0.1:0"
	o.Unpinned = true
	if o.Providers == nil {
		o.Providers = []string{verbs.ProviderTCP}
	}
	s, err := service.New(o)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	finished := make(chan struct{})
	go func() {
		done <- s.Serve(context.Background())
		close(finished)
	}()
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		<-finished
	})
	return s, done
}

func join(t testing.TB, s *service.Service, cfg client.Config) []*client.Worker {
	t.Helper()
	cfg.Server = s.URL()
	workers := make([]*client.Worker, cfg.Workers)
	errs := make([]error, cfg.Workers)
	var wg sync.WaitGroup
	for rank := range workers {
		wg.Go(func() {
			c := cfg
			c.Rank = rank
			workers[rank], errs[rank] = client.Join(within(t), c)
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, w := range workers {
			w.Close()
		}
	})
	return workers
}

// sumOnce exchanges one tensor once.
func sumOnce(t testing.TB, workers []*client.Worker, elems int) {
	t.Helper()
	var wg sync.WaitGroup
	errs := make([]error, len(workers))
	for rank, w := range workers {
		wg.Go(func() {
			x := make([]float32, elems)
			for i := range x {
				x[i] = float32(rank)
			}
			errs[rank] = w.Register(within(t), []client.Tensor{{Name: "w", Shape: []uint64{uint64(elems)}}})
			if errs[rank] != nil {
				return
			}
			h, err := w.PushPull(0, client.Bytes(x), client.Bytes(x), 0)
			if err == nil {
				err = h.Wait(within(t))
			}
			if want := float32(len(workers) * (len(workers) - 1) / 2); err == nil && x[elems-1] != want {
				err = fmt.Errorf("sum %v, want %v", x[elems-1], want)
			}
			errs[rank] = err
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

func TestOptionsThatCannotBeAreRefused(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	for name, c := range map[string]struct {
		o    service.Options
		want string
	}{
		"provider":         {service.Options{Providers: []string{"roce"}}, `unknown provider "roce": use ` + strings.Join(verbs.Providers(), ", ")},
		"port taken":       {service.Options{Listen: taken.Addr().String()}, "address already in use: give another address"},
		"half of TLS":      {service.Options{TLSCert: "x"}, "give both files, or neither"},
		"missing TLS file": {service.Options{TLSCert: "/no/cert", TLSKey: "/no/key"}, "/no/cert"},
		"job name":         {service.Options{Jobs: map[string]string{"a b": ""}}, `job name "a b"`},
		"too many cores":   {service.Options{Listen: "127.0.0.1:0", Providers: []string{"tcp"}, Cores: 5000}, "5000 cores asked for"},
		"window": {service.Options{Listen: "127.0.0.1:0", Providers: []string{"tcp"}, Window: 1 << 20},
			"window of 1048576: use 2 to 4096"},
		"window of one": {service.Options{Listen: "127.0.0.1:0", Providers: []string{"tcp"}, Window: 1},
			"window of 1: use 2 to 4096"},
		"negative window":    {service.Options{Window: -1}, "-1 messages in the window: use 0 or more"},
		"negative limit":     {service.Options{MaxJobs: -3}, "-3 jobs: use 0 or more"},
		"negative quota":     {service.Options{Quota: service.Quota{MemoryBytes: -1}}, "-1 bytes of memory of a job: use 0 or more"},
		"provider's options": {service.Options{ProviderOptions: map[string]string{"roce": "gid=3"}}, `unknown provider "roce"`},
		"NICs without RDMA": {service.Options{Listen: "127.0.0.1:0", Providers: []string{"tcp"}, NICs: []string{"mlx5_9"}},
			"mlx5_9 need provider ibv, and only tcp"},
		"checkpoints":         {service.Options{CheckpointDir: "/dev/null/checkpoints"}, `checkpoint directory "/dev/null/checkpoints"`},
		"missing manifests":   {service.Options{DataDir: "/no/dir"}, "--data-dir /no/dir: no such file or directory: name the folder"},
		"manifests in a file": {service.Options{DataDir: "service_test.go"}, "--data-dir service_test.go: not a directory: name"},
		"option of provider": {service.Options{Listen: "127.0.0.1:0", Providers: []string{"tcp"},
			ProviderOptions: map[string]string{"tcp": "colour=red"}}, "colour"},
	} {
		s, err := service.New(c.o)
		if err == nil {
			s.Close()
		}
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want it to say %q", name, err, c.want)
		}
	}
}

func TestAnUnlistedJobIsRefusedWhereOnlyListedOnesRun(t *testing.T) {
	s, _ := serve(t, service.Options{Jobs: map[string]string{"good": "t"}})
	_, err := client.Join(within(t), client.Config{Server: s.URL(), Job: "bad", Workers: 1, Provider: verbs.ProviderTCP})
	if err == nil || !strings.Contains(err.Error(), `job "bad" may not run here`) {
		t.Error(err)
	}
	join(t, s, client.Config{Job: "good", Token: "t", Workers: 1, Provider: verbs.ProviderTCP})
}

func TestTheBoxHasLimits(t *testing.T) {
	s, _ := serve(t, service.Options{MaxJobs: 2, MaxWorkers: 3})
	join(t, s, client.Config{Job: "one", Workers: 1, Provider: verbs.ProviderTCP})
	join(t, s, client.Config{Job: "two", Workers: 2, Provider: verbs.ProviderTCP})
	cfg := client.Config{Server: s.URL(), Job: "three", Workers: 1, Provider: verbs.ProviderTCP,
		Timeout: 100 * time.Millisecond}
	if _, err := client.Join(within(t), cfg); err == nil || !strings.Contains(err.Error(), "serves 2 jobs, all it may") {
		t.Error(err)
	}
}

func TestAWorkerThatIsLostHearsWhy(t *testing.T) {
	s, _ := serve(t, service.Options{})
	h := &http.Client{Transport: &http.Transport{}}
	defer h.CloseIdleConnections()
	session := ""
	c := apiconnect.NewJobServiceClient(h, s.URL(), api.Identify(func() string { return session }, ""))
	joined, err := c.Join(within(t), &api.JoinRequest{Job: "j", Workers: 1, Mode: "aggregate", Providers: []string{verbs.ProviderTCP}})
	if err != nil {
		t.Fatal(err)
	}
	session = joined.Session
	watch, err := c.Watch(within(t), &api.WatchRequest{})
	if err != nil || !watch.Receive() {
		t.Fatal(err, watch.Err())
	}
	defer watch.Close()
	if _, err := c.Leave(within(t), &api.LeaveRequest{Failure: "a reason"}); err != nil {
		t.Fatal(err)
	}
	for watch.Receive() {
		if f := watch.Msg().Failure; f != nil {
			if !strings.Contains(f.Text, "a reason") || f.Rank != 0 {
				t.Errorf("it hears %v", f)
			}
			return
		}
	}
	t.Errorf("the stream ends without a reason: %v", watch.Err())
}
