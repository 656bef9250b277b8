package service

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rackweave/rackweave/client"
	"github.com/rackweave/rackweave/service/api"
	"github.com/rackweave/rackweave/service/api/apiconnect"
	"github.com/rackweave/rackweave/service/quota"
	"github.com/rackweave/rackweave/service/racks"
	"github.com/rackweave/rackweave/verbs"
)

func TestAnAggregatorKeepsOneConnectionToARackOverItsJobs(t *testing.T) {
	var opened, closed atomic.Int32
	_, handler := apiconnect.NewRackServiceHandler(apiconnect.UnimplementedRackServiceHandler{})
	other := httptest.NewUnstartedServer(handler)
	other.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		switch s {
		case http.StateNew:
			opened.Add(1)
		case http.StateClosed:
			closed.Add(1)
		}
	}
	other.Start()
	defer other.Close()
	k, err := newCluster(&racks.Cluster{Secret: "a secret of the racks", Own: "a", Racks: []racks.Rack{
		{Name: "a", URL: "http://127.0.0.1:1"}, {Name: "b", URL: other.URL}}}, func() string { return "" })
	if err != nil {
		t.Fatal(err)
	}
	for range 8 {
		dialed := [][]peer{k.dial(), k.dialPlan(&racks.Plan{Holders: slices.Repeat([]racks.Holder{{URL: other.URL}}, 2)})}
		for _, peers := range dialed {
			if _, err := peers[1].Ask(t.Context(), &api.AskRequest{}); err == nil {
				t.Fatal("what is no aggregator answers")
			}
		}
	}
	if n := opened.Load(); n != 1 {
		t.Errorf("8 jobs opened %d connections", n)
	}
	k.hangUp()
	for end := time.Now().Add(10 * time.Second); closed.Load() == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the connection stays after the aggregator has ended")
		}
	}
}

// A rack whose workers come to one barrier after another, where another rack's come to none, is refused before its aggregator keeps
// too much of that.
func TestARackIsHeldUpWhereAnotherDoesNotCome(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	workers, jobs := twoRacks(t, ctx)
	j := jobs[0]
	k, u := j.spec.racks, j.spec.racks.run(j)
	for n := range 1 << 10 {
		k.board.Post(j.name, u.id, fmt.Sprint("barrier ", n), nil, k.others())
	}
	if err := workers[0].Barrier(ctx, "next"); err == nil || !strings.Contains(err.Error(), `rack "b" has not come to 1024 barriers`) {
		t.Errorf("the next barrier: %v", err)
	}
}

// Two racks whose workers read the state, each of which has quota for one call and not also for the other's question, do not wait
// for each other: who cannot be answered is told so.
func TestCallsOfTwoRacksDoNotWaitForEachOthersQuota(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	workers, jobs := twoRacks(t, ctx)
	errs := make([]error, len(workers))
	each := func(do func(i int) error) {
		var all sync.WaitGroup
		for i := range workers {
			all.Go(func() { errs[i] = do(i) })
		}
		all.Wait()
	}
	each(func(i int) error {
		return workers[i].Register(ctx, []client.Tensor{{Name: "w", Shape: []uint64{batchElems}}})
	})
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	for _, j := range jobs {
		room := stateCost(batchElems) + j.updatesCost() + 128<<10
		rest := j.account.Limit(quota.Memory) - j.account.Used()[quota.Memory] - room
		if err := j.charge("the rest", quota.Amounts{quota.Memory: rest}); err != nil {
			t.Fatal(err)
		}
	}
	began := time.Now()
	each(func(i int) error {
		j := jobs[i]
		rpc := apiconnect.NewJobServiceClient(http.DefaultClient, j.s.URL(),
			api.Identify(func() string { return j.members[0].session }, j.token))
		_, err := rpc.ReadState(ctx, &api.ReadStateRequest{})
		return err
	})
	if took := time.Since(began); took > 30*time.Second {
		t.Errorf("they took %v: %v", took, errs)
	}
	http.DefaultClient.CloseIdleConnections()
}

// twoRacks starts a job with a worker in each of two racks.
func twoRacks(t *testing.T, ctx context.Context) (workers []*client.Worker, jobs []*job) {
	t.Helper()
	c := racks.Cluster{Secret: "a secret of the racks"}
	listeners := make([]net.Listener, 2)
	for i, name := range []string{"a", "b"} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		listeners[i] = l
		c.Racks = append(c.Racks, racks.Rack{Name: name, URL: "http://" + l.Addr().String()})
	}
	workers = make([]*client.Worker, 2)
	errs := make([]error, 2)
	var services []*Service
	var all sync.WaitGroup
	for i, l := range listeners {
		own := c
		own.Own = c.Racks[i].Name
		s := start(t, Options{Listener: l, Cluster: &own})
		services = append(services, s)
		all.Go(func() {
			workers[i], errs[i] = client.Join(ctx, client.Config{Server: s.URL(), Job: "j", Rank: i, Workers: 2,
				Mode: "eager", Optimizer: "sgd_torch", Provider: verbs.ProviderTCP})
		})
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	for i, s := range services {
		t.Cleanup(func() { workers[i].Close() })
		s.mu.Lock()
		jobs = append(jobs, s.jobs["j"])
		s.mu.Unlock()
	}
	return workers, jobs
}
