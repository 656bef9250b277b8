package service

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rackweave/rackweave/client"
	"github.com/rackweave/rackweave/service/api"
	"github.com/rackweave/rackweave/verbs"
)

// refusing is another rack that takes some writes and refuses the next.
type refusing struct {
	takes int
	some  bool // it may have taken that one in part
}

var errRefusing = errors.New("this rack takes no more")

func (r *refusing) own() int         { return 0 }
func (r *refusing) names() []string  { return []string{"this rack", "the other"} }
func (r *refusing) replicated() bool { return true }

func (r *refusing) ask(context.Context, func(int) *api.StateQuestion) ([][]byte, error) {
	return make([][]byte, 2), nil
}

func (r *refusing) replace(context.Context, func(int) *api.StateQuestion, func(int) []byte) (some bool, err error) {
	if r.takes == 0 {
		return r.some, errRefusing
	}
	r.takes--
	return true, nil
}

// start runs an aggregator over tcp on one core until the test ends.
func start(t *testing.T, o Options) *Service {
	t.Helper()
	o.Unpinned, o.Providers, o.Cores = true, []string{verbs.ProviderTCP}, 1
	s, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve(context.Background()) }()
	t.Cleanup(func() {
		if err := errors.Join(s.Close(), <-served); err != nil {
			t.Error(err)
		}
	})
	return s
}

// trainAlone joins a job of one worker and tensor.
func trainAlone(t *testing.T, ctx context.Context, dir string, elems uint64) (*job, *client.Worker) {
	t.Helper()
	s := start(t, Options{Listen: "127.0.0.1:0", CheckpointDir: dir})
	w, err := client.Join(ctx, client.Config{Server: s.URL(), Job: "j", Workers: 1, Mode: "eager", Optimizer: "sgd_torch",
		Provider: verbs.ProviderTCP})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.Close() }) // its job may have failed
	if err := w.Register(ctx, []client.Tensor{{Name: "w", Shape: []uint64{elems}}}); err != nil {
		t.Fatal(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.jobs["j"], w
}

// A restore that is refused before anything was replaced leaves the job as it was; a later one ends it.
func TestARestoreIsRefusedWholeOrEndsTheJob(t *testing.T) {
	const elems = 2*batchElems + 1000 // three batches
	for name, c := range map[string]struct {
		refusing
		failure string
	}{
		"the first write":                 {refusing{0, false}, ""},
		"the first write, taken by some":  {refusing{0, true}, "replaced at some aggregators only"},
		"the second write":                {refusing{1, false}, "ended midway"},
		"the updates, after three writes": {refusing{3, false}, "ended midway"},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			dir := t.TempDir()
			j, w := trainAlone(t, ctx, dir, elems)
			move := func(h client.Handle, err error) {
				t.Helper()
				if err == nil {
					err = h.Wait(ctx)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			saved, now := slices.Repeat([]float32{1}, elems), slices.Repeat([]float32{2}, elems)
			move(w.Broadcast(0, client.Bytes(saved)))
			if _, err := w.Save(ctx, "c"); err != nil {
				t.Fatal(err)
			}
			move(w.Broadcast(0, client.Bytes(now)))
			j.model.Lock()
			_, err := j.restore(ctx, &c.refusing, filepath.Join(dir, "j", "c"+checkpointSuffix))
			j.unlockModel()
			if !errors.Is(err, errRefusing) {
				t.Fatalf("the restore: %v, want %v", err, errRefusing)
			}
			if c.failure != "" {
				select {
				case <-j.failed:
				case <-ctx.Done():
					t.Fatal("the job goes on with half a model")
				}
				if err := j.failure.Err; !strings.Contains(err.Error(), c.failure) {
					t.Errorf("the job failed: %v, want %q", err, c.failure)
				}
				return
			}
			got := make([]float32, elems)
			move(w.Pull(0, client.Bytes(got), 0))
			if !slices.Equal(got, now) {
				t.Error("parameters have changed")
			}
			if err := w.Restore(ctx, "c"); err != nil {
				t.Fatalf("the next restore: %v", err)
			}
			move(w.Pull(0, client.Bytes(got), 0))
			if !slices.Equal(got, saved) {
				t.Error("the next restore left other parameters")
			}
		})
	}
}
