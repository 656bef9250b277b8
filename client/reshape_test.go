package client_test

import (
	"cmp"
	"context"
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

// While workers exchange, the shape of their job goes back and forth. Every sum stays what it is.
func TestAJobsShapeChangesWhileItExchanges(t *testing.T) {
	const n = 4
	o := service.Options{Providers: []string{verbs.ProviderTCP}, Cores: 1, AdminToken: "admin"}
	services := serveRacksWith(t, n, o, func(_ int, c *racks.Cluster) {
		c.Shape, c.Racks = "sharded", slices.Clone(c.Racks)
		for i := range c.Racks {
			c.Racks[i].Pod = fmt.Sprintf("p%d", i*2/n)
		}
	})
	workers, errs := joinRacks(t, services, client.Config{Job: "j", Token: "t", Provider: verbs.ProviderTCP, Mode: "aggregate"})
	if err := cmp.Or(errs...); err != nil {
		t.Fatal(err)
	}
	defer closeAll(t, workers)
	tensors := []client.Tensor{{Name: "w", Shape: []uint64{200_000}}}
	each(t, workers, func(_ int, w *client.Worker) error { return w.Register(context20(t), tensors) })
	step := func(k int) {
		each(t, workers, func(rank int, w *client.Worker) error {
			x := slices.Repeat([]float32{float32(rank + k)}, 200_000)
			h, err := w.PushPull(0, client.Bytes(x), client.Bytes(x), 0)
			if err == nil {
				err = h.Wait(context20(t))
			}
			if want := float32(2*n*(2*n-1)/2 + 2*n*k); err == nil && (x[0] != want || x[199_999] != want) {
				err = fmt.Errorf("step %d: sums %v, %v, want %v", k, x[0], x[199_999], want)
			}
			return err
		})
	}
	admin := client.Config{Server: services[1].URL(), Job: "j", Token: "admin", Timeout: 15 * time.Second}
	now := "sharded"
	for k := range 4 {
		next := []string{"pods", "sharded"}[k%2]
		changed := make(chan error, 1)
		go func() {
			was, err := client.Reshape(context20(t), admin, next)
			if err == nil && was != now {
				err = fmt.Errorf("it was %s, want %s", was, now)
			}
			changed <- err
		}()
		for i := range 3 {
			step(10*k + i)
		}
		if err := <-changed; err != nil {
			t.Fatal(err)
		}
		now = next
		step(10*k + 9) // every chunk has turned
	}
	for rack, s := range services {
		status, err := client.Status(context20(t), client.Config{Server: s.URL(), Token: "t"})
		if err != nil || status.Jobs[0].Shape != now {
			t.Errorf("rack %d: %v, %v; want shape %s", rack, status, err, now)
		}
	}
	for k := range 10 { // who asks goes away at once, and the job goes on
		hurried := admin
		hurried.Timeout = time.Duration(k+1) * 300 * time.Microsecond
		ctx, cancel := context.WithTimeout(t.Context(), hurried.Timeout)
		_, _ = client.Reshape(ctx, hurried, now)
		cancel()
		step(100 + k)
	}
	if _, err := client.Reshape(context20(t), admin, "root"); err == nil || !strings.Contains(err.Error(), "keeps its owners") {
		t.Errorf("shape root: %v", err)
	}
	admin.Token = "t"
	if _, err := client.Reshape(context20(t), admin, "pods"); err == nil || !strings.Contains(err.Error(), "admin") {
		t.Errorf("without the admin's token: %v", err)
	}
}

// A buddy hears from its owner alone, which it would not in shape pods.
func TestAJobWithBuddiesKeepsItsShape(t *testing.T) {
	const n = 4
	o := service.Options{Providers: []string{verbs.ProviderTCP}, Cores: 1, AdminToken: "admin"}
	services := serveRacksWith(t, n, o, func(_ int, c *racks.Cluster) {
		c.Shape, c.Buddy, c.Racks = "sharded", true, slices.Clone(c.Racks)
		for i := range c.Racks {
			c.Racks[i].Pod = fmt.Sprintf("p%d", i*2/n)
		}
	})
	workers, errs := joinRacks(t, services, client.Config{Job: "j", Token: "t", Provider: verbs.ProviderTCP, Optimizer: "sgd_torch",
		Hyper: map[string]float64{"lr": 0.1}})
	if err := cmp.Or(errs...); err != nil {
		t.Fatal(err)
	}
	defer closeAll(t, workers)
	tensors := []client.Tensor{{Name: "w", Shape: []uint64{200_000}}}
	each(t, workers, func(_ int, w *client.Worker) error { return w.Register(context20(t), tensors) })
	admin := client.Config{Server: services[1].URL(), Job: "j", Token: "admin", Timeout: 15 * time.Second}
	if _, err := client.Reshape(context20(t), admin, "pods"); err == nil || !strings.Contains(err.Error(), "buddies and shape pods") {
		t.Errorf("shape pods: %v", err)
	}
}

func TestAJobThatHasNotBegunHasNoShapeToChange(t *testing.T) {
	s := serve(t, service.Options{Providers: []string{verbs.ProviderTCP}, Cores: 1})
	admin := client.Config{Server: s.URL(), Job: "j"}
	if _, err := client.Reshape(context20(t), admin, "pods"); err == nil || !strings.Contains(err.Error(), `no job "j" runs here`) {
		t.Errorf("without a job: %v", err)
	}
	ctx := context20(t)
	left := make(chan error, 1)
	joining, leave := context.WithCancel(ctx)
	go func() {
		_, err := client.Join(joining, client.Config{Server: s.URL(), Job: "j", Workers: 2, Provider: verbs.ProviderTCP})
		left <- err
	}()
	for {
		_, err := client.Reshape(ctx, admin, "pods")
		if err != nil && strings.Contains(err.Error(), `job "j" is forming`) {
			break
		}
		if ctx.Err() != nil {
			t.Fatal(err)
		}
	}
	leave()
	if err := <-left; err == nil {
		t.Error("a worker alone has joined a job of two")
	}
}
