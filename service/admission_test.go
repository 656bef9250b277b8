package service_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/rackweave/rackweave/aggregate"
	"github.com/rackweave/rackweave/client"
	"github.com/rackweave/rackweave/service"
	"github.com/rackweave/rackweave/service/api"
	"github.com/rackweave/rackweave/service/api/apiconnect"
	"github.com/rackweave/rackweave/service/racks"
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
	absent(t, s)
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

// A worker whose own time is up does not wait on because the last of its job may. It is told for what that one waits.
func TestAWorkerOfAJobThatWaitsKeepsItsOwnTimeout(t *testing.T) {
	for want, tc := range map[string]struct {
		options service.Options
		busy    func(t *testing.T, s *service.Service)
		workers int
	}{
		"connections of tcp": {service.Options{}, func(t *testing.T, s *service.Service) {
			s.TakeAway("connections of tcp", aggregate.DefaultMaxConns-2)
			absent(t, s)
		}, 2},
		"the aggregator serves 1 jobs": {service.Options{MaxJobs: 1}, func(t *testing.T, s *service.Service) {
			join(t, s, client.Config{Job: "before", Workers: 1, Mode: "aggregate"})
		}, 2},
		`rack "there" at http://127.0.0.1:1 does not reach`: {service.Options{Cluster: &racks.Cluster{Secret: "a secret of the racks",
			Own: "here", Racks: []racks.Rack{{Name: "here", URL: "http://127.0.0.1:2"}, {Name: "there", URL: "http://127.0.0.1:1"}}}},
			func(*testing.T, *service.Service) {}, 4},
	} {
		t.Run(want, func(t *testing.T) {
			for timeout := time.Second; ; timeout *= 2 {
				s, _ := serve(t, tc.options)
				tc.busy(t, s)
				ctx, cancel := context.WithCancel(t.Context())
				late := func(rank int, timeout time.Duration) error {
					_, err := client.Join(ctx, client.Config{Server: s.URL(), Job: "late", Rank: rank, Workers: tc.workers, Mode: "aggregate",
						Timeout: timeout})
					return err
				}
				first, last := make(chan error, 1), make(chan error, 1)
				go func() { first <- late(0, timeout) }()
				for joined(t, s, "late") == 0 && len(first) == 0 {
					time.Sleep(time.Millisecond)
				}
				go func() { last <- late(1, deadline) }()
				err := <-first
				cancel()
				if <-last == nil {
					t.Error("the last worker has joined")
				}
				if err != nil && !strings.Contains(err.Error(), want) && timeout < deadline/4 {
					continue // the last came too late for the job to begin, or to have asked
				}
				if !errors.Is(err, client.ErrTimeout) || !strings.Contains(err.Error(), want) {
					t.Errorf("with a timeout of %v: %v", timeout, err)
				}
				return
			}
		})
	}
}

// absent has a job begin whose only worker does not connect.
func absent(t *testing.T, s *service.Service) {
	t.Helper()
	h := &http.Client{Transport: &http.Transport{}}
	t.Cleanup(h.CloseIdleConnections)
	r := &api.JoinRequest{Job: "absent", Rank: -1, Workers: 1, Mode: "aggregate", Providers: []string{verbs.ProviderTCP}}
	if _, err := apiconnect.NewJobServiceClient(h, s.URL()).Join(within(t), r); err != nil {
		t.Fatal(err)
	}
}

// joined is how many workers a job has so far.
func joined(t *testing.T, s *service.Service, name string) int {
	t.Helper()
	status, err := s.Status(within(t), nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, j := range status.Jobs {
		if j.Name == name {
			return len(j.Members)
		}
	}
	return 0
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
