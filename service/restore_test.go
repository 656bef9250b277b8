package service

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/rackweave/rackweave/client"
	"github.com/rackweave/rackweave/service/api"
	"github.com/rackweave/rackweave/service/api/apiconnect"
	"github.com/rackweave/rackweave/service/checkpoint"
	"github.com/rackweave/rackweave/service/job"
	"github.com/rackweave/rackweave/verbs"
)

// refusing is another rack that takes some writes and refuses the next.
type refusing struct {
	checkpoint.OneRack
	takes int
	some  bool // it may have taken that one in part
}

var errRefusing = errors.New("this rack takes no more")

func (r *refusing) Names() []string { return []string{"this rack", "the other"} }

func (r *refusing) Ask(context.Context, func(int) *api.StateQuestion) ([][]byte, error) {
	return make([][]byte, 2), nil
}

func (r *refusing) Replace(context.Context, func(int) *api.StateQuestion, func() []byte) (some bool, err error) {
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
func trainAlone(t *testing.T, ctx context.Context, elems uint64) (*Service, *client.Worker) {
	t.Helper()
	s := start(t, Options{Listen: "127.0.0.1:0", CheckpointDir: t.TempDir()})
	w, err := client.Join(ctx, client.Config{Server: s.URL(), Job: "j", Workers: 1, Mode: "eager", Optimizer: "sgd_torch",
		Provider: verbs.ProviderTCP})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.Close() }) // its job may have failed
	if err := w.Register(ctx, []client.Tensor{{Name: "w", Shape: []uint64{elems}}}); err != nil {
		t.Fatal(err)
	}
	return s, w
}

// A restore that is refused before anything was replaced leaves the job as it was; a later one ends it.
func TestARestoreIsRefusedWholeOrEndsTheJob(t *testing.T) {
	const elems = 2<<18 + 1000 // three batches
	for name, c := range map[string]struct {
		refusing
		failure string
	}{
		"the first write":                 {refusing{takes: 0}, ""},
		"the first write, taken by some":  {refusing{takes: 0, some: true}, "replaced in part"},
		"the second write":                {refusing{takes: 1}, "ended midway"},
		"the updates, after three writes": {refusing{takes: 3}, "ended midway"},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			s, w := trainAlone(t, ctx, elems)
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
			s.states.Racks = func(*job.Job) checkpoint.Racks { return &c.refusing }
			err := w.Restore(ctx, "c")
			s.states.Racks = racksOf
			if err == nil || !strings.Contains(err.Error(), errRefusing.Error()) {
				t.Fatalf("the restore: %v, want %v", err, errRefusing)
			}
			if c.failure != "" {
				select {
				case <-w.Failed():
				case <-ctx.Done():
					t.Fatal("the job goes on with half a model")
				}
				if err := w.Err(); !strings.Contains(err.Error(), c.failure) {
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

// What was applied before a save is never dealt again, and what was dealt since is.
func TestCheckpointsHoldTheProgressOfSets(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	s, w := trainAlone(t, ctx, 8)
	session := s.jobs.Find("j").Members[0].Session
	d := apiconnect.NewDataServiceClient(http.DefaultClient, s.URL(), api.Identify(func() string { return session }, ""))
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	open := func(set string) *api.OpenDataResponse {
		t.Helper()
		r, err := d.Open(ctx, &api.OpenDataRequest{Set: set, Rows: 10, Batch: 3, Seed: 5})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	next := func(set string, seq, epoch, done uint64) []byte {
		t.Helper()
		r, err := d.Next(ctx, &api.NextRowsRequest{Set: set, Seq: seq, Epoch: epoch, Done: done})
		if err != nil {
			t.Fatal(err)
		}
		return r.Rows
	}
	open("train")
	for seq := uint64(1); seq <= 4; seq++ {
		next("train", seq, 0, seq-1)
	}
	next("train", 5, 0, 4) // the end
	next("train", 6, 1, 5)
	second := next("train", 7, 1, 6)
	if _, err := w.Save(ctx, "c"); err != nil {
		t.Fatal(err)
	}
	third := next("train", 8, 1, 7)
	open("late")
	next("late", 1, 0, 0)
	next("late", 0, 0, 1)
	for range 2 {
		if err := w.Restore(ctx, "c"); err != nil {
			t.Fatal(err)
		}
		_, err := d.Next(ctx, &api.NextRowsRequest{Set: "train", Seq: 9, Epoch: 1})
		if want := "restored from a checkpoint: open the set again"; connect.CodeOf(err) != connect.CodeAborted ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("a batch after the restore: %v", err)
		}
		if state, err := s.data.States(dealt{s.jobs.Find("j")}); err != nil || len(state) != 1 || state[0].Cursor != 3 {
			t.Errorf("progress %v (%v), want that of the checkpoint before sets are open", state, err)
		}
		if r := open("train"); r.Epoch != 1 {
			t.Errorf("opened in epoch %d, want that of the checkpoint", r.Epoch)
		}
		if a, b := next("train", 1, 1, 0), next("train", 2, 1, 1); !bytes.Equal(a, second) || !bytes.Equal(b, third) {
			t.Errorf("rows %x and %x after the restore, %x and %x before", a, b, second, third)
		}
		if r := open("late"); r.Epoch != 0 || len(next("late", 1, 0, 0)) != 24 {
			t.Errorf("a set that the checkpoint lacks does not begin: %v", r)
		}
	}
}
