package client_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rackweave/rackweave/aggregate/optim"
	"github.com/rackweave/rackweave/client"
	"github.com/rackweave/rackweave/service"
	"github.com/rackweave/rackweave/verbs"
)

// promptly is how soon a failure must be known everywhere. The promise is a second; a loaded test machine gets more, yet not the
// time after which waits end by themselves.
const promptly = deadline / 4

// pushUntilFailure exchanges endlessModel until an operation fails; it returns when that was, and the error.
func pushUntilFailure(t testing.TB, w *client.Worker) (time.Time, error) {
	buf := make([]byte, endlessModel[0].Elems()*4)
	for {
		h, err := w.PushPull(0, buf, buf, 0)
		if err == nil {
			err = h.Wait(bounded(t))
		}
		if err != nil {
			return time.Now(), err
		}
	}
}

// knowSoon has workers exchange until all fail, which must be soon after someone was killed. It returns their errors.
func knowSoon(t *testing.T, workers []*client.Worker, killedAt <-chan time.Time) []error {
	t.Helper()
	ends := make([]time.Time, len(workers))
	errs := every(workers, func(rank int, w *client.Worker) (err error) {
		ends[rank], err = pushUntilFailure(t, w)
		return err
	})
	at := <-killedAt
	for rank, end := range ends {
		if took := end.Sub(at); took > promptly {
			t.Errorf("worker %d knew after %v", rank, took)
		}
	}
	return errs
}

func TestAKilledWorkerFailsTheJobForAllAndNoOtherJob(t *testing.T) {
	for _, provider := range []string{verbs.ProviderSHM, verbs.ProviderTCP} {
		t.Run(provider, func(t *testing.T) {
			s := serve(t, service.Options{Providers: []string{provider}})
			cfg := client.Config{Server: s.URL(), Job: "doomed", Workers: 3, Provider: provider, Timeout: deadline}
			other := client.Config{Job: "other", Workers: 2, Provider: provider}
			bystander := train(t, s, other, model())

			killed := cfg
			killed.Rank = 2
			victim := play(t, "worker", killed)
			workers := make([]*client.Worker, 2)
			t.Cleanup(func() { closeAll(t, workers) })
			each(t, workers, func(rank int, _ *client.Worker) (err error) {
				c := cfg
				c.Rank = rank
				if workers[rank], err = client.Join(bounded(t), c); err != nil {
					return err
				}
				return workers[rank].Register(bounded(t), endlessModel)
			})
			killedAt := make(chan time.Time, 1)
			go func() {
				victim.lines.Scan() // "pushing"
				victim.kill()
				killedAt <- time.Now()
			}()
			for rank, err := range knowSoon(t, workers, killedAt) {
				var job *client.JobError
				if !errors.Is(err, client.ErrAborted) || !errors.As(err, &job) || job.Rank != 2 {
					t.Errorf("worker %d: %v: want an abort because of worker 2", rank, err)
				}
			}
			bystander.all(client.PushPull, 5)
			want := randomModel(5, bystander.tensors)
			for i, other := range randomModel(6, bystander.tensors) {
				optim.SumInto(want[i], [][]float32{other}, true)
			}
			sameModel(t, "the other job's sum", bystander.parameters(), want)

			// The next run of the job needs nothing cleaned by hand, and does not wait for the old workers to close.
			cfg.Workers = 2
			train(t, s, cfg, model()).all(client.PushPull, 1)
		})
	}
}

// A stopped worker keeps its connections, and is lost when it has missed its heartbeats.
func TestAStoppedWorkerIsSaidToHaveMissedItsHeartbeats(t *testing.T) {
	if testing.Short() {
		t.Skip("-short is set: this test waits 10 s for missed heartbeats")
	}
	t.Parallel()
	s := serve(t, service.Options{Providers: []string{verbs.ProviderTCP}})
	cfg := client.Config{Server: s.URL(), Job: "j", Rank: 1, Workers: 2, Timeout: time.Minute}
	other := play(t, "worker", cfg)
	cfg.Rank = 0
	w, err := client.Join(bounded(t), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.Close() })
	if err := w.Register(bounded(t), endlessModel); err != nil {
		t.Fatal(err)
	}
	if err := other.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	select {
	case <-w.Failed():
	case <-time.After(time.Minute):
		t.Fatal("the job goes on without a worker")
	}
	for _, want := range []string{"worker 1 (", "is gone: it has missed its heartbeats for ", "it is stopped"} {
		if err := w.Err(); !strings.Contains(err.Error(), want) {
			t.Errorf("%v: want it to say %q", err, want)
		}
	}
}

func TestAKilledAggregatorIsAnErrorAtEveryWorker(t *testing.T) {
	for _, provider := range []string{verbs.ProviderSHM, verbs.ProviderTCP} {
		t.Run(provider, func(t *testing.T) {
			aggregator := play(t, "aggregator", service.Options{Providers: []string{provider}, Unpinned: true})
			cfg := client.Config{Server: aggregator.line(t), Job: "doomed", Workers: 2, Provider: provider, Timeout: deadline}
			workers := make([]*client.Worker, 2)
			t.Cleanup(func() {
				for _, w := range workers {
					if w != nil {
						w.Close()
					}
				}
			})
			each(t, workers, func(rank int, _ *client.Worker) (err error) {
				c := cfg
				c.Rank = rank
				if workers[rank], err = client.Join(bounded(t), c); err != nil {
					return err
				}
				return workers[rank].Register(bounded(t), endlessModel)
			})
			killedAt := make(chan time.Time, 1)
			time.AfterFunc(100*time.Millisecond, func() {
				aggregator.kill()
				killedAt <- time.Now()
			})
			for rank, err := range knowSoon(t, workers, killedAt) {
				if !errors.Is(err, client.ErrServerLost) {
					t.Errorf("worker %d: %v", rank, err)
				}
			}
			if err := workers[0].Barrier(bounded(t), "b"); !errors.Is(err, client.ErrServerLost) {
				t.Errorf("barrier: %v", err)
			}
		})
	}
}

func TestConnectingEndsWhenTheJobFailsOrTheCallerGivesUp(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0") // takes connections, and never lets anybody in
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	s := serve(t, service.Options{
		Providers:       []string{verbs.ProviderTCP},
		ProviderOptions: map[string]string{verbs.ProviderTCP: "advertise=" + silent.Addr().String()},
	})
	ctx, cancel := context.WithCancel(bounded(t))
	time.AfterFunc(300*time.Millisecond, cancel)
	began := time.Now()
	errs := every(make([]*client.Worker, 2), func(rank int, _ *client.Worker) error {
		ctx := ctx
		if rank == 1 {
			ctx = bounded(t)
		}
		_, err := client.Join(ctx, client.Config{Server: s.URL(), Job: "j", Rank: rank, Workers: 2})
		return err
	})
	if took := time.Since(began); took > 300*time.Millisecond+promptly {
		t.Errorf("took %v", took)
	}
	if !errors.Is(errs[0], context.Canceled) {
		t.Errorf("the worker that was cancelled: %v", errs[0])
	}
	if !errors.Is(errs[1], client.ErrAborted) || !strings.Contains(errs[1].Error(), "worker 0 (") {
		t.Errorf("the other worker: %v", errs[1])
	}
}

func TestAServiceThatClosesTellsItsWorkers(t *testing.T) {
	s := serve(t, service.Options{Providers: []string{verbs.ProviderTCP}})
	tr := train(t, s, client.Config{Job: "j", Workers: 2, Provider: verbs.ProviderTCP}, endlessModel)
	time.AfterFunc(50*time.Millisecond, func() { s.Close() })
	for rank, err := range every(tr.workers, func(_ int, w *client.Worker) error { _, err := pushUntilFailure(t, w); return err }) {
		if !errors.Is(err, client.ErrAborted) || !strings.Contains(err.Error(), "shutting down") {
			t.Errorf("worker %d: %v", rank, err)
		}
	}
}

func TestAWaitEndsAtItsDeadlineAndNamesWhoIsMissing(t *testing.T) {
	s := serve(t, service.Options{Providers: []string{verbs.ProviderTCP}})
	tr := train(t, s, client.Config{Job: "j", Workers: 3, Provider: verbs.ProviderTCP}, model())
	x := client.Bytes(random(1, 30_000))
	h, err := tr.workers[0].PushPull(3, x, x, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tr.workers[2].PushPull(3, x, client.Bytes(random(2, 30_000)), 0); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "both pushes to arrive", func() bool { return awaited(t, s, 1) > 0 && awaited(t, s, 2) == 0 && awaited(t, s, 0) == 0 })
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	began := time.Now()
	err = h.Wait(ctx)
	if !errors.Is(err, client.ErrTimeout) || !strings.Contains(err.Error(), "waits for worker 1 (") {
		t.Errorf("%v", err)
	}
	if took := time.Since(began); took > promptly {
		t.Errorf("the wait took %v", took)
	}
	// The step cannot be finished any more: the worker has failed, and says so to the others when it closes.
	if _, err := tr.workers[0].PushPull(4, x, x, 0); !errors.Is(err, client.ErrTimeout) {
		t.Errorf("submit after the timeout: %v", err)
	}
	tr.workers[0].Close()
	select {
	case <-tr.workers[1].Failed():
	case <-time.After(promptly):
		t.Fatal("the others were not told")
	}
	if err := tr.workers[1].Err(); !errors.Is(err, client.ErrAborted) || !strings.Contains(err.Error(), "no answer for every chunk") {
		t.Errorf("worker 1: %v", err)
	}
}

func TestACancelledWaitEndsAtOnce(t *testing.T) {
	s := serve(t, service.Options{Providers: []string{verbs.ProviderTCP}})
	tr := train(t, s, client.Config{Job: "j", Workers: 2, Provider: verbs.ProviderTCP}, model())
	x := client.Bytes(random(1, 30_000))
	h, err := tr.workers[0].PushPull(3, x, x, 0)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	time.AfterFunc(20*time.Millisecond, cancel)
	if err := h.Wait(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}

func TestAWorkerThatLeavesInPeaceFailsNothing(t *testing.T) {
	t.Parallel()
	s := serve(t, service.Options{Providers: []string{verbs.ProviderTCP}, CheckpointDir: t.TempDir()})
	tr := train(t, s, adam(verbs.ProviderTCP), model())
	tr.start()
	if err := tr.workers[1].Close(); err != nil {
		t.Fatal(err)
	}
	w := tr.workers[0]
	// What needs no other worker still works.
	h, err := w.Pull(3, client.Bytes(tr.results[0][3]), 0)
	if err == nil {
		err = h.Wait(bounded(t))
	}
	if err != nil {
		t.Fatalf("pull: %v", err)
	}
	if _, err := w.Save(bounded(t), "last"); err != nil {
		t.Fatalf("save: %v", err)
	}
	// What does need it fails and says why.
	if err := w.Barrier(bounded(t), "b"); err == nil || !strings.Contains(err.Error(), "has left") {
		t.Errorf("barrier: %v", err)
	}
	began := time.Now()
	h, err = w.PushPull(3, client.Bytes(tr.results[0][3]), client.Bytes(tr.results[0][3]), 0)
	if err == nil {
		err = h.Wait(bounded(t))
	}
	if !errors.Is(err, client.ErrAborted) || !strings.Contains(err.Error(), "worker 1 ") ||
		!strings.Contains(err.Error(), "has left the job, and others wait for its gradients") {
		t.Errorf("push: %v", err)
	}
	if took := time.Since(began); took > promptly {
		t.Errorf("the push took %v to fail", took)
	}
}

func TestAWorkerThatClosesInMidExchangeFailsTheJob(t *testing.T) {
	s := serve(t, service.Options{Providers: []string{verbs.ProviderTCP}})
	tr := train(t, s, client.Config{Job: "j", Workers: 2, Provider: verbs.ProviderTCP}, model())
	x := client.Bytes(random(1, 30_000))
	if _, err := tr.workers[0].PushPull(3, x, x, 0); err != nil {
		t.Fatal(err)
	}
	if err := tr.workers[0].Close(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-tr.workers[1].Failed():
	case <-time.After(promptly):
		t.Fatal("the other worker was not told")
	}
	if err := tr.workers[1].Err(); !strings.Contains(err.Error(), "closed with operations in flight") {
		t.Error(err)
	}
	if _, err := tr.workers[0].PushPull(3, x, x, 0); !errors.Is(err, client.ErrClosed) {
		t.Errorf("submit on a closed worker: %v", err)
	}
}

func TestAnOperationIsOneAtATimePerTensorAndChecked(t *testing.T) {
	s := serve(t, service.Options{Providers: []string{verbs.ProviderTCP}})
	tr := train(t, s, client.Config{Job: "j", Workers: 1, Provider: verbs.ProviderTCP, Mode: "aggregate"}, model())
	w := tr.workers[0]
	x := random(1, 30_000)
	ops := []client.Op{
		{Kind: client.PushPull, Tensor: 3, Src: client.Bytes(x), Dst: client.Bytes(x)},
		{Kind: client.PushPull, Tensor: 3, Src: client.Bytes(x), Dst: client.Bytes(x)},
		{Kind: client.PushPull, Tensor: 4, Src: client.Bytes(x[:8192]), Dst: client.Bytes(x[:8192])},
	}
	handles, err := w.Submit(ops...)
	if !errors.Is(err, client.ErrBusy) || !strings.Contains(err.Error(), "layer3.weight") || len(handles) != 1 {
		t.Errorf("the same tensor twice: %d started, %v", len(handles), err)
	}
	if err := w.WaitAll(bounded(t), handles); err != nil {
		t.Error(err)
	}
	for _, c := range []struct {
		op   client.Op
		want string
	}{
		{client.Op{Kind: client.PushPull, Tensor: 99}, "8 are registered"},
		{client.Op{Kind: client.PushPull, Tensor: 3, Src: client.Bytes(x[1:]), Dst: client.Bytes(x)},
			"source of 119996 bytes: it takes 120000"},
		{client.Op{Kind: client.PushPull, Tensor: 3, Src: client.Bytes(x), Dst: client.Bytes(x[1:])}, "destination of 119996 bytes"},
	} {
		if _, err := w.Submit(c.op); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: want it to say %q", err, c.want)
		}
	}
	if err := w.Err(); err != nil {
		t.Errorf("a refused operation failed the worker: %v", err)
	}
}

func TestGradientsOfDifferentHyperParametersFailTheJob(t *testing.T) {
	s := serve(t, service.Options{Providers: []string{verbs.ProviderTCP}})
	tr := train(t, s, adam(verbs.ProviderTCP), model())
	tr.start()
	h := tr.workers[1].Hyper()
	h.LR *= 2
	if err := tr.workers[1].SetHyper(3, h); err != nil {
		t.Fatal(err)
	}
	errs := every(tr.workers, func(rank int, w *client.Worker) error {
		h, err := w.PushPull(3, client.Bytes(random(1, 30_000)), client.Bytes(tr.results[rank][3]), 0)
		if err != nil {
			return err
		}
		return h.Wait(bounded(t))
	})
	for rank, err := range errs {
		if !errors.Is(err, client.ErrAborted) || !strings.Contains(err.Error(), fmt.Sprintf("%q", "layer3.weight")) {
			t.Errorf("worker %d: %v", rank, err)
		}
	}
}
