package client_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/rackweave/rackweave/cgo/fabric/simfabric"
	"github.com/rackweave/rackweave/client"
	"github.com/rackweave/rackweave/service"
	"github.com/rackweave/rackweave/verbs"
)

// providers returns the providers that every machine has, or with -short one of them: detectors see the same code over each.
func providers() []string {
	all := []string{verbs.ProviderTCP, verbs.ProviderSHM, simfabric.Provider}
	if testing.Short() {
		return all[:1]
	}
	return all
}

// sameCode leaves a test out under -short if detectors see the same code in others. RACKWEAVE_LONG=1 keeps it.
func sameCode(t *testing.T) {
	t.Helper()
	if testing.Short() && os.Getenv("RACKWEAVE_LONG") == "" {
		t.Skip("-short is set: detectors see the same code in other tests; run without -short, or with RACKWEAVE_LONG=1")
	}
}

// deadline bounds every step of a test, on a machine where nothing runs when it should.
const deadline = 2 * time.Minute

func bounded(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	t.Cleanup(cancel)
	return ctx
}

// logTo writes the service's log into the test's.
type logTo struct {
	t  testing.TB
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logTo) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

// serve runs an aggregator for the test.
func serve(t testing.TB, o service.Options) *service.Service {
	t.Helper()
	if o.Listener == nil {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		o.Listener = l
	}
	out := &logTo{t: t}
	o.Log = slog.New(slog.NewTextHandler(out, nil))
	o.Unpinned = true
	s, err := service.New(o)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- s.Serve(context.Background()) }()
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close service: %v", err)
		}
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("serve: %v", err)
			}
		case <-time.After(deadline):
			t.Error("the service did not end")
		}
		if t.Failed() {
			t.Logf("aggregator's log:\n%s", out.b.String())
		}
	})
	return s
}

// joinAll joins as many workers as the configuration says, each with its own rank, at once.
func joinAll(t testing.TB, s *service.Service, cfg client.Config) []*client.Worker {
	t.Helper()
	cfg.Server = s.URL()
	if cfg.Timeout == 0 {
		cfg.Timeout = deadline
	}
	workers := make([]*client.Worker, cfg.Workers)
	each(t, workers, func(rank int, _ *client.Worker) error {
		c := cfg
		c.Rank = rank
		var err error
		workers[rank], err = client.Join(bounded(t), c)
		return err
	})
	t.Cleanup(func() { closeAll(t, workers) })
	return workers
}

func closeAll(t testing.TB, workers []*client.Worker) {
	for rank, w := range workers {
		if w == nil {
			continue
		}
		if err := w.Close(); err != nil {
			t.Errorf("close worker %d: %v", rank, err)
		}
	}
}

// each runs f for every worker at once and fails the test on an error.
func each(t testing.TB, workers []*client.Worker, f func(rank int, w *client.Worker) error) {
	t.Helper()
	for rank, err := range every(workers, f) {
		if err != nil {
			t.Errorf("worker %d: %v", rank, err)
		}
	}
	if t.Failed() {
		t.FailNow()
	}
}

func every(workers []*client.Worker, f func(rank int, w *client.Worker) error) []error {
	errs := make([]error, len(workers))
	var wg sync.WaitGroup
	for rank, w := range workers {
		wg.Go(func() { errs[rank] = f(rank, w) })
	}
	wg.Wait()
	return errs
}

// model is a few tensors of awkward sizes.
func model() []client.Tensor {
	var out []client.Tensor
	for i, shape := range [][]uint64{{}, {3}, {7, 11}, {300, 100}, {8192}, {8193}, {64, 3, 7, 7}, {100_000}} {
		out = append(out, client.Tensor{Name: fmt.Sprintf("layer%d.weight", i), Shape: shape})
	}
	return out
}

func random(seed uint64, n uint64) []float32 {
	r := rand.New(rand.NewPCG(seed, n))
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(r.NormFloat64())
	}
	return x
}

func randomModel(seed uint64, tensors []client.Tensor) [][]float32 {
	out := make([][]float32, len(tensors))
	for i := range tensors {
		out[i] = random(seed*1000+uint64(i), tensors[i].Elems())
	}
	return out
}

// waitFor polls until something holds.
func waitFor(t testing.TB, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(deadline); !holds(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited %v for %s", deadline, what)
		}
	}
}

// awaited is how many chunks in progress wait for a rank of the service's only job.
func awaited(t testing.TB, s *service.Service, rank int) uint64 {
	t.Helper()
	status, err := s.Status(bounded(t), nil)
	if err != nil {
		t.Fatal(err)
	}
	return status.Jobs[0].Members[rank].AwaitedChunks
}
