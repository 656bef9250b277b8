package client_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rackweave/rackweave/aggregate"
	"github.com/rackweave/rackweave/aggregate/optim"
	"github.com/rackweave/rackweave/aggregate/racktest"
	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/client"
	"github.com/rackweave/rackweave/service"
	"github.com/rackweave/rackweave/verbs"
)

func TestABarrierOpensWhenAllAreThere(t *testing.T) {
	s := serve(t, service.Options{Providers: []string{verbs.ProviderTCP}})
	workers := joinAll(t, s, client.Config{Job: "j", Workers: 3, Provider: verbs.ProviderTCP})
	var mu sync.Mutex
	there := 0
	for round := range 3 {
		each(t, workers, func(rank int, w *client.Worker) error {
			mu.Lock()
			there++
			mu.Unlock()
			if err := w.Barrier(bounded(t), "step"); err != nil {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			if there < 3*(round+1) {
				return fmt.Errorf("it opened with %d arrivals", there)
			}
			return nil
		})
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Millisecond)
	defer cancel()
	err := workers[2].Barrier(ctx, "lonely")
	if !errors.Is(err, client.ErrTimeout) || !strings.Contains(err.Error(), "waited for worker 0 (") {
		t.Error(err)
	}
	if err := workers[0].Barrier(bounded(t), "bad name"); !errors.Is(err, client.ErrRefused) {
		t.Error(err)
	}
}

func TestATwoPhaseStepClipsByTheGlobalNormAndCanBeSkipped(t *testing.T) {
	s := serve(t, service.Options{Providers: []string{verbs.ProviderTCP}})
	tr := train(t, s, client.Config{Job: "two", Workers: 2, Mode: "two-phase", Optimizer: "sgd_torch",
		Provider: verbs.ProviderTCP}, model())
	tr.start()
	before := tr.parameters()
	commit := func(step client.Step) client.Committed {
		t.Helper()
		out := make([]client.Committed, 2)
		each(t, tr.workers, func(rank int, w *client.Worker) (err error) {
			out[rank], err = w.Commit(bounded(t), step)
			return err
		})
		if out[0] != out[1] {
			t.Errorf("workers were told %v and %v", out[0], out[1])
		}
		return out[0]
	}
	tr.all(client.Push, 500)
	if got := commit(client.Step{LR: 0.1, Skip: true}); got.Norm == 0 {
		t.Error("no norm of a step that is skipped")
	}
	tr.all(client.Pull, 0)
	sameModel(t, "a skipped step", tr.parameters(), before)

	tr.all(client.Push, 600)
	got := commit(client.Step{LR: 0.1, Scale: 0.5, Clip: 1})
	var square float64
	grads := [][][]float32{randomModel(600, tr.tensors), randomModel(601, tr.tensors)}
	for i := range tr.tensors {
		sum := make([]float32, len(grads[0][i]))
		optim.SumInto(sum, [][]float32{grads[0][i], grads[1][i]}, false)
		square += optim.SumSq(sum)
	}
	if norm := 0.5 * math.Sqrt(square); math.Abs(got.Norm-norm) > 1e-4*norm || math.Abs(got.Scale-0.5/norm) > 1e-4 {
		t.Errorf("norm %v and scale %v, want %v and %v", got.Norm, got.Scale, norm, 0.5/norm)
	}
	tr.all(client.Pull, 0)
	after := tr.parameters()
	if _, same := racktest.SameBits(after[3], before[3]); same {
		t.Error("the step changed nothing")
	}
}

func TestHyperParametersChangeFromTheNextGradientOn(t *testing.T) {
	s := serve(t, service.Options{Providers: []string{verbs.ProviderTCP}})
	cfg := client.Config{Job: "sgd", Workers: 2, Optimizer: "sgd_torch", Hyper: map[string]float64{"lr": 0.5},
		Provider: verbs.ProviderTCP}
	tr := train(t, s, cfg, model())
	tr.start()
	rule := optim.SGDTorch
	h := rule.Defaults()
	for step, lr := range []float64{0.5, 0.25, 0.25, 0.125} {
		ref := racktest.NewReference(aggregate.Eager, rule, h, 0, nil)
		ref.Hyper.LR = lr
		if lr != 0.5 {
			each(t, tr.workers, func(_ int, w *client.Worker) error {
				h := w.Hyper()
				h.LR = float32(lr)
				return w.SetHyper(client.AllTensors, h)
			})
		}
		want := tr.parameters()
		seed := uint64(1000 * (step + 1))
		grads := [][][]float32{randomModel(seed, tr.tensors), randomModel(seed+1, tr.tensors)}
		for i := range want {
			k := optim.Derive(rule, ref.Hyper, uint32(step+1))
			optim.Update(rule, &k, want[i], [optim.MaxStates][]float32{}, [][]float32{grads[0][i], grads[1][i]}, nil)
		}
		tr.all(client.PushPull, seed)
		sameModel(t, fmt.Sprintf("step %d with learning rate %v", step, lr), tr.parameters(), want)
	}
	w := tr.workers[0]
	if err := w.SetHyper(99, w.Hyper()); err == nil || !strings.Contains(err.Error(), "8 are registered") {
		t.Error(err)
	}
}

func TestSubmittingAndWaitingDoNotAllocateWithRegisteredMemory(t *testing.T) {
	if testing.CoverMode() != "" || raceEnabled {
		t.Skip("built with -race or -cover, whose instrumentation allocates")
	}
	s := serve(t, service.Options{Providers: []string{verbs.ProviderSHM}})
	w := joinAll(t, s, client.Config{Job: "j", Workers: 1, Provider: verbs.ProviderSHM})[0]
	if err := w.Register(bounded(t), model()); err != nil {
		t.Fatal(err)
	}
	var ops []client.Op
	for i, tensor := range model() {
		buf, err := w.Alloc(int(tensor.Elems()) * 4)
		if err != nil {
			t.Fatal(err)
		}
		ops = append(ops, client.Op{Kind: client.PushPull, Tensor: i, Src: buf, Dst: buf})
	}
	ctx := context.Background()
	handles := make([]client.Handle, 0, len(ops))
	n := testing.AllocsPerRun(50, func() {
		var err error
		if handles, err = w.SubmitTo(handles[:0], ops); err != nil {
			t.Fatal(err)
		}
		if err := w.WaitAll(ctx, handles); err != nil {
			t.Fatal(err)
		}
	})
	if n != 0 {
		t.Errorf("%v allocations a step", n)
	}
}

func TestTheAggregatorsMemoryGrowsWithTheModelsStateAlone(t *testing.T) {
	sameCode(t)
	s := serve(t, service.Options{Providers: []string{verbs.ProviderTCP}})
	memory := func(elems uint64) (parameters, rest uint64) {
		tr := train(t, s, adam(verbs.ProviderTCP), []client.Tensor{{Name: "w", Shape: []uint64{elems}}})
		tr.start()
		tr.step(0)
		status, err := s.Status(bounded(t), nil)
		if err != nil {
			t.Fatal(err)
		}
		closeAll(t, tr.workers)
		waitFor(t, "the job to end", func() bool { return forming(t, s) == 0 })
		j := status.Jobs[0]
		return j.ParameterBytes, j.SlotBytes + j.ResultBytes
	}
	smallParameters, smallRest := memory(1 << 18)
	largeParameters, largeRest := memory(1 << 22)
	if smallRest != largeRest {
		t.Errorf("slots and results hold %d bytes for a small model and %d for a large one", smallRest, largeRest)
	}
	// Parameters and Adam's two moments, with the padding of chunks and pages.
	if want := uint64(3 * 4 << 22); largeParameters < want || largeParameters > want+want/50 {
		t.Errorf("parameters and state of %d bytes hold %d", want, largeParameters)
	}
	if smallParameters >= largeParameters {
		t.Errorf("%d bytes for the small model", smallParameters)
	}
}

func TestStatsCountWhatAWorkerMoved(t *testing.T) {
	s := serve(t, service.Options{Providers: []string{verbs.ProviderTCP}})
	tr := train(t, s, client.Config{Job: "j", Workers: 2, Provider: verbs.ProviderTCP, WireType: chunk.BF16}, model())
	tr.all(client.PushPull, 1)
	var bytes uint64
	for i := range tr.tensors {
		bytes += 2 * tr.tensors[i].Elems()
	}
	for rank, w := range tr.workers {
		got, err := w.Stats()
		if err != nil || got.SentBytes != bytes || got.ReceivedBytes != bytes || got.SentChunks != got.ReceivedChunks {
			t.Errorf("worker %d: %+v, %v; want %d bytes each way", rank, got, err, bytes)
		}
	}
}
