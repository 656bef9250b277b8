package service_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rackweave/rackweave/client"
	"github.com/rackweave/rackweave/hierarchy"
	"github.com/rackweave/rackweave/service"
	"github.com/rackweave/rackweave/service/api"
	"github.com/rackweave/rackweave/service/racks"
	"github.com/rackweave/rackweave/verbs"
)

// fourLinks are those of four racks in two pods, given the rate from pod to pod.
func fourLinks(across float64) *hierarchy.Links {
	l := &hierarchy.Links{Pods: 2, By: verbs.ProviderTCP}
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
	measured atomic.Int32
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

// joinFour starts a job. Instead of measuring links its aggregators call measure, with how often they have done so before.
func joinFour(t *testing.T, measure func(before int) (*hierarchy.Links, error)) *four {
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
		f.services[i].WatchLinks(200*time.Millisecond, func() (*hierarchy.Links, error) { return measure(int(f.measured.Add(1)) - 1) })
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

// train has workers take steps, checking every sum, until enough says so. Again and again they compute for so long that a step
// takes four times as long as before, however slow the machine is.
func (f *four) train(enough func(j *api.JobStatus) bool) {
	f.Helper()
	began := time.Now()
	var compute time.Duration
	phase, first := began, 0
	for k := 0; ; k++ {
		if took, steps := time.Since(phase), k-first; took > 1500*time.Millisecond && steps >= 20 {
			compute, phase, first = 3*took/time.Duration(steps), time.Now(), k
		}
		f.each(func(rank int, w *client.Worker) error {
			x := slices.Repeat([]float32{float32(rank + k)}, fourElems)
			h, err := w.PushPull(0, client.Bytes(x), client.Bytes(x), 0)
			if err == nil {
				err = h.Wait(within(f))
			}
			if want := float32(6 + 4*k); err == nil && (slices.Min(x) != want || slices.Max(x) != want) {
				err = fmt.Errorf("step %d: sums from %v to %v, want %v", k, slices.Min(x), slices.Max(x), want)
			}
			return err
		})
		status, err := f.services[3].Status(within(f), nil)
		if err != nil {
			f.Fatal(err)
		}
		if enough(status.Jobs[0]) {
			return
		}
		if time.Since(began) > 90*time.Second {
			f.Fatalf("after %d steps links were measured %d times: %v", k, f.measured.Load(), status.Jobs[0])
		}
		time.Sleep(compute)
	}
}

// scraped returns the metrics that begin with a text.
func scraped(t *testing.T, s *service.Service, name string) (lines []string) {
	t.Helper()
	resp, err := http.Get(s.URL() + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	page, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(page)) {
		if strings.HasPrefix(line, name) {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	return lines
}

func TestAJobChangesItsShapeWhenLinksHaveChanged(t *testing.T) {
	more := 0
	f := joinFour(t, func(before int) (*hierarchy.Links, error) {
		if before == 0 {
			return fourLinks(1e9), nil
		}
		return fourLinks(1e8), nil
	})
	f.train(func(j *api.JobStatus) bool {
		if j.Shape == "pods" {
			more++
		} else if j.Shape != "sharded" {
			t.Errorf("shape %s", j.Shape)
		}
		if more > 0 && (j.ShapeChanges != 1 || !strings.HasPrefix(j.ShapeReason, "a link changed: predicted")) {
			t.Errorf("after %d changes because %q", j.ShapeChanges, j.ShapeReason)
		}
		return more == 10
	})
	for _, want := range []string{`rackweave_job_shape_changes_total{job="j"} 1`, `rackweave_job_link_measurements_total{job="j"} 1`} {
		name, _, _ := strings.Cut(want, "{")
		if got := scraped(t, f.services[0], name); len(got) != 1 || got[0] != want {
			t.Errorf("metrics %q, want %s", got, want)
		}
	}
}

// Workers that compute longer, and links that cannot be measured, change no shape, and the job goes on.
func TestAJobKeepsItsShapeWhenLinksHaveNotChanged(t *testing.T) {
	for name, again := range map[string]error{"as they were": nil, "not measured": errors.New("a link is silent")} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var since atomic.Int32
			f := joinFour(t, func(before int) (*hierarchy.Links, error) {
				if before > 0 {
					since.Store(1)
				}
				if before > 0 && again != nil {
					return nil, again
				}
				return fourLinks(1e9), nil
			})
			f.train(func(j *api.JobStatus) bool {
				if j.Shape != "sharded" || j.ShapeChanges != 0 {
					t.Errorf("shape %s after %d changes", j.Shape, j.ShapeChanges)
				}
				return since.Load() > 0 && since.Add(1) > 10
			})
		})
	}
}

// What racks are told of the turns of as many chunks as a large model has is in one small question.
func TestAJobOfManyChunksChangesItsShape(t *testing.T) {
	f := joinFour(t, func(int) (*hierarchy.Links, error) { return fourLinks(1e9), nil })
	tensors := make([]client.Tensor, 17_000)
	for i := range tensors {
		tensors[i] = client.Tensor{Name: fmt.Sprint("small", i), Shape: []uint64{1}}
	}
	f.each(func(_ int, w *client.Worker) error { return w.Register(within(t), tensors) })
	if _, err := f.services[0].Reshape(t.Context(), &api.ReshapeRequest{Job: "j", Shape: "pods"}); err != nil {
		t.Fatal(err)
	}
	for _, s := range f.services {
		status, err := s.Status(within(t), nil)
		if err != nil || len(status.Jobs) != 1 || status.Jobs[0].Shape != "pods" {
			t.Errorf("%v, %v", status, err)
		}
	}
}
