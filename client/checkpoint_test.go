package client_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rackweave/rackweave/aggregate/racktest"
	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/client"
	"github.com/rackweave/rackweave/service"
	"github.com/rackweave/rackweave/verbs"
)

// trainer drives a job step by step with gradients that depend on the step and the rank alone.
type trainer struct {
	t       *testing.T
	workers []*client.Worker
	tensors []client.Tensor
	results [][][]float32 // by worker, tensor
}

func train(t *testing.T, s *service.Service, cfg client.Config, tensors []client.Tensor) *trainer {
	tr := &trainer{t: t, workers: joinAll(t, s, cfg), tensors: tensors, results: make([][][]float32, cfg.Workers)}
	each(t, tr.workers, func(rank int, w *client.Worker) error {
		for i := range tensors {
			tr.results[rank] = append(tr.results[rank], make([]float32, tensors[i].Elems()))
		}
		return w.Register(bounded(t), tensors)
	})
	return tr
}

func (tr *trainer) all(kind client.Kind, seed uint64) {
	tr.t.Helper()
	each(tr.t, tr.workers, func(rank int, w *client.Worker) error {
		values := randomModel(seed+uint64(rank), tr.tensors)
		var ops []client.Op
		for i := range tr.tensors {
			op := client.Op{Kind: kind, Tensor: i, Src: client.Bytes(values[i]), Dst: client.Bytes(tr.results[rank][i])}
			if kind == client.Pull {
				op.Src = nil
			}
			ops = append(ops, op)
		}
		handles, err := w.Submit(ops...)
		if err != nil {
			return err
		}
		return w.WaitAll(bounded(tr.t), handles)
	})
}

func (tr *trainer) start()        { tr.all(client.Broadcast, 1) }
func (tr *trainer) step(n uint64) { tr.all(client.PushPull, 1000*(n+1)) }

func (tr *trainer) parameters() [][]float32 {
	var out [][]float32
	for _, x := range tr.results[0] {
		out = append(out, append([]float32(nil), x...))
	}
	return out
}

func sameModel(t *testing.T, what string, a, b [][]float32) {
	t.Helper()
	for i := range a {
		if at, same := racktest.SameBits(a[i], b[i]); !same {
			t.Errorf("%s: tensor %d, element %d differs", what, i, at)
		}
	}
}

// adam is a job whose state counts: moments and the number of steps.
func adam(provider string) client.Config {
	return client.Config{Job: "adam", Workers: 2, Mode: "eager", Optimizer: "adam_torch", Provider: provider, ChunkBytes: 4096}
}

// A checkpoint has no chunks, so that a tensor can be sparse in one run and dense in the next.
func TestSparseTensorsAreRestoredByNameAndShape(t *testing.T) {
	options := service.Options{Providers: []string{verbs.ProviderTCP}, CheckpointDir: t.TempDir()}
	tensors := []client.Tensor{
		{Name: "bias", Shape: []uint64{3000}}, {Name: "table", Shape: []uint64{400, 51}}, {Name: "wide", Shape: []uint64{7, 1019}},
	}
	var saved [][]float32
	for run, sparse := range []bool{true, false, true} {
		for i := range tensors {
			tensors[i].Sparse, tensors[i].Standard = sparse, sparse && i == 1
		}
		s := serve(t, options)
		tr := train(t, s, adam(verbs.ProviderTCP), tensors)
		if run == 0 {
			tr.start()
			saved = tr.parameters()
		} else {
			if err := tr.workers[0].Restore(bounded(t), "start"); err != nil {
				t.Fatal(err)
			}
			each(t, tr.workers, func(_ int, w *client.Worker) error { return w.Barrier(bounded(t), "restored") })
			tr.all(client.Pull, 0)
			sameModel(t, "restored parameters", tr.parameters(), saved)
		}
		if _, err := tr.workers[1].Save(bounded(t), "start"); err != nil {
			t.Fatal(err)
		}
		closeAll(t, tr.workers)
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestASparseTensorOfAnotherRowWidthIsNotRestored(t *testing.T) {
	options := service.Options{Providers: []string{verbs.ProviderTCP}, CheckpointDir: t.TempDir()}
	for i, tc := range []struct {
		shape  []uint64
		sparse bool
		want   string
	}{
		{[]uint64{300, 8}, true, ""},
		{[]uint64{600, 4}, true, `tensor "table" has rows of 8 elements in it and of 4 in the job`},
		{[]uint64{600, 4}, false, ""},
	} {
		s := serve(t, options)
		tr := train(t, s, adam(verbs.ProviderTCP), []client.Tensor{{Name: "table", Shape: tc.shape, Sparse: tc.sparse}})
		tr.start()
		if i == 0 {
			if _, err := tr.workers[0].Save(bounded(t), "rows"); err != nil {
				t.Fatal(err)
			}
		}
		err := tr.workers[0].Restore(bounded(t), "rows")
		if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
			t.Errorf("shape %v, sparse %t: %v, want %q", tc.shape, tc.sparse, err, tc.want)
		}
		closeAll(t, tr.workers)
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestAModelSavedGoesOnAfterTheAggregatorRestarts(t *testing.T) {
	dir := t.TempDir()
	options := service.Options{Providers: []string{verbs.ProviderTCP}, CheckpointDir: dir}
	first := serve(t, options)
	tr := train(t, first, adam(verbs.ProviderTCP), model())
	tr.start()
	tr.step(0)
	tr.step(1)
	if _, err := tr.workers[1].Save(bounded(t), "two"); err != nil {
		t.Fatal(err)
	}
	saved := tr.parameters()
	tr.step(2)
	want := tr.parameters()
	closeAll(t, tr.workers)
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}

	cfg := adam(verbs.ProviderTCP)
	cfg.ChunkBytes = 8192 // other chunks than those that were saved
	tensors := model()
	tensors[0], tensors[3] = tensors[3], tensors[0] // and another order
	options.Cores = 1
	tr = train(t, serve(t, options), cfg, tensors)
	if err := tr.workers[0].Restore(bounded(t), "two"); err != nil {
		t.Fatal(err)
	}
	each(t, tr.workers, func(_ int, w *client.Worker) error { return w.Barrier(bounded(t), "restored") })
	swap := func(m [][]float32) [][]float32 { m[0], m[3] = m[3], m[0]; return m }
	tr.all(client.Pull, 0)
	sameModel(t, "restored parameters", swap(tr.parameters()), saved)
	// The gradients of step 2, in this run's order of tensors.
	each(t, tr.workers, func(rank int, w *client.Worker) error {
		grads := swap(randomModel(3000+uint64(rank), model()))
		var ops []client.Op
		for i := range tensors {
			ops = append(ops, client.Op{Kind: client.PushPull, Tensor: i, Src: client.Bytes(grads[i]),
				Dst: client.Bytes(tr.results[rank][i])})
		}
		handles, err := w.Submit(ops...)
		if err != nil {
			return err
		}
		return w.WaitAll(bounded(t), handles)
	})
	sameModel(t, "the step after", swap(tr.parameters()), want)
}

func TestACheckpointOfAnotherModelIsRefusedByName(t *testing.T) {
	dir := t.TempDir()
	s := serve(t, service.Options{Providers: []string{verbs.ProviderTCP}, CheckpointDir: dir})
	one := []client.Tensor{{Name: "a", Shape: []uint64{3}}, {Name: "b", Shape: []uint64{4}}}
	tr := train(t, s, adam(verbs.ProviderTCP), one)
	tr.start()
	w := tr.workers[0]
	path, err := w.Save(bounded(t), "one")
	if err != nil {
		t.Fatal(err)
	}
	if path != filepath.Join(dir, "adam", "one.rwck") {
		t.Errorf("saved to %s", path)
	}
	closeAll(t, tr.workers)

	refused := func(t *testing.T, cfg client.Config, tensors []client.Tensor, name, want string) {
		t.Helper()
		tr := train(t, s, cfg, tensors)
		defer closeAll(t, tr.workers)
		err := tr.workers[0].Restore(bounded(t), name)
		if !errors.Is(err, client.ErrRefused) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want it to say %q", err, want)
		}
		if err := tr.workers[0].Err(); err != nil {
			t.Errorf("a refused restore failed the worker: %v", err)
		}
	}
	t.Run("tensor unknown", func(t *testing.T) {
		refused(t, adam(verbs.ProviderTCP), []client.Tensor{one[0], {Name: "c", Shape: []uint64{4}}}, "one",
			`tensor "b", which the job has not`)
	})
	t.Run("tensor lacking", func(t *testing.T) {
		refused(t, adam(verbs.ProviderTCP), append(one[:2:2], client.Tensor{Name: "c"}), "one", `lacks tensor "c"`)
	})
	t.Run("other size", func(t *testing.T) {
		refused(t, adam(verbs.ProviderTCP), []client.Tensor{one[0], {Name: "b", Shape: []uint64{5}}}, "one",
			`tensor "b" has 4 elements in it and 5`)
	})
	t.Run("other optimizer", func(t *testing.T) {
		cfg := adam(verbs.ProviderTCP)
		cfg.Optimizer = "sgd_torch"
		refused(t, cfg, one, "one", "adam_torch")
	})
	t.Run("no such checkpoint", func(t *testing.T) {
		refused(t, adam(verbs.ProviderTCP), one, "two", "no such file")
	})
	t.Run("a name that is a path", func(t *testing.T) {
		refused(t, adam(verbs.ProviderTCP), one, "../one", "checkpoint name")
	})
	t.Run("a damaged file", func(t *testing.T) {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		b[len(b)-20] ^= 1
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		refused(t, adam(verbs.ProviderTCP), one, "one", "checksum")
	})
}

func TestSavingWhileGradientsAreUnderWayIsRefused(t *testing.T) {
	s := serve(t, service.Options{Providers: []string{verbs.ProviderTCP}, CheckpointDir: t.TempDir()})
	tr := train(t, s, adam(verbs.ProviderTCP), model())
	tr.start()
	// Worker 0 alone pushes: its chunks stay in progress.
	grads := randomModel(3, tr.tensors)
	h, err := tr.workers[0].PushPull(3, client.Bytes(grads[3]), client.Bytes(tr.results[0][3]), 0)
	if err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the push to arrive", func() bool { return awaited(t, s, 1) > 0 })
	if _, err := tr.workers[1].Save(bounded(t), "early"); err == nil || !strings.Contains(err.Error(), "gradients are under way") {
		t.Errorf("save: %v", err)
	}
	h1, err := tr.workers[1].PushPull(3, client.Bytes(grads[3]), client.Bytes(tr.results[1][3]), 0)
	if err != nil {
		t.Fatal(err)
	}
	each(t, tr.workers, func(rank int, _ *client.Worker) error {
		if rank == 0 {
			return h.Wait(bounded(t))
		}
		return h1.Wait(bounded(t))
	})
	if _, err := tr.workers[1].Save(bounded(t), "late"); err != nil {
		t.Errorf("save once all is quiet: %v", err)
	}
}

func TestATwoPhaseStepThatIsNotCommittedIsNotSaved(t *testing.T) {
	s := serve(t, service.Options{Providers: []string{verbs.ProviderTCP}, CheckpointDir: t.TempDir()})
	cfg := client.Config{Job: "two", Workers: 2, Mode: "two-phase", Optimizer: "adamw_torch", Provider: verbs.ProviderTCP,
		WireType: chunk.F32}
	tr := train(t, s, cfg, model())
	tr.start()
	tr.all(client.Push, 100)
	if _, err := tr.workers[0].Save(bounded(t), "x"); err == nil || !strings.Contains(err.Error(), "not committed") {
		t.Errorf("save: %v", err)
	}
	each(t, tr.workers, func(_ int, w *client.Worker) error {
		_, err := w.Commit(context.Background(), client.Step{LR: 0.1})
		return err
	})
	if _, err := tr.workers[0].Save(bounded(t), "x"); err != nil {
		t.Errorf("save after the commit: %v", err)
	}
}

func TestAWorkerThatCannotCommitYetIsNotAwaited(t *testing.T) {
	s := serve(t, service.Options{Providers: []string{verbs.ProviderTCP}})
	cfg := client.Config{Job: "two", Workers: 2, Mode: "two-phase", Optimizer: "sgd_torch", Provider: verbs.ProviderTCP,
		WireType: chunk.F32}
	tr := train(t, s, cfg, model())
	tr.start()
	ctx, cancel := context.WithCancel(context.Background())
	var committing sync.WaitGroup
	committing.Go(func() { tr.workers[1].Commit(ctx, client.Step{LR: 0.1}) })
	defer committing.Wait()
	defer cancel()
	waitFor(t, "rank 0's commit to be awaited", func() bool { return awaited(t, s, 0) > 0 && awaited(t, s, 1) == 0 })
	if _, err := tr.workers[0].Push(3, client.Bytes(randomModel(3, tr.tensors)[3]), 0); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the push to arrive", func() bool { return awaited(t, s, 1) > 0 })
	if n := awaited(t, s, 0); n > 0 {
		t.Errorf("rank 0 is awaited for %d chunks or commits, and waits for rank 1", n)
	}
}

func TestACheckpointLeavesNothingBesideItAndWaitsForNoPipe(t *testing.T) {
	dir := t.TempDir()
	s := serve(t, service.Options{CheckpointDir: dir})
	tr := train(t, s, adam(verbs.ProviderTCP), []client.Tensor{{Name: "w", Shape: []uint64{5000}}})
	tr.start()
	names := func() []string {
		var names []string
		entries, err := os.ReadDir(filepath.Join(dir, "adam"))
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			names = append(names, e.Name())
		}
		return names
	}
	// As an aggregator leaves it that is killed while it saves.
	if err := os.MkdirAll(filepath.Join(dir, "adam"), 0o750); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "adam", ".best.rwck123456"), []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	path, err := tr.workers[0].Save(bounded(t), "best")
	if err != nil {
		t.Fatal(err)
	}
	if got := names(); len(got) != 1 || got[0] != "best.rwck" {
		t.Errorf("the directory holds %v, want best.rwck", got)
	}
	if err := errors.Join(os.Remove(path), syscall.Mkfifo(path, 0o600)); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	if err := tr.workers[0].Restore(bounded(t), "best"); err == nil || !strings.Contains(err.Error(), "not a regular file") {
		t.Errorf("error %v after %v, want it to refuse a pipe", err, time.Since(began))
	}
}
