package service_test

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/rackweave/rackweave/client"
	"github.com/rackweave/rackweave/hierarchy/planner"
	"github.com/rackweave/rackweave/service"
	"github.com/rackweave/rackweave/service/racks"
	"github.com/rackweave/rackweave/verbs"
)

// fourLinks are those of four racks in two pods, given the rate from pod to pod.
func fourLinks(across float64) *planner.Links {
	l := &planner.Links{Pods: 2, By: verbs.ProviderTCP}
	for i := range 4 {
		l.Names = append(l.Names, fmt.Sprintf("r%d", i))
		l.Rate, l.Latency = append(l.Rate, slices.Repeat([]float64{1e9}, 4)), append(l.Latency, slices.Repeat([]float64{1e-5}, 4))
		for j := range 4 {
			if i/2 != j/2 {
				l.Rate[i][j] = across
			}
		}
	}
	return l
}

// four are the aggregators of four racks in two pods, with a worker in each.
type four struct {
	*testing.T
	services []*service.Service
	workers  []*client.Worker
}

// each calls do for every worker at once.
func (f *four) each(do func(rank int, w *client.Worker) error) {
	f.Helper()
	errs := make([]error, len(f.workers))
	var wg sync.WaitGroup
	for rank, w := range f.workers {
		wg.Go(func() { errs[rank] = do(rank, w) })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		f.Fatal(err)
	}
}

const fourElems = 100_000 // of the only tensor

// joinFour starts a job, whose aggregators take all links for equally fast.
func joinFour(t *testing.T) *four {
	t.Helper()
	f := &four{T: t, services: make([]*service.Service, 4), workers: make([]*client.Worker, 4)}
	c := racks.Cluster{Secret: "a secret of the racks", Shape: "auto"}
	listeners := make([]net.Listener, 4)
	for i := range listeners {
		var err error
		if listeners[i], err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
			t.Fatal(err)
		}
		c.Racks = append(c.Racks, racks.Rack{Name: fmt.Sprintf("r%d", i), Pod: fmt.Sprintf("p%d", i/2),
			URL: "http://" + listeners[i].Addr().String()})
	}
	for i, l := range listeners {
		own := c
		own.Own = c.Racks[i].Name
		f.services[i], _ = serve(t, service.Options{Listener: l, Cluster: &own, Cores: 1})
		f.services[i].SetLinks(fourLinks(1e9))
	}
	t.Cleanup(func() {
		for _, w := range f.workers {
			if w != nil {
				w.Close()
			}
		}
	})
	f.each(func(rank int, _ *client.Worker) (err error) {
		f.workers[rank], err = client.Join(within(t), client.Config{Server: f.services[rank].URL(), Job: "j", Rank: rank, Workers: 4,
			Provider: verbs.ProviderTCP, Mode: "aggregate"})
		return err
	})
	f.each(func(_ int, w *client.Worker) error {
		return w.Register(within(t), []client.Tensor{{Name: "w", Shape: []uint64{fourElems}}})
	})
	return f
}

// warning returns what a rack's status warns of.
func (f *four) warning(rack int) string {
	f.Helper()
	status, err := f.services[rack].Status(within(f), nil)
	if err != nil {
		f.Fatal(err)
	}
	return status.Jobs[0].ShapeWarning
}

// Links that were measured anew are said in the status. The shape stays.
func TestStatusWarnsThatAnotherShapeIsFaster(t *testing.T) {
	f := joinFour(t)
	if w := f.warning(3); w != "" {
		t.Errorf("links are as they were, and it warns: %s", w)
	}
	f.services[0].SetLinks(fourLinks(1e8))
	if w := f.warning(0); !strings.HasPrefix(w, "shape pods is faster by now, predicted to cross the core in pods ") {
		t.Errorf("links between pods are a tenth as fast, and it warns: %s", w)
	}
	for rack, s := range f.services {
		if status, err := s.Status(within(t), nil); err != nil || status.Jobs[0].Shape != "sharded" {
			t.Errorf("rack %d: %v, %v", rack, status, err)
		}
	}
}
