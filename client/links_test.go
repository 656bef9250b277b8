package client_test

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rackweave/rackweave/client"
	"github.com/rackweave/rackweave/service"
	"github.com/rackweave/rackweave/service/racks"
	"github.com/rackweave/rackweave/verbs"
)

func TestALinkIsMeasuredBetweenEachTwoRacks(t *testing.T) {
	t.Parallel()
	services := serveRacksWith(t, 3, service.Options{Providers: []string{verbs.ProviderTCP}, Cores: 1, AdminToken: "admin"}, nil)
	cfg := client.Config{Server: services[1].URL(), Token: "admin", Timeout: time.Minute}
	l, err := client.Links(bounded(t), cfg, "")
	if err != nil {
		t.Fatal(err)
	}
	if len(l.Links) != 6 || l.Provider != verbs.ProviderTCP || l.Core != "f32" || !slices.Equal(l.Racks, []string{"r0", "r1", "r2"}) {
		t.Fatalf("%v", l)
	}
	for _, k := range l.Links {
		if !(k.BytesPerSecond > 0) || !(k.LatencySeconds > 0) || k.From == k.To {
			t.Errorf("%v", k)
		}
	}
	// A measurement leaves nothing behind that keeps the next from beginning, whoever has it made.
	cfg.Server = services[2].URL()
	if _, err := client.Links(bounded(t), cfg, verbs.ProviderTCP); err != nil {
		t.Error(err)
	}
	if _, err := client.Links(bounded(t), cfg, verbs.ProviderIBV); err == nil || !strings.Contains(err.Error(), `provider "ibv" is not served here`) {
		t.Errorf("a provider that is not there: %v", err)
	}
}

func TestLinksToARackThatIsNotThereNameIt(t *testing.T) {
	t.Parallel()
	services := serveRacksWith(t, 3, service.Options{Providers: []string{verbs.ProviderTCP}, Cores: 1, AdminToken: "admin"}, nil)
	if err := services[2].Close(); err != nil {
		t.Fatal(err)
	}
	_, err := client.Links(bounded(t), client.Config{Server: services[0].URL(), Token: "admin", Timeout: 8 * time.Second}, "")
	if err == nil || !strings.Contains(err.Error(), `rack "r2"`) {
		t.Errorf("%v, want it to name the rack", err)
	}
}

func TestRacksOfShapeAutoTakeTheShapeThatTheFirstChooses(t *testing.T) {
	t.Parallel()
	services := serveRacks(t, 3, func(_ int, c *racks.Cluster) { c.Shape = "auto" })
	workers, errs := joinRacks(t, services, client.Config{Job: "j", Token: "t", Provider: verbs.ProviderTCP, Optimizer: "sgd_torch",
		Mode: "eager", Hyper: map[string]float64{"lr": 1}})
	if err := cmp.Or(errs...); err != nil {
		t.Fatal(err)
	}
	defer closeAll(t, workers)
	each(t, workers, func(rank int, w *client.Worker) error {
		if err := w.Register(bounded(t), model()); err != nil {
			return err
		}
		i := 7 // layer7.weight
		x, g := make([]float32, 100_000), slices.Repeat([]float32{float32(rank)}, 100_000)
		h, err := w.Broadcast(i, client.Bytes(x))
		if err == nil {
			err = h.Wait(bounded(t))
		}
		if err == nil {
			h, err = w.PushPull(i, client.Bytes(g), client.Bytes(x), 0)
		}
		if err == nil {
			err = h.Wait(bounded(t))
		}
		if err == nil && (x[0] != -15 || x[99_999] != -15) {
			err = fmt.Errorf("parameters %v, %v, want -15", x[0], x[99_999])
		}
		return err
	})
	shape := ""
	for rack, s := range services {
		status, err := client.Status(bounded(t), client.Config{Server: s.URL(), Token: "t"})
		if err != nil {
			t.Fatal(err)
		}
		j := status.Jobs[0]
		if shape = cmp.Or(shape, j.Shape); j.Shape != shape || !strings.Contains(j.ShapeReason, "sharded") ||
			!strings.Contains(j.ShapeReason, "as the links were over tcp") {
			t.Errorf("rack %d has shape %q, another %q, because %q", rack, j.Shape, shape, j.ShapeReason)
		}
	}
}
