package client_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/rackweave/rackweave/client"
	"github.com/rackweave/rackweave/service"
)

// observed is a job whose workers train at their own paces, with gradients that depend on rank and step.
type observed struct {
	servers []string // of each worker
	cfg     client.Config
	tensors []client.Tensor
}

// join joins a job of a name of its own.
func (o *observed) join(t *testing.T, name string) []*client.Worker {
	t.Helper()
	workers := make([]*client.Worker, len(o.servers))
	each(t, workers, func(rank int, _ *client.Worker) (err error) {
		cfg := o.cfg
		cfg.Job, cfg.Token, cfg.Server, cfg.Rank, cfg.Workers, cfg.Timeout = name, "secret", o.servers[rank], rank, len(workers), deadline
		if workers[rank], err = client.Join(bounded(t), cfg); err != nil {
			return err
		}
		return workers[rank].Register(bounded(t), o.tensors)
	})
	t.Cleanup(func() { closeAll(t, workers) })
	return workers
}

// step makes a worker's step.
func (o *observed) step(ctx context.Context, w *client.Worker, n uint64) error {
	kind := client.PushPull
	if o.cfg.Mode == "two-phase" {
		kind = client.Push
	}
	var ops []client.Op
	for i, d := range o.tensors {
		g := random(1000*n+uint64(w.Rank()), d.Elems())
		op := client.Op{Kind: kind, Tensor: i, Src: client.Bytes(g)}
		if d.Sparse {
			width := d.Elems() / d.Shape[0]
			op.Rows = []int64{}
			for id := n % 5; id < d.Shape[0]; id += 5 {
				op.Rows = append(op.Rows, int64(id))
			}
			op.Src = client.Bytes(g[:uint64(len(op.Rows))*width])
		}
		if kind == client.PushPull {
			op.Dst = client.Bytes(make([]float32, d.Elems()))
		}
		ops = append(ops, op)
	}
	handles, err := w.Submit(ops...)
	if err == nil {
		err = w.WaitAll(ctx, handles)
	}
	switch {
	case err != nil:
	case o.cfg.Mode == "two-phase":
		_, err = w.Commit(ctx, client.Step{LR: 0.1, Clip: 1})
	case o.cfg.Mode == "stream":
		_, err = w.EndStep(ctx)
	}
	return err
}

// train trains until stop is called, at which all workers end with the same step.
func (o *observed) train(t *testing.T, workers []*client.Worker) (stop func()) {
	var last, furthest atomic.Int64
	last.Store(math.MaxInt64)
	done := make(chan error, len(workers))
	for _, w := range workers {
		go func() {
			var err error
			for n := int64(1); n <= last.Load() && err == nil; n++ {
				for was := furthest.Load(); was < n && !furthest.CompareAndSwap(was, n); was = furthest.Load() {
				}
				err = o.step(t.Context(), w, uint64(n)) // each wait has the configured timeout
				time.Sleep(time.Duration(w.Rank()) * time.Millisecond)
			}
			done <- err
		}()
	}
	return func() {
		t.Helper()
		last.Store(furthest.Load() + 3)
		for range workers {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
	}
}

// stopped returns the parameters at each of the servers after some steps, in a run that stops after them. All workers meet there at
// a barrier, and pull.
func (o *observed) stopped(t *testing.T, steps ...uint32) map[uint32]map[string][][]float32 {
	t.Helper()
	workers, all := o.join(t, "stopped"), map[uint32]map[string][][]float32{}
	for n := uint64(1); n <= uint64(slices.Max(steps)); n++ {
		each(t, workers, func(_ int, w *client.Worker) error { return o.step(bounded(t), w, n) })
		if !slices.Contains(steps, uint32(n)) {
			continue
		}
		pulled := make([][][]float32, len(workers))
		each(t, workers, func(rank int, w *client.Worker) error {
			if err := w.Barrier(bounded(t), fmt.Sprint("step", n)); err != nil {
				return err
			}
			for i, d := range o.tensors {
				x := make([]float32, d.Elems())
				pulled[rank] = append(pulled[rank], x)
				h, err := w.Pull(i, client.Bytes(x), 0)
				if err == nil {
					err = h.Wait(bounded(t))
				}
				if err != nil {
					return err
				}
			}
			return nil
		})
		all[uint32(n)] = map[string][][]float32{}
		for rank, server := range o.servers {
			all[uint32(n)][server] = pulled[rank]
		}
	}
	return all
}

func observe(t *testing.T, server, name string) *client.Observer {
	t.Helper()
	o, err := client.Observe(client.Config{Server: server, Job: name, Token: "secret", Timeout: deadline})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(o.Close)
	return o
}

// check captures a running job, and compares the parameters with those of a run that stops after the same step.
func (o *observed) check(t *testing.T) {
	t.Helper()
	const captures = 4
	type capture struct {
		server string
		step   uint32
		got    []client.Captured
	}
	var all []capture
	var steps []uint32
	stop := o.train(t, o.join(t, "running"))
	for _, server := range slices.Compact(slices.Clone(o.servers)) {
		x := observe(t, server, "running")
		for range captures {
			step, got, err := x.Capture(bounded(t))
			if err != nil {
				t.Fatal(err)
			}
			all, steps = append(all, capture{server, step, got}), append(steps, step)
		}
	}
	stop()
	want := o.stopped(t, steps...)
	for _, c := range all {
		var got [][]float32
		for i, x := range c.got {
			if x.Name != o.tensors[i].Name || !slices.Equal(x.Shape, o.tensors[i].Shape) {
				t.Errorf("tensor %d is %q of shape %v, want %q of %v", i, x.Name, x.Shape, o.tensors[i].Name, o.tensors[i].Shape)
			}
			got = append(got, x.Values)
		}
		sameModel(t, fmt.Sprintf("%s after step %d", c.server, c.step), got, want[c.step][c.server])
	}
}

func TestAnObserverCapturesWhatAStoppedJobHas(t *testing.T) {
	adam := client.Config{Mode: "eager", Optimizer: "adam_torch", ChunkBytes: 4096}
	for _, provider := range providers() {
		s := serve(t, service.Options{Providers: []string{provider}, Cores: 2})
		two := []string{s.URL(), s.URL()}
		for _, tc := range []struct {
			name     string
			servers  []string
			tensors  []client.Tensor
			mode     string
			compress string
		}{
			{"eager", two, model(), "eager", ""},
			{"codecs", two, model(), "eager", "int8"},
			{"sparse", two, sparseModel(), "eager", ""},
			{"two-phase", two, model(), "two-phase", ""},
			{"stream", two[:1], model(), "stream", ""},
		} {
			t.Run(provider+"/"+tc.name, func(t *testing.T) {
				cfg := adam
				cfg.Provider, cfg.Mode, cfg.Compress = provider, tc.mode, tc.compress
				(&observed{tc.servers, cfg, tc.tensors}).check(t)
			})
		}
	}
}

func TestAnObserverCapturesARackOfSeveral(t *testing.T) {
	sameCode(t)
	services := serveRacks(t, 2, nil)
	servers := []string{services[0].URL(), services[0].URL(), services[1].URL()}
	(&observed{servers, client.Config{Mode: "eager", Optimizer: "adam_torch", ChunkBytes: 4096}, model()}).check(t)
}

// The aggregators of a job that is spread over several are asked one after the other, and the job goes on between.
func TestAnObserverCapturesOneStepOfAllAggregators(t *testing.T) {
	var urls []string
	for range 3 {
		urls = append(urls, serve(t, service.Options{Providers: providers()[:1], Cores: 1}).URL())
	}
	all := strings.Join(urls, ",")
	(&observed{[]string{all, all}, client.Config{Mode: "eager", Optimizer: "adam_torch", ChunkBytes: 4096}, model()}).check(t)
}

func TestObserversAreToldWhyTheyCannot(t *testing.T) {
	s := serve(t, service.Options{Providers: providers()[:1], Cores: 1})
	o := observed{[]string{s.URL()}, client.Config{Mode: "eager", Optimizer: "sgd_torch"}, model()}
	sums := observed{o.servers, client.Config{Mode: "aggregate"}, model()}
	o.join(t, "j")
	sums.join(t, "sums")
	code := func(err error) connect.Code {
		c := new(connect.Error)
		errors.As(err, &c)
		return c.Code()
	}
	soon, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	x := observe(t, s.URL(), "j")
	_, _, err := x.Capture(soon)
	if want := `tensor "layer`; !errors.Is(err, client.ErrTimeout) || !strings.Contains(err.Error(), want) ||
		!strings.Contains(err.Error(), "after step 1") || !strings.Contains(err.Error(), "has had 0 updates") {
		t.Errorf("a job that makes no step: error %v", err)
	}
	if _, _, err := observe(t, s.URL(), "sums").Capture(t.Context()); code(err) != connect.CodeInvalidArgument {
		t.Errorf("a job without parameters: error %v", err)
	}
	stranger, err := client.Observe(client.Config{Server: s.URL(), Job: "j", Token: "another", Timeout: deadline})
	if err != nil {
		t.Fatal(err)
	}
	defer stranger.Close()
	if _, _, err := stranger.Capture(t.Context()); code(err) != connect.CodePermissionDenied {
		t.Errorf("another token: error %v", err)
	}
	if err := stranger.Report(t.Context(), 1, 1, nil); code(err) != connect.CodePermissionDenied {
		t.Errorf("another token: error %v", err)
	}
	for _, bad := range [][]float64{{1, math.NaN()}, {-1}, {math.Inf(1)}, make([]float64, 1<<16+1)} {
		if err := x.Report(t.Context(), 1, 1, bad); code(err) != connect.CodeInvalidArgument {
			t.Errorf("losses of groups %v: error %v", bad[:min(len(bad), 2)], err)
		}
	}
	if err := x.Report(t.Context(), 1, 0.5, make([]float64, 1<<16)); err != nil {
		t.Error(err)
	}
}
