package service

import (
	"errors"
	"testing"

	"connectrpc.com/connect"

	"github.com/rackweave/rackweave/client"
	"github.com/rackweave/rackweave/service/racks"
	"github.com/rackweave/rackweave/verbs"
)

// planned is a membership whose standing stays.
type planned struct{ standing racks.Standing }

func (planned) ID() string                 { return "own" }
func (p planned) Standing() racks.Standing { return p.standing }
func (planned) Changed() <-chan struct{}   { return nil }

// A worker of the only rack that is left comes to an aggregator that has not heard of the loss, or that no longer has the rack: by
// another plan it has its place, so the refusal does not count as one for good.
func TestARefusalByAPlanThatMayPassIsNoMistakeInTheCall(t *testing.T) {
	own, other := racks.Holder{Aggregator: "own", URL: "http://a", Token: 1}, racks.Holder{Aggregator: "b", URL: "http://b", Token: 2}
	served := racks.Plan{Epoch: 1, Holders: []racks.Holder{own, other}}
	fenced := racks.Standing{Plan: served, Fenced: true, Refusal: errors.New("b has it")}
	for name, tc := range map[string]struct {
		onLoss   string
		standing racks.Standing
		workers  int
		want     connect.Code
	}{
		"the plan lags": {racks.LossGoOn, racks.Standing{Plan: served}, 1, connect.CodeFailedPrecondition},
		"racks stay":    {racks.LossWait, racks.Standing{Plan: served}, 1, connect.CodeInvalidArgument},
		"fenced":        {racks.LossWait, fenced, 2, connect.CodeFailedPrecondition},
	} {
		t.Run(name, func(t *testing.T) {
			c := &racks.Cluster{
				Name: "c", Secret: "a secret of the racks", Own: "a", Dynamic: true, OnLoss: tc.onLoss, Members: planned{tc.standing},
				Racks: []racks.Rack{{Name: "a"}, {Name: "b"}}}
			s, err := New(Options{Listen: "127.0.0.1:0", Providers: []string{verbs.ProviderTCP}, Cores: 1, Unpinned: true, Cluster: c})
			if err != nil {
				t.Fatal(err)
			}
			go s.Serve(t.Context())
			defer s.Close()
			_, err = client.Join(t.Context(), client.Config{Server: s.URL(), Job: "j", Workers: tc.workers})
			if connect.CodeOf(err) != tc.want {
				t.Errorf("%v: %v, want %v", connect.CodeOf(err), err, tc.want)
			}
		})
	}
}
