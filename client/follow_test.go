package client_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/rackweave/rackweave/aggregate"
	"github.com/rackweave/rackweave/aggregate/optim"
	"github.com/rackweave/rackweave/aggregate/racktest"
	"github.com/rackweave/rackweave/cgo/fabric/simfabric"
	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/client"
	"github.com/rackweave/rackweave/service"
)

// linkRig is an aggregator and workers with simulated NICs, whose links can be taken down.
type linkRig struct {
	t       *testing.T
	s       *service.Service
	others  []*service.Service // that the job is spread over, before s
	name    string
	workers []*client.Worker
}

// newLinkRig names its NICs after the test: agg.0, agg.1, …, and worker.RANK.0, …
func newLinkRig(t *testing.T, aggregatorNICs, workerNICs, workers int, linkTimeout time.Duration) *linkRig {
	t.Helper()
	return newLinkRigOf(t, []string{"agg"}, aggregatorNICs, workerNICs, workers, linkTimeout)
}

// newLinkRigOf has a job spread over aggregators that have so many NICs each; s is the last of them.
func newLinkRigOf(t *testing.T, aggregators []string, aggregatorNICs, workerNICs, workers int, linkTimeout time.Duration) *linkRig {
	t.Helper()
	r := &linkRig{t: t, name: strings.Map(func(c rune) rune {
		if c == '/' || c == '_' {
			return '-'
		}
		return c
	}, t.Name())[:min(30, len(t.Name()))]}
	var urls []string
	for _, name := range aggregators {
		if r.s != nil {
			r.others = append(r.others, r.s)
		}
		var nics []string
		for i := range aggregatorNICs {
			nics = append(nics, r.nic(name, i))
		}
		r.s = serve(t, service.Options{
			Providers: []string{simfabric.Provider}, ProviderOptions: map[string]string{simfabric.Provider: "link=1"},
			NICs: nics, Cores: 2, LinkTimeout: linkTimeout,
		})
		urls = append(urls, r.s.URL())
	}
	r.workers = make([]*client.Worker, workers)
	each(t, r.workers, func(rank int, _ *client.Worker) (err error) {
		cfg := client.Config{
			Server: strings.Join(urls, ","), Job: "j", Workers: workers, Rank: rank, Provider: simfabric.Provider, ProviderOptions: "link=1",
			ChunkBytes: 4096, Timeout: deadline,
			Mode: "aggregate",
		}
		for i := range workerNICs {
			cfg.Devices = append(cfg.Devices, r.nic(fmt.Sprint("worker.", rank), i))
		}
		r.workers[rank], err = client.Join(bounded(t), cfg)
		return err
	})
	t.Cleanup(func() { closeAll(t, r.workers) })
	return r
}

func (r *linkRig) nic(whose string, i int) string { return fmt.Sprintf("%s.%s.%d", r.name, whose, i) }

func (r *linkRig) link(up bool, whose string, i int) {
	r.t.Helper()
	if n := simfabric.LinkNamed(r.nic(whose, i), up); n != 1 {
		r.t.Fatalf("%d NICs are called %s", n, r.nic(whose, i))
	}
}

func (r *linkRig) failovers() (n uint64) {
	r.t.Helper()
	for _, w := range r.workers {
		s, err := w.Stats()
		if err != nil {
			r.t.Fatal(err)
		}
		n += s.Failovers
	}
	return n
}

// guests is how many connections are away from their lane's own NIC of the aggregator.
func (r *linkRig) guests() (n int) {
	r.t.Helper()
	status, err := r.s.Status(bounded(r.t), nil)
	if err != nil {
		r.t.Fatal(err)
	}
	for _, nic := range status.Engines[0].Nics {
		n += int(nic.FailedOver)
	}
	return n
}

// exchange sums a tensor until stop says so, and checks every sum.
func (r *linkRig) exchange(stop func(steps int) bool) {
	r.t.Helper()
	tensors := []client.Tensor{
		{Name: "a", Shape: []uint64{100_000}}, {Name: "b", Shape: []uint64{7}}, {Name: "c", Shape: []uint64{33_333}},
	}
	grads := make([][][]float32, len(r.workers))
	for rank := range grads {
		grads[rank] = randomModel(uint64(rank+1), tensors)
	}
	ref := racktest.NewReference(aggregate.Aggregate, optim.Sum, optim.Sum.Defaults(), chunk.F32, make([][]float32, len(tensors)))
	want := ref.Step(grads)
	if r.workers[0].NumTensors() == 0 {
		each(r.t, r.workers, func(_ int, w *client.Worker) error { return w.Register(bounded(r.t), tensors) })
	}
	for steps := 0; !stop(steps); steps++ {
		each(r.t, r.workers, func(rank int, w *client.Worker) error {
			out := make([][]float32, len(tensors))
			var ops []client.Op
			for i := range tensors {
				out[i] = make([]float32, len(want[i]))
				ops = append(ops, client.Op{Kind: client.PushPull, Tensor: i, Src: client.Bytes(grads[rank][i]), Dst: client.Bytes(out[i])})
			}
			began := time.Now()
			handles, err := w.Submit(ops...)
			if err == nil {
				err = w.WaitAll(bounded(r.t), handles)
			}
			if err != nil {
				return fmt.Errorf("step %d: %w", steps, err)
			}
			if took := time.Since(began); took > promptly {
				return fmt.Errorf("step %d took %v", steps, took)
			}
			for i := range tensors {
				if at, same := racktest.SameBits(out[i], want[i]); !same {
					return fmt.Errorf("step %d, tensor %d, element %d: %v, the reference has %v", steps, i, at, out[i][at], want[i][at])
				}
			}
			return nil
		})
	}
}

func atLeast(n int) func(int) bool { return func(steps int) bool { return steps >= n } }

func TestLanesFailOverWhenALinkGoesDownAndReturnWithIt(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name                 string
		aggregatorNICs, nics int
		whose                string
		failovers            uint64
		guestsMeanwhile      bool
	}{
		{"two and two, the aggregator's", 2, 2, "agg", 2, true},
		{"two and two, a worker's", 2, 2, "worker.1", 1, true}, // NICs of the same number go together
		{"one and two, the worker's", 1, 2, "worker.1", 1, false},
		{"two and one, the aggregator's", 2, 1, "agg", 2, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newLinkRig(t, c.aggregatorNICs, c.nics, 2, 5*time.Second)
			r.exchange(atLeast(2))
			if n := r.failovers(); n != 0 {
				t.Fatalf("%d failovers before anything happened", n)
			}
			began := time.Now()
			time.AfterFunc(5*time.Millisecond, func() { r.link(false, c.whose, 0) })
			r.exchange(func(int) bool { return r.failovers() >= c.failovers })
			if took := time.Since(began); took > promptly {
				t.Errorf("the failover took %v", took)
			}
			r.exchange(atLeast(3))
			if n := r.guests(); (n > 0) != c.guestsMeanwhile {
				t.Errorf("%d connections are guests", n)
			}
			away := r.failovers()
			r.link(true, c.whose, 0)
			r.exchange(func(int) bool { return r.failovers() >= away+c.failovers })
			r.exchange(atLeast(3))
			if n := r.guests(); n != 0 {
				t.Errorf("%d connections did not return", n)
			}
		})
	}
}

func TestWithoutAnotherPathALinkMayBeDownForTheLinkTimeout(t *testing.T) {
	t.Parallel()
	r := newLinkRig(t, 1, 1, 2, promptly)
	r.exchange(atLeast(1))
	time.AfterFunc(5*time.Millisecond, func() { r.link(false, "worker.0", 0) })
	time.AfterFunc(time.Second, func() { r.link(true, "worker.0", 0) })
	end := time.Now().Add(1200 * time.Millisecond)
	r.exchange(func(int) bool { return time.Now().After(end) })
	if n := r.failovers(); n != 0 {
		t.Errorf("%d failovers, with nowhere to go", n)
	}
}

func TestALinkThatStaysDownIsATypedErrorInTime(t *testing.T) {
	t.Parallel()
	for _, nics := range []int{1, 2} {
		t.Run(fmt.Sprint(nics, " NICs"), func(t *testing.T) {
			r := newLinkRig(t, nics, nics, 2, time.Second)
			r.exchange(atLeast(1))
			began := time.Now()
			for i := range nics {
				r.link(false, "worker.0", i)
			}
			x := make([]float32, 100_000)
			errs := every(r.workers, func(rank int, w *client.Worker) error {
				y := make([]float32, len(x))
				h, err := w.PushPull(0, client.Bytes(x), client.Bytes(y), 0)
				if err != nil {
					return err
				}
				return h.Wait(bounded(t))
			})
			for rank, err := range errs {
				if !errors.Is(err, client.ErrAborted) && !errors.Is(err, client.ErrServerLost) {
					t.Errorf("worker %d: %v", rank, err)
				}
			}
			if took := time.Since(began); took > time.Second+promptly {
				t.Errorf("that took %v", took)
			}
		})
	}
}
