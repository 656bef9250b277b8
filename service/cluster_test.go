package service

import (
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rackweave/rackweave/service/api"
	"github.com/rackweave/rackweave/service/api/apiconnect"
	"github.com/rackweave/rackweave/service/racks"
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
