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
	workers, errs := make([]*client.Worker, 2), make([]error, 2)
	var services []*Service
	var all sync.WaitGroup
	for i, l := range listeners {
		own := c
		own.Own = c.Racks[i].Name
		s := start(t, Options{Listener: l, Cluster: &own})
		services = append(services, s)
		all.Go(func() {
			workers[i], errs[i] = client.Join(ctx, client.Config{Server: s.URL(), Job: "j", Rank: i, Workers: 2,
				Provider: verbs.ProviderTCP})
		})
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	for _, w := range workers {
		defer w.Close()
	}
	s := services[0]
	s.mu.Lock()
	j := s.jobs["j"]
	s.mu.Unlock()
	k, u := j.spec.racks, j.spec.racks.run(j)
	for n := range 1 << 10 {
		k.board.Post(j.name, u.id, fmt.Sprint("barrier ", n), nil, k.others())
	}
	if err := workers[0].Barrier(ctx, "next"); err == nil || !strings.Contains(err.Error(), `rack "b" has not come to 1024 barriers`) {
		t.Errorf("the next barrier: %v", err)
	}
}
