package service_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/rackweave/rackweave/aggregate"
	"github.com/rackweave/rackweave/client"
	"github.com/rackweave/rackweave/service"
	"github.com/rackweave/rackweave/service/api"
	"github.com/rackweave/rackweave/service/api/apiconnect"
	"github.com/rackweave/rackweave/verbs"
)

func TestAJobIsChargedForMoreThanItTakes(t *testing.T) {
	for _, provider := range []string{verbs.ProviderTCP, verbs.ProviderSHM} {
		s, _ := serve(t, service.Options{Providers: []string{provider}})
		workers := join(t, s, client.Config{Job: "j", Workers: 2, Mode: "eager", Optimizer: "adam_torch", Provider: provider})
		registerAll(t, workers, 300_000)
		status, err := s.Status(within(t), nil)
		if err != nil || len(status.Jobs) != 1 {
			t.Fatalf("%v, %v", status, err)
		}
		j := status.Jobs[0]
		took := j.ParameterBytes + j.SlotBytes + j.ResultBytes
		for _, r := range j.Resources {
			if r.Name == "memory" && (r.Reserved < took || r.Reserved > 3*took+(64<<20) || r.Limit < r.Reserved) {
				t.Errorf("%s: %d bytes are reserved, %d taken, %d the limit", provider, r.Reserved, took, r.Limit)
			}
		}
		if len(j.Resources) != 3 {
			t.Errorf("%s: resources %v", provider, j.Resources)
		}
	}
}

// What jobs hold whose workers do not connect is not lost to others.
func TestAJobWaitsForConnectionsThatAreFreeSoon(t *testing.T) {
	s, _ := serve(t, service.Options{MaxJobs: 2})
	s.TakeAway("connections of tcp", aggregate.DefaultMaxConns-1)
	h := &http.Client{Transport: &http.Transport{}}
	defer h.CloseIdleConnections()
	absent := apiconnect.NewJobServiceClient(h, s.URL())
	r := &api.JoinRequest{Job: "absent", Rank: -1, Workers: 1, Mode: "aggregate", Providers: []string{verbs.ProviderTCP}}
	if _, err := absent.Join(within(t), r); err != nil {
		t.Fatal(err)
	}
	workers := join(t, s, client.Config{Job: "honest", Workers: 1, Mode: "aggregate"})
	sumOnce(t, workers, 1000)
	cfg := client.Config{Server: s.URL(), Job: "late", Workers: 1, Mode: "aggregate", Timeout: deadline}
	began := time.Now()
	if _, err := client.Join(within(t), cfg); err == nil || !strings.Contains(err.Error(), "quota exceeded") {
		t.Errorf("beside a job that holds all connections: %v", err)
	}
	if took := time.Since(began); took > deadline/2 {
		t.Errorf("it was refused after %v", took)
	}
}

// registerAll registers a tensor at all workers.
func registerAll(t testing.TB, workers []*client.Worker, elems uint64) {
	t.Helper()
	errs := make(chan error, len(workers))
	for _, w := range workers {
		go func() { errs <- w.Register(within(t), []client.Tensor{{Name: "w", Shape: []uint64{elems}}}) }()
	}
	for range workers {
		if err := <-errs; err != nil {
			t.Fatal(err)
		}
	}
}
