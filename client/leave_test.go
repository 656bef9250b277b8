package client_test

import (
	"strings"
	"testing"
	"time"

	"github.com/rackweave/rackweave/client"
	"github.com/rackweave/rackweave/service"
)

// Each of eight workers does a step of many chunks, pulls and leaves. What their last answers held must come back.
func TestWorkersThatLeaveKeepNothingFromTheOthers(t *testing.T) {
	for _, provider := range []string{"tcp", "shm"} {
		t.Run(provider, func(t *testing.T) {
			tensors := []client.Tensor{{Name: "a", Shape: []uint64{64 * 8192}}}
			workers := joinAll(t, serve(t, service.Options{Providers: []string{provider}}), streamConfig(provider, "asp", 8))
			each(t, workers, func(_ int, w *client.Worker) error { return w.Register(bounded(t), tensors) })
			for rank, w := range workers {
				ones, params := onesAndZeros(tensors)
				if _, err := streamStep(bounded(t), w, ones, params); err != nil {
					t.Fatalf("worker %d, after as many have left: %v", rank, err)
				}
				h, err := w.Pull(0, client.Bytes(params[0]), 0)
				if err == nil {
					err = h.Wait(bounded(t))
				}
				if err != nil {
					t.Fatalf("worker %d pulls after as many have left: %v", rank, err)
				}
				if err := w.Close(); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

// Workers of a job in stream mode are at steps of their own when they broadcast.
func TestABroadcastMayFollowStepsOfTheWorkersOwn(t *testing.T) {
	tensors := []client.Tensor{{Name: "a", Shape: []uint64{8192}}}
	workers := joinAll(t, serve(t, service.Options{Providers: []string{"tcp"}}), streamConfig("tcp", "asp", 2))
	each(t, workers, func(rank int, w *client.Worker) error {
		if err := w.Register(bounded(t), tensors); err != nil {
			return err
		}
		ones, params := onesAndZeros(tensors)
		for steps := range 2 {
			h, err := w.Broadcast(0, client.Bytes(params[0]))
			if err == nil {
				err = h.Wait(bounded(t))
			}
			if err != nil || steps == 1 {
				return err
			}
			for range rank + 1 {
				if _, err := streamStep(bounded(t), w, ones, params); err != nil {
					return err
				}
			}
			if err := w.Barrier(bounded(t), "steps-done"); err != nil {
				return err
			}
		}
		return nil
	})
}

func TestWaitingForAWorkerThatLeavesEndsSoonAndNamesIt(t *testing.T) {
	t.Parallel()
	tensors := []client.Tensor{{Name: "a", Shape: []uint64{8192}}}
	for what, wait := range map[string]func(w *client.Worker) error{
		"barrier": func(w *client.Worker) error { return w.Barrier(bounded(t), "b") },
		"register": func(w *client.Worker) error {
			return w.Register(bounded(t), []client.Tensor{{Name: "b", Shape: []uint64{1}}})
		},
		"commit": func(w *client.Worker) error { _, err := w.Commit(bounded(t), client.Step{LR: 1}); return err },
	} {
		t.Run(what, func(t *testing.T) {
			cfg := client.Config{
				Job: "j", Workers: 2, Mode: "two-phase", Optimizer: "sgd_torch", Provider: "shm", Timeout: deadline,
			}
			workers := joinAll(t, serve(t, service.Options{Providers: []string{"shm"}}), cfg)
			each(t, workers, func(_ int, w *client.Worker) error { return w.Register(bounded(t), tensors) })
			ended := make(chan error, 1)
			go func() { ended <- wait(workers[0]) }()
			time.Sleep(100 * time.Millisecond) // it may begin to wait before or after the other leaves
			if err := workers[1].Close(); err != nil {
				t.Fatal(err)
			}
			select {
			case err := <-ended:
				if err == nil || !strings.Contains(err.Error(), "worker 1") {
					t.Errorf("%v, want an error that names worker 1", err)
				}
			case <-time.After(promptly):
				t.Errorf("it still waits %v after the other left", promptly)
			}
		})
	}
}
