package cluster

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rackweave/rackweave/service/api"
	"github.com/rackweave/rackweave/service/api/apiconnect"
	"github.com/rackweave/rackweave/service/job"
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
	k, err := New(Config{Cluster: &racks.Cluster{Secret: "a secret of the racks", Own: "a", Racks: []racks.Rack{
		{Name: "a", URL: "http://127.0.0.1:1"}, {Name: "b", URL: other.URL}}}, URL: func() string { return "" }})
	if err != nil {
		t.Fatal(err)
	}
	for range 8 {
		dialed := [][]peer{k.dial(nil), k.dial(&racks.Plan{Holders: slices.Repeat([]racks.Holder{{URL: other.URL}}, 2)})}
		for _, peers := range dialed {
			if _, err := peers[1].Ask(t.Context(), &api.AskRequest{}); err == nil {
				t.Fatal("what is no aggregator answers")
			}
		}
	}
	if n := opened.Load(); n != 1 {
		t.Errorf("8 jobs opened %d connections", n)
	}
	k.Close()
	for end := time.Now().Add(time.Minute); closed.Load() == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the connection stays after the aggregator has ended")
		}
	}
}

// A rack whose workers come to one barrier after another, where another rack's come to none, is refused before its aggregator keeps
// too much of that.
func TestARackIsHeldUpWhereAnotherDoesNotCome(t *testing.T) {
	k, err := New(Config{Cluster: &racks.Cluster{Secret: "a secret of the racks", Own: "a", Racks: []racks.Rack{
		{Name: "a", URL: "http://127.0.0.1:1"}, {Name: "b", URL: "http://127.0.0.1:2"}}}, URL: func() string { return "" }})
	if err != nil {
		t.Fatal(err)
	}
	r := &Rendezvous{run: run{k: k}, j: &job.Job{Name: "j"}}
	r.begin(k.dial(nil))
	for n := range 1 << 10 {
		k.board.Post(r.id, fmt.Sprint("barrier ", n), nil, k.others())
	}
	err = r.Agree(t.Context(), "barrier next", "barrier", "next")
	if err == nil || !strings.Contains(err.Error(), `rack "b" has not come to 1024 barriers`) {
		t.Errorf("the next barrier: %v", err)
	}
}

// late answers once, that its rack is not there yet.
type late struct {
	apiconnect.UnimplementedRackServiceHandler
	secret   string
	answered atomic.Bool
	asked    chan struct{} // closed by the second question
}

func (l *late) Ask(ctx context.Context, r *api.AskRequest) (*api.AskResponse, error) {
	if l.answered.Swap(true) {
		close(l.asked)
		<-ctx.Done()
	}
	return &api.AskResponse{Seal: racks.Seal(l.secret, r.Nonce, "false", "")}, nil
}

// An aggregator that has answered and then ends while a job begins is not waited for as one that is yet to start.
func TestARackThatEndsWhileAJobBeginsIsNamedAtOnce(t *testing.T) {
	l := &late{secret: "a secret of the racks", asked: make(chan struct{})}
	_, handler := apiconnect.NewRackServiceHandler(l)
	other := httptest.NewServer(handler)
	defer other.Close()
	k, err := New(Config{Cluster: &racks.Cluster{Secret: l.secret, Own: "a", Racks: []racks.Rack{
		{Name: "a", URL: "http://127.0.0.1:1"}, {Name: "b", URL: other.URL}}}, URL: func() string { return "" }})
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	go func() {
		<-l.asked
		other.Listener.Close()
		other.CloseClientConnections()
	}()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	u := k.newRun("j", k.dial(nil))
	_, err = u.ask(ctx, 1, &api.AskRequest{Stage: stageForm})
	if want := `rack "b" at ` + other.URL + " has ended meanwhile"; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want %q", err, want)
	}
}
