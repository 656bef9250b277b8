package membership

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/rackweave/rackweave/client"
	"github.com/rackweave/rackweave/service"
	"github.com/rackweave/rackweave/service/membership/view"
	"github.com/rackweave/rackweave/service/racks"
	"github.com/rackweave/rackweave/verbs"
)

// aggregator is a rack's, with its membership.
type aggregator struct {
	*running
	s     *service.Service
	ended chan error
}

// serve runs a rack's aggregator.
func (e *etcdServer) serve(rack string, edit func(*Config)) *aggregator {
	e.t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		e.t.Fatal(err)
	}
	m := e.open(rack, edit)
	c := m.cfg.Cluster
	c.Members = m
	s, err := service.New(service.Options{Listener: l, Providers: []string{verbs.ProviderTCP}, Cores: 1, Unpinned: true, Cluster: c,
		Log: m.cfg.Log, CheckpointDir: e.t.TempDir()})
	if err != nil {
		e.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	a := &aggregator{&running{m, e.t, cancel, make(chan error, 1)}, s, make(chan error, 1)}
	go func() { a.ended <- s.Serve(context.Background()) }()
	go func() { a.running.ended <- m.Run(ctx, s.URL()) }()
	e.t.Cleanup(func() {
		a.s.Close()
		a.leave()
	})
	return a
}

// crash ends the aggregator at once, without a word to etcd.
func (a *aggregator) crash() {
	a.running.crash()
	a.s.Close()
}

// team is a job's workers, two in each rack.
type team struct {
	t       *testing.T
	workers []*client.Worker
}

func every(n int, f func(i int) error) []error {
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { errs[i] = f(i) })
	}
	wg.Wait()
	return errs
}

// join begins a job of two workers at each aggregator.
func join(t *testing.T, job string, within time.Duration, at ...*aggregator) (*team, error) {
	return joinAs(t, client.Config{Job: job, Timeout: within, Mode: "aggregate"}, at...)
}

func joinAs(t *testing.T, c client.Config, at ...*aggregator) (*team, error) {
	j := &team{t, make([]*client.Worker, 2*len(at))}
	errs := every(len(j.workers), func(i int) (err error) {
		own := c
		own.Server, own.Rank, own.Workers, own.Provider = at[i/2].s.URL(), i, len(j.workers), verbs.ProviderTCP
		j.workers[i], err = client.Join(t.Context(), own)
		return err
	})
	for _, err := range errs {
		if err != nil {
			j.end()
			return nil, err
		}
	}
	for _, err := range every(len(j.workers), func(i int) error {
		return j.workers[i].Register(t.Context(), []client.Tensor{{Name: "x", Shape: []uint64{20_000}}})
	}) {
		if err != nil {
			t.Fatal(err)
		}
	}
	return j, nil
}

func mustJoin(t *testing.T, job string, at ...*aggregator) *team {
	t.Helper()
	j, err := join(t, job, soon, at...)
	if err != nil {
		t.Fatal(err)
	}
	return j
}

// step sums 1, 2, 3, … over the workers.
func (j *team) step() error {
	ctx, cancel := context.WithTimeout(context.Background(), soon)
	defer cancel()
	n := len(j.workers)
	errs := every(n, func(i int) error {
		x := make([]float32, 20_000)
		for k := range x {
			x[k] = float32(i + 1)
		}
		h, err := j.workers[i].PushPull(0, client.Bytes(x), client.Bytes(x), 0)
		if err == nil {
			err = h.Wait(ctx)
		}
		if want := float32(n * (n + 1) / 2); err == nil && (x[0] != want || x[len(x)-1] != want) {
			err = fmt.Errorf("the sum is %v to %v, want %v", x[0], x[len(x)-1], want)
		}
		return err
	})
	return errors.Join(errs...)
}

func (j *team) mustStep() {
	j.t.Helper()
	if err := j.step(); err != nil {
		j.t.Fatal(err)
	}
}

func (j *team) end() {
	for _, w := range j.workers {
		if w != nil {
			w.Close()
		}
	}
}

func TestAJobSurvivesThatEtcdIsAwayAndWiped(t *testing.T) {
	t.Parallel()
	e := startEtcd(t)
	a, b := e.serve("a", nil), e.serve("b", nil)
	j := mustJoin(t, "j", a, b)
	defer j.end()
	j.mustStep()

	e.stop()
	for _, x := range []*aggregator{a, b} {
		x.until("unreachable", func(s racks.Standing) bool { return s.Refusal != nil })
	}
	j.mustStep()
	if _, err := join(t, "other", time.Second, a, b); err == nil {
		t.Error("a job began without etcd")
	} else {
		says(t, err, "etcd does not answer", "jobs that run go on")
	}

	if err := os.RemoveAll(filepath.Join(e.cfg.Dir, "data")); err != nil {
		t.Fatal(err)
	}
	e.start()
	for _, x := range []*aggregator{a, b} {
		x.until("again", whole)
	}
	j.mustStep()
	other := mustJoin(t, "other", a, b)
	other.mustStep()
	other.end()
	status, err := client.Status(t.Context(), client.Config{Server: a.s.URL()})
	if err != nil {
		t.Fatal(err)
	}
	m := status.Membership
	if m == nil || !m.Reachable || m.Refusal != "" || len(m.Racks) != 2 || m.Racks[1].Url != b.s.URL() || !m.Racks[0].Own {
		t.Errorf("the status says %v", m)
	}
}

// Workers of a cluster of shape flat learn from the plan where all aggregators are, and a job waits for a rack that is lost.
func TestFlatJobsGoByThePlan(t *testing.T) {
	e := startEtcd(t)
	edit := func(c *Config) { c.Cluster.Shape = "flat" }
	a, b := e.serve("a", edit), e.serve("b", edit)
	a.until("whole", whole)
	b.until("whole", whole)
	j := mustJoin(t, "j", a, b)
	j.mustStep()
	if n := j.workers[3].Aggregators(); n != 2 {
		t.Errorf("the job is at %d aggregators, want 2", n)
	}
	b.crash()
	err := j.step()
	j.end()
	says(t, err, "shutting down")
	gone := func(s racks.Standing) bool { return s.Refusal == nil && s.Plan.Holders[1].Aggregator == "" }
	a.until("gone", gone)
	_, err = join(t, "j", soon, a, a)
	says(t, err, `no aggregator serves rack "b"`, "--rack b")
	b = e.serve("b", edit)
	a.until("back", whole)
	b.until("back", whole)
	j = mustJoin(t, "j", a, b)
	j.mustStep()
	j.end()
}

// A rack that is lost ends the run in all racks, by name. What may begin then is the cluster's choice.
func TestALostRackIsWaitedForOrNot(t *testing.T) {
	for _, loss := range racks.Losses {
		t.Run(loss, func(t *testing.T) {
			t.Parallel()
			e := startEtcd(t)
			edit := func(c *Config) {
				c.GoOnAfter = time.Second
				c.Cluster.Racks, c.Cluster.OnLoss = append(c.Cluster.Racks, racks.Rack{Name: "c"}), loss
			}
			a, b, c := e.serve("a", edit), e.serve("b", edit), e.serve("c", edit)
			j := mustJoin(t, "j", a, b, c)
			j.mustStep()
			b.crash()
			err := j.step()
			j.end()
			says(t, err, `rack "b"`)
			gone := func(s racks.Standing) bool {
				return s.Refusal == nil && s.Plan.Holders[1].Aggregator == "" && s.Plan.Holders[1].Out == (loss == racks.LossGoOn)
			}
			a.until("gone", gone)
			c.until("gone", gone)
			if loss == racks.LossWait {
				_, err = client.Join(t.Context(), client.Config{Server: a.s.URL(), Job: "j", Rank: 0, Workers: 6, Timeout: time.Second})
				if !errors.Is(err, client.ErrTimeout) {
					t.Errorf("a job that waits: %v, want %v", err, client.ErrTimeout)
				}
			} else {
				j := mustJoin(t, "j", a, c)
				j.mustStep()
				j.end()
			}
			restarted := make(chan *aggregator, 1)
			go func() {
				time.Sleep(time.Second) // while its job waits
				restarted <- e.serve("b", edit)
			}()
			if loss != racks.LossWait {
				a.until("back", whole)
				c.until("back", whole)
			}
			b = <-restarted
			j = mustJoin(t, "j", a, b, c)
			j.mustStep()
			j.end()
		})
	}
}

// After the loss of a rack in mid-step, its job goes on from its checkpoint, with the rack's workers at the standby: with the
// parameters that it would have had.
func TestALostRacksJobGoesOnAtAStandby(t *testing.T) {
	t.Parallel()
	e := startEtcd(t)
	a, b := e.serve("a", nil), e.serve("b", nil)
	b.until("it serves", func(s racks.Standing) bool { return s.Refusal == nil })
	standby := e.serve("b", func(c *Config) { c.Standby = true })
	cfg := client.Config{Job: "j", Timeout: soon, Mode: "eager", Optimizer: "sgd_torch", Hyper: map[string]float64{"lr": 1}}
	j, err := joinAs(t, cfg, a, b)
	if err != nil {
		t.Fatal(err)
	}
	parameters := func(j *team, operation func(w *client.Worker, x, g []byte) (client.Handle, error), want float32) error {
		return errors.Join(every(len(j.workers), func(i int) error {
			x, g := make([]float32, 20_000), make([]float32, 20_000)
			for k := range x {
				x[k], g[k] = 100, float32(i+1)
			}
			h, err := operation(j.workers[i], client.Bytes(x), client.Bytes(g))
			if err == nil {
				err = h.Wait(t.Context())
			}
			if err == nil && (x[0] != want || x[len(x)-1] != want) {
				err = fmt.Errorf("worker %d has %v to %v, want %v", i, x[0], x[len(x)-1], want)
			}
			return err
		})...)
	}
	begin := func(w *client.Worker, x, _ []byte) (client.Handle, error) { return w.Broadcast(0, x) }
	step := func(w *client.Worker, x, g []byte) (client.Handle, error) { return w.PushPull(0, g, x, 0) }
	for _, err := range []error{parameters(j, begin, 100), parameters(j, step, 90)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if _, err := j.workers[0].Save(t.Context(), "one"); err != nil {
		t.Fatal(err)
	}
	b.crash()
	says(t, parameters(j, step, 80), `rack "b"`)
	j.end()
	began := time.Now()
	if j, err := joinAs(t, cfg, a, standby); err == nil {
		j.end()
	} else { // it may be too soon: then the plan says so, before the deadline
		says(t, err, "join again")
		if took := time.Since(began); took > soon/2 {
			t.Errorf("it took %v", took)
		}
	}
	for _, x := range []*aggregator{a, standby} {
		x.until("the standby serves", func(s racks.Standing) bool { return whole(s) && s.Plan.Holders[1].Aggregator == standby.ID() })
	}
	if j, err = joinAs(t, cfg, a, standby); err != nil {
		t.Fatal(err)
	}
	defer j.end()
	if err := j.workers[0].Restore(t.Context(), "one"); err != nil {
		t.Fatal(err)
	}
	for _, err := range every(len(j.workers), func(i int) error { return j.workers[i].Barrier(t.Context(), "restored") }) {
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range []float32{80, 70} {
		if err := parameters(j, step, want); err != nil {
			t.Error(err)
		}
	}
}

// The plan gives a rack to another aggregator while a job runs with the first: its run ends, by name, and the first is fenced.
func TestAFencedAggregatorsJobsEnd(t *testing.T) {
	t.Parallel()
	e := startEtcd(t)
	a, b := e.serve("a", nil), e.serve("b", nil)
	b.until("it serves", func(s racks.Standing) bool { return s.Refusal == nil })
	second := e.serve("b", func(c *Config) { c.Standby = true })
	j := mustJoin(t, "j", a, b)
	j.mustStep()
	key := second.view.Keys.Rack("b")
	value, err := view.Encode(testSecret, key, &view.Claim{Rack: "b", Aggregator: second.ID(), URL: second.s.URL(),
		Declared: b.cfg.Cluster.Declaration()})
	if err != nil {
		t.Fatal(err)
	}
	// As if b's lease had ended while it did not hear of etcd, and the second had been faster.
	if _, err := a.etcd().Put(t.Context(), key, value); err != nil {
		t.Fatal(err)
	}
	says(t, b.refused(), "http://127.0.0.1", `rack "b" is served by the aggregator at `+second.s.URL())
	second.until("it serves", func(s racks.Standing) bool { return s.Refusal == nil })
	a.until("it is told", func(s racks.Standing) bool { return s.Plan.Holders[1].Aggregator == second.ID() })
	says(t, j.step(), second.s.URL(), `rack "b"`)
	j.end()
	if _, err := join(t, "j", time.Second, b); err == nil {
		t.Error("a job began at the fenced aggregator")
	} else {
		says(t, err, second.s.URL())
	}
	j = mustJoin(t, "j", a, second)
	j.mustStep()
	j.end()
}

// A rack is lost for good in mid-step, with its workers. Where racks have buddies, the others go on without it from the last whole
// step, with its optimizer's state.
func TestALostRacksStateIsWithItsBuddy(t *testing.T) {
	t.Parallel()
	e := startEtcd(t)
	edit := func(c *Config) {
		c.GoOnAfter = time.Second
		c.Cluster.Racks, c.Cluster.OnLoss = append(c.Cluster.Racks, racks.Rack{Name: "c"}), racks.LossGoOn
		c.Cluster.Buddy = true
	}
	a, b, c := e.serve("a", edit), e.serve("b", edit), e.serve("c", edit)
	cfg := client.Config{Job: "j", Timeout: soon, Mode: "eager", Optimizer: "sgd_torch",
		Hyper: map[string]float64{"lr": 1, "momentum": 0.5}}
	j, err := joinAs(t, cfg, a, b, c)
	if err != nil {
		t.Fatal(err)
	}
	pass := func(operation func(w *client.Worker, x, g []byte) (client.Handle, error), want float32) error {
		return errors.Join(every(len(j.workers), func(i int) error {
			x, g := make([]float32, 20_000), make([]float32, 20_000)
			for k := range x {
				x[k], g[k] = 100, float32(i+1)
			}
			h, err := operation(j.workers[i], client.Bytes(x), client.Bytes(g))
			if err == nil {
				err = h.Wait(t.Context())
			}
			for _, v := range x {
				if err == nil && v != want {
					err = fmt.Errorf("worker %d has %v, want %v", i, v, want)
				}
			}
			return err
		})...)
	}
	begin := func(w *client.Worker, x, _ []byte) (client.Handle, error) { return w.Broadcast(0, x) }
	step := func(w *client.Worker, x, g []byte) (client.Handle, error) { return w.PushPull(0, g, x, 0) }
	pull := func(w *client.Worker, x, _ []byte) (client.Handle, error) { return w.Pull(0, x, 0) }
	for _, err := range []error{pass(begin, 100), pass(step, 79)} { // the momentum is 21
		if err != nil {
			t.Fatal(err)
		}
	}
	b.crash()
	says(t, pass(step, 0), `rack "b"`)
	defer j.end()
	j.workers = slices.Delete(j.workers, 2, 4) // b's, whose rack is out
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	for i, err := range every(len(j.workers), func(i int) error {
		next, n, err := j.workers[i].Rejoin(ctx)
		if err != nil {
			return err
		}
		if j.workers[i] = next; n != 1 || next.Workers() != 4 || next.Rank() != i {
			return fmt.Errorf("it goes on from step %d as rank %d of %d", n, next.Rank(), next.Workers())
		}
		return nil
	}) {
		if err != nil {
			t.Fatalf("worker %d: %v", i, err)
		}
	}
	for _, err := range []error{pass(pull, 79), pass(step, 58.5)} { // the momentum is 21/2 + 10
		if err != nil {
			t.Error(err)
		}
	}
}
