package service

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rackweave/rackweave/client"
	"github.com/rackweave/rackweave/service/api"
	"github.com/rackweave/rackweave/service/api/apiconnect"
	"github.com/rackweave/rackweave/service/quota"
	"github.com/rackweave/rackweave/service/racks"
	"github.com/rackweave/rackweave/verbs"
)

// Racks that show their seal ask as often as their jobs need, also beside strangers of the same address who have spent its calls.
func TestRacksAreNotLimitedAsStrangersOfTheirAddress(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	workers, services := twoRacks(t, ctx)
	h := &http.Client{Transport: &http.Transport{}}
	defer h.CloseIdleConnections()
	flooding, end := context.WithCancel(ctx)
	var floods sync.WaitGroup
	defer floods.Wait()
	defer end()
	for _, s := range services {
		flood := func() error {
			to := s.URL() + apiconnect.RackServiceAskProcedure
			r, err := http.NewRequestWithContext(flooding, http.MethodPost, to, strings.NewReader("{}"))
			if err != nil {
				return err
			}
			r.Header.Set("Content-Type", "application/json")
			answer, err := h.Do(r)
			if err == nil {
				err = answer.Body.Close()
			}
			return err
		}
		for s.refusals.All()["call_rate"] == 0 && ctx.Err() == nil {
			flood()
		}
		floods.Go(func() {
			for flooding.Err() == nil {
				flood()
				time.Sleep(time.Millisecond)
			}
		})
	}
	for n := range 20 {
		errs := make([]error, len(workers))
		var all sync.WaitGroup
		for i, w := range workers {
			all.Go(func() {
				within, cancel := context.WithTimeout(ctx, 2*time.Minute)
				defer cancel()
				errs[i] = w.Barrier(within, fmt.Sprint("b", n))
			})
		}
		all.Wait()
		if err := errors.Join(errs...); err != nil {
			t.Fatalf("barrier %d: %v", n, err)
		}
	}
	if ctx.Err() != nil {
		t.Error(ctx.Err())
	}
}

// Two racks whose workers read the state, each of which has quota for one call and not also for the other's question, do not wait
// for each other: who cannot be answered is told so.
func TestCallsOfTwoRacksDoNotWaitForEachOthersQuota(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	workers, services := twoRacks(t, ctx)
	errs := make([]error, len(workers))
	each := func(do func(i int) error) {
		var all sync.WaitGroup
		for i := range workers {
			all.Go(func() { errs[i] = do(i) })
		}
		all.Wait()
	}
	each(func(i int) error {
		return workers[i].Register(ctx, []client.Tensor{{Name: "w", Shape: []uint64{1 << 18}}})
	})
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	for _, s := range services {
		j := s.jobs.Find("j")
		room := int64(6*4<<18 + 4*3 + 128<<10) // six copies of a batch, and the counts of updates
		rest := j.Account.Limit(quota.Memory) - j.Account.Used()[quota.Memory] - room
		if err := j.Account.Charge(quota.Amounts{quota.Memory: rest}); err != nil {
			t.Fatal(err)
		}
	}
	began := time.Now()
	each(func(i int) error {
		j := services[i].jobs.Find("j")
		rpc := apiconnect.NewJobServiceClient(http.DefaultClient, services[i].URL(),
			api.Identify(func() string { return j.Members[0].Session }, j.Token))
		_, err := rpc.ReadState(ctx, &api.ReadStateRequest{})
		return err
	})
	if took := time.Since(began); took > 30*time.Second {
		t.Errorf("they took %v: %v", took, errs)
	}
	http.DefaultClient.CloseIdleConnections()
}

// Aggregators of two builds run a job together if they speak one protocol.
func TestRacksOfTwoVersionsRunAJobTogether(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	twoRacks(t, ctx, "v1", "v2")
}

// twoRacks starts a job with a worker in each of two racks, whose aggregators are of these versions if any are given.
func twoRacks(t *testing.T, ctx context.Context, versions ...string) (workers []*client.Worker, services []*Service) {
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
	var all sync.WaitGroup
	for i, l := range listeners {
		own := c
		own.Own = c.Racks[i].Name
		o := Options{Listener: l, Cluster: &own}
		if len(versions) > 0 {
			o.Version = versions[i]
		}
		s := start(t, o)
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
	for i := range services {
		t.Cleanup(func() { workers[i].Close() })
	}
	return workers, services
}
