package client_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/rackweave/rackweave/client"
	"github.com/rackweave/rackweave/service"
	"github.com/rackweave/rackweave/service/api"
	"github.com/rackweave/rackweave/verbs"
)

// streamConfig uses plain SGD with powers of two, so that small whole gradients add up exactly in any order.
func streamConfig(provider, policy string, workers int) client.Config {
	return client.Config{
		Job: "stream", Workers: workers, Policy: policy, Optimizer: "sgd_torch", Hyper: map[string]float64{"lr": 0.25, "scale": 0.5},
		Provider: provider,
	}
}

// streamStep pushes ones, ends the step, and pulls if it must.
func streamStep(ctx context.Context, w *client.Worker, grads, params [][]float32) (client.StepEnd, error) {
	run := func(kind client.Kind) error {
		var ops []client.Op
		for i := range grads {
			ops = append(ops, client.Op{Kind: kind, Tensor: i, Src: client.Bytes(grads[i]), Dst: client.Bytes(params[i])})
		}
		handles, err := w.Submit(ops...)
		if err != nil {
			return err
		}
		return w.WaitAll(ctx, handles)
	}
	if err := run(client.PushPull); err != nil {
		return client.StepEnd{}, err
	}
	end, err := w.EndStep(ctx)
	if err == nil && end.Pull {
		err = run(client.Pull)
	}
	return end, err
}

func onesAndZeros(tensors []client.Tensor) (ones, zeros [][]float32) {
	for i := range tensors {
		g := make([]float32, tensors[i].Elems())
		for k := range g {
			g[k] = 1
		}
		ones, zeros = append(ones, g), append(zeros, make([]float32, len(g)))
	}
	return ones, zeros
}

func TestWorkersTrainOutOfStep(t *testing.T) {
	const steps, n = 4, 4
	tensors := model()
	for _, provider := range providers() {
		for _, policy := range []string{"asp", "ssp:s=0", "lagtuner:sl=1,su=2,reading=loose", "backup:b=0", "k-batch-asp:k=2"} {
			t.Run(provider+" "+policy, func(t *testing.T) {
				workers := joinAll(t, serve(t, service.Options{Providers: []string{provider}}), streamConfig(provider, policy, n))
				last := make([]float32, n)
				each(t, workers, func(rank int, w *client.Worker) error {
					if err := w.Register(bounded(t), tensors); err != nil {
						return err
					}
					ones, params := onesAndZeros(tensors)
					for step := range uint64(steps) {
						end, err := streamStep(bounded(t), w, ones, params)
						if err != nil {
							return err
						}
						if end.Step != step+1 {
							return fmt.Errorf("step %d comes after %d", end.Step, step)
						}
						if policy == "ssp:s=0" && !end.Pull {
							return errors.New("parameters of before the others' pushes would do")
						}
					}
					if err := w.Barrier(bounded(t), "end"); err != nil {
						return err
					}
					h, err := w.Pull(0, client.Bytes(params[0]), 0)
					if err != nil {
						return err
					}
					last[rank] = 0
					if err := h.Wait(bounded(t)); err != nil {
						return err
					}
					last[rank] = params[0][0]
					return nil
				})
				for rank, got := range last {
					if want := float32(-0.25 * 0.5 * steps * n); got != want {
						t.Errorf("worker %d has %v, all gradients make %v", rank, got, want)
					}
				}
			})
		}
	}
}

func TestHeldWorkersFailWithTheKilledOne(t *testing.T) {
	for i, policy := range []string{
		"backup:b=0", "k-bsp:k=2", "k-asp:k=2", "k-batch-asp:k=2", "k-batch-bsp:k=2", "softsync:m=1",
		"strategy-switch:at=1,steps=9",
	} {
		provider := []string{verbs.ProviderSHM, verbs.ProviderTCP}[i%2]
		t.Run(provider+" "+policy, func(t *testing.T) {
			cfg := streamConfig(provider, policy, 2)
			cfg.Server, cfg.Timeout, cfg.Rank = serve(t, service.Options{Providers: []string{provider}}).URL(), deadline, 1
			victim := play(t, "worker", cfg) // never ends a step
			cfg.Rank = 0
			w, err := client.Join(bounded(t), cfg)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { closeAll(t, []*client.Worker{w}) })
			if err := w.Register(bounded(t), endlessModel); err != nil {
				t.Fatal(err)
			}
			killedAt := make(chan time.Time, 1)
			go func() {
				victim.lines.Scan() // "pushing"
				victim.kill()
				killedAt <- time.Now()
			}()
			ones, params := onesAndZeros(endlessModel)
			for err == nil { // some policies hold nobody
				_, err = streamStep(bounded(t), w, ones, params)
			}
			took := time.Since(<-killedAt)
			var job *client.JobError
			if !errors.Is(err, client.ErrAborted) || !errors.As(err, &job) || job.Rank != 1 || took > promptly {
				t.Errorf("%v, known after %v: want an abort because of worker 1", err, took)
			}
		})
	}
}

// Where the policy can do without a worker that is killed in mid-step, the others go on, and meet at barriers.
func TestOthersGoOnWithoutAKilledWorker(t *testing.T) {
	policies := []string{"ssp:s=1", "k-batch-asp:k=2", "softsync:m=2", "backup:b=1", "k-bsp:k=2", "k-asp:k=1", "k-batch-bsp:k=2"}
	if os.Getenv("RACKWEAVE_LONG") == "" {
		policies = policies[:3] // one without sets, one of given and one of all workers' sets
	}
	for i, policy := range policies {
		provider := []string{verbs.ProviderSHM, verbs.ProviderTCP}[i%2]
		t.Run(provider+" "+policy, func(t *testing.T) {
			s := serve(t, service.Options{Providers: []string{provider}})
			cfg := streamConfig(provider, policy, 3)
			cfg.Server, cfg.Timeout, cfg.Rank = s.URL(), deadline, 2
			victim := play(t, "worker", cfg) // never ends a step
			workers := make([]*client.Worker, 2)
			t.Cleanup(func() { closeAll(t, workers) })
			killed := make(chan struct{})
			go func() {
				victim.lines.Scan() // "pushing"
				waitFor(t, "gradients of the others", func() bool {
					status, err := s.Status(bounded(t), nil)
					return err != nil || status.Jobs[0].Members[0].Chunks+status.Jobs[0].Members[1].Chunks > 0
				})
				victim.kill()
				close(killed)
			}()
			each(t, workers, func(rank int, _ *client.Worker) (err error) {
				c := cfg
				c.Rank = rank
				if workers[rank], err = client.Join(bounded(t), c); err != nil {
					return err
				}
				w := workers[rank]
				if err := w.Register(bounded(t), endlessModel); err != nil {
					return err
				}
				ones, params := onesAndZeros(endlessModel)
				if _, err := streamStep(bounded(t), w, ones, params); err != nil {
					return err
				}
				<-killed
				for range 5 {
					if _, err := streamStep(bounded(t), w, ones, params); err != nil {
						return err
					}
				}
				return w.Barrier(bounded(t), "without-worker-2")
			})
			status, err := s.Status(bounded(t), nil)
			if err != nil {
				t.Fatal(err)
			}
			if j := status.Jobs[0]; j.State != "running" || !j.Members[2].Left || j.Members[0].Left {
				t.Errorf("%+v", j)
			}
		})
	}
}

func TestHeldWorkersTimeoutNamesTheSlowest(t *testing.T) {
	tensors := model()[:2]
	workers := joinAll(t, serve(t, service.Options{Providers: []string{verbs.ProviderTCP}}),
		streamConfig(verbs.ProviderTCP, "ssp:s=0", 2))
	each(t, workers, func(_ int, w *client.Worker) error { return w.Register(bounded(t), tensors) })
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	ones, params := onesAndZeros(tensors)
	if _, err := streamStep(ctx, workers[0], ones, params); !errors.Is(err, client.ErrTimeout) ||
		!strings.Contains(err.Error(), "waits for worker 1 (at step 0)") {
		t.Errorf("%v: want worker 1 named", err)
	}
}

func TestStatusSaysForWhomAHeldWorkerWaits(t *testing.T) {
	tensors := model()[:2]
	s := serve(t, service.Options{Providers: []string{verbs.ProviderSHM}})
	workers := joinAll(t, s, streamConfig(verbs.ProviderSHM, "ssp:s=0", 2))
	each(t, workers, func(_ int, w *client.Worker) error { return w.Register(bounded(t), tensors) })
	ones, params := onesAndZeros(tensors)
	released := make(chan error, 1)
	go func() {
		_, err := streamStep(bounded(t), workers[0], ones, params)
		released <- err
	}()
	waitFor(t, "worker 0 to wait for worker 1", func() bool {
		status, err := s.Status(bounded(t), nil)
		if err != nil {
			return false
		}
		m := status.Jobs[0].Members
		return m[0].Held && slices.Equal(m[0].WaitsFor, []uint32{1}) && m[0].WaitsSeconds > 0 && len(m[1].WaitsFor) == 0
	})
	mine, other := onesAndZeros(tensors)
	if _, err := streamStep(bounded(t), workers[1], mine, other); err != nil {
		t.Error(err)
	}
	if err := <-released; err != nil {
		t.Error(err)
	}
	if err := workers[0].ReportLoss(bounded(t), 0.5); err != nil {
		t.Error(err)
	}
}

func TestTraceTellsOfEveryStep(t *testing.T) {
	t.Parallel()
	const steps, n = 6, 2
	tensors := model()[:3]
	for _, policy := range []string{"", "ssp:s=1"} {
		t.Run(policy, func(t *testing.T) {
			cfg := streamConfig(verbs.ProviderSHM, policy, n)
			s := serve(t, service.Options{Providers: []string{verbs.ProviderSHM}})
			workers := joinAll(t, s, cfg)
			cfg.Server = s.URL()
			type traced struct {
				*api.TraceResponse
				err error
			}
			got := make(chan traced, 1)
			var ended atomic.Bool
			over, done := make(chan bool), make(chan bool)
			go func() {
				defer close(done)
				trace, err := client.Trace(bounded(t), cfg, time.Second, 0)
				close(over)
				got <- traced{trace, err}
			}()
			each(t, workers, func(rank int, w *client.Worker) error {
				if err := w.Register(bounded(t), tensors); err != nil {
					return err
				}
				ones, params := onesAndZeros(tensors)
				for !ended.Load() { // rank 0 sees that the trace is over
					for range steps {
						if policy != "" {
							if _, err := streamStep(bounded(t), w, ones, params); err != nil {
								return err
							}
							continue
						}
						h, err := w.PushPull(0, client.Bytes(ones[0]), client.Bytes(params[0]), 0)
						if err == nil {
							err = h.Wait(bounded(t))
						}
						if err != nil {
							return err
						}
					}
					if err := w.Barrier(bounded(t), "round"); err != nil {
						return err
					}
					select {
					case <-over:
						ended.Store(rank == 0 || ended.Load())
					default:
					}
					if err := w.Barrier(bounded(t), "look"); err != nil {
						return err
					}
				}
				return nil
			})
			<-done
			trace := <-got
			if trace.err != nil {
				t.Fatal(trace.err)
			}
			kinds := map[api.TraceEvent_Kind]int{}
			for _, lane := range trace.Lanes {
				for _, e := range lane.Events {
					kinds[e.Kind]++
				}
			}
			want := []api.TraceEvent_Kind{api.TraceEvent_ARRIVE, api.TraceEvent_FOLD}
			if policy != "" {
				want = []api.TraceEvent_Kind{api.TraceEvent_ARRIVE, api.TraceEvent_UPDATE, api.TraceEvent_END, api.TraceEvent_GO}
			}
			for _, k := range want {
				if kinds[k] < steps {
					t.Errorf("%d of %v in %v", kinds[k], k, kinds)
				}
			}
		})
	}
	nobody := client.Config{Server: "http://127.0.0.1:1", Job: "x", Timeout: time.Second}
	if _, err := client.Trace(bounded(t), nobody, 0, 0); err == nil {
		t.Error("a trace of nothing")
	}
}

func TestPolicyChangesWhileAJobRuns(t *testing.T) {
	const steps, n = 12, 2
	tensors := model()[:4]
	s := serve(t, service.Options{Providers: []string{verbs.ProviderSHM}})
	workers := joinAll(t, s, streamConfig(verbs.ProviderSHM, "asp", n))
	each(t, workers, func(rank int, w *client.Worker) error {
		if err := w.Register(bounded(t), tensors); err != nil {
			return err
		}
		ones, params := onesAndZeros(tensors)
		for step := range steps {
			if step == 3 {
				if err := w.Barrier(bounded(t), "here"); err != nil {
					return err
				}
			}
			if rank == 0 && step == 4 {
				if was, err := w.SetPolicy(bounded(t), "ssp:s=0"); err != nil || was != "asp" {
					return fmt.Errorf("policy was %s: %w", was, err)
				}
			}
			if rank == 1 && step == 4 {
				waitFor(t, "the other policy, which this worker has not come to", func() bool {
					status, err := s.Status(bounded(t), nil)
					if err != nil {
						return true
					}
					j := status.Jobs[0]
					return j.Policy == "asp" && j.NextPolicy == "ssp:s=0" && j.NextPolicyStep > j.Members[1].Step && j.Members[0].Held
				})
			}
			if _, err := streamStep(bounded(t), w, ones, params); err != nil {
				return err
			}
		}
		// In step now: the last step's parameters have all gradients.
		if got, want := params[0][0], float32(-0.25*0.5*steps*n); got != want {
			return fmt.Errorf("parameters are %v, want %v", got, want)
		}
		return nil
	})
	status, err := s.Status(bounded(t), nil)
	if err != nil {
		t.Fatal(err)
	}
	j := status.Jobs[0]
	if j.Policy != "ssp:s=0" || j.NextPolicy != "" || j.Members[1].Step != steps {
		t.Errorf("status says policy %s, next %q, step %d", j.Policy, j.NextPolicy, j.Members[1].Step)
	}
	if j.Drift == nil {
		t.Error("status says nothing of the workers' drift")
	}
	for policy, want := range map[string]string{"ssp:z=1": "did you mean s?", "bsp": "applies sets of gradients"} {
		if _, err := workers[0].SetPolicy(bounded(t), policy); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("policy %s: %v, want %q", policy, err, want)
		}
	}
	if _, err := client.SetPolicy(bounded(t), client.Config{Server: s.URL(), Job: "stream", Token: "guess"}, "asp"); err == nil {
		t.Error("anybody may change the policy")
	}
}

func TestPoliciesThatCannotRunAreRefused(t *testing.T) {
	s := serve(t, service.Options{Providers: []string{verbs.ProviderTCP}})
	for _, c := range []struct {
		name, policy, mode, optimizer, want string
	}{
		{"unknown", "lagtunr:sl=1,su=2", "", "sgd_torch", "did you mean lagtuner?"},
		{"unknown parameter", "ssp:z=1", "", "sgd_torch", "did you mean s?"},
		{"bounds exchanged", "lagtuner:sl=5,su=2", "", "sgd_torch", "sl=5 is above su=2"},
		{"more than there are", "k-bsp:k=3", "", "sgd_torch", "k=3, but the job has 2 workers"},
		{"a negative bound", "ssp:s=-1", "", "sgd_torch", "use 0 to 1e+09"},
		{"an absurd bound", "lagtuner:sl=0,su=1e40", "", "sgd_torch", "use 0 to 1e+09"},
		{"none left", "backup:b=2", "", "sgd_torch", "leaves none"},
		{"a share of no steps", "strategy-switch:at=0.4", "", "sgd_torch", "add steps=NUMBER"},
		{"in step", "ssp:s=1", "eager", "sgd_torch", "mode eager is synchronous"},
		{"of a sum", "ssp:s=1", "aggregate", "", "mode aggregate is synchronous"},
		{"with norms", "asp", "", "lamb", "use mode two-phase"},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg := streamConfig(verbs.ProviderTCP, c.policy, 2)
			cfg.Server, cfg.Mode, cfg.Optimizer, cfg.Hyper, cfg.Rank = s.URL(), c.mode, c.optimizer, nil, 0
			_, err := client.Join(bounded(t), cfg)
			refused(t, err, connect.CodeInvalidArgument, c.want)
		})
	}
}
