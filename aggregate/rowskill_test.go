package aggregate_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/rackweave/rackweave/aggregate/racktest"
	"github.com/rackweave/rackweave/cgo/fabric/simfabric"
	"github.com/rackweave/rackweave/cgo/worker"
	"github.com/rackweave/rackweave/chunk"
)

// A worker that is killed between two messages of its stream ends its job at every peer, and leaves the lanes as they were.
func TestAWorkerKilledInTheMiddleOfItsRowsEndsTheJob(t *testing.T) {
	const killed = 1
	gone := errors.New("its membership stream ended")
	cfg := racktest.Config{Lanes: 2, Window: 24, Staging: 24, MaxConns: 6, Job: sums, Tensors: tables}
	for _, options := range []string{"", ",by_reference=1"} {
		t.Run(simfabric.Provider+options, func(t *testing.T) {
			between := 0
			for rounds := 1; rounds < 60; rounds += 4 {
				r, network := simRack(t, uint64(rounds), options, 3, cfg)
				handles := make([][]uint64, len(r.Workers))
				for i, w := range r.Workers {
					var ops []worker.Op
					for k := range tables {
						ops = append(ops, w.Op(chunk.OpPushPull, k, 0))
					}
					var err error
					if handles[i], err = w.Submit(ops...); err != nil {
						t.Fatal(err)
					}
				}
				for range rounds {
					network()
					if _, err := r.Step(handles, false); err != nil {
						t.Fatal(err)
					}
					for _, l := range r.Engine.Lanes() {
						if err := l.Audit(); err != nil {
							t.Fatal(err)
						}
					}
				}
				var st worker.Stats
				worker.StatsOf(r.Workers[killed].C, &st)
				if st.ReceivedChunks > 0 && st.SentChunks > st.ReceivedChunks {
					between++
				}
				simfabric.Kill(r.Config.Workers[killed][0])
				r.Job.Lose(killed, gone)
				for i, w := range r.Workers {
					if i != killed {
						expectEnd(t, r, network, w, handles[i])
					}
				}
				if f := r.Job.Failure(); f == nil || f.Rank != killed || !errors.Is(f.Err, gone) {
					t.Errorf("the job's failure is %+v, want worker %d's: %v", f, killed, gone)
				}
				if err := r.Job.Close(); err != nil {
					t.Fatal(err)
				}
				next := cfg
				next.Engine, next.NICs, next.Manual, next.Now = r.Engine, r.Config.NICs, true, r.Config.Now
				next.Workers = slices.Delete(slices.Clone(r.Config.Workers), killed, killed+1)
				exchangeRows(t, next, network)
			}
			if between == 0 {
				t.Error("no worker was killed between its messages")
			}
		})
	}
}

// expectEnd drives a rack until a worker's operations have failed by the loss of another.
func expectEnd(t *testing.T, r *racktest.Rack, network func(), w *racktest.Worker, handles []uint64) {
	t.Helper()
	for range 20_000 {
		network()
		for _, l := range r.Engine.Lanes() {
			if _, err := l.Step(); err != nil {
				t.Fatal(err)
			}
		}
		worker.Progress(w.C)
		ended := 0
		for _, h := range handles {
			done, err := w.Done(h)
			if done {
				ended++
			}
			if err != nil && !strings.Contains(err.Error(), "worker 1") {
				t.Fatalf("worker %d: %v, want an error that names worker 1", w.Rank, err)
			}
		}
		if code, text := worker.Failure(w.C); ended == len(handles) && code < 0 {
			if code != worker.ErrAborted || !strings.Contains(text, "worker 1 failed") {
				t.Errorf("worker %d failed with %d, %q", w.Rank, code, text)
			}
			return
		}
	}
	t.Fatalf("worker %d still waits", w.Rank)
}

// exchangeRows runs a step of a job on lanes whose last job has failed.
func exchangeRows(t *testing.T, cfg racktest.Config, network func()) {
	t.Helper()
	r := openRack(t, cfg)
	x := newRowsRack(t, r, driven(r, network), nil)
	x.pushPull("after a failure", func(i int, g gradients) map[int64][]float32 { return x.tables[i].union(g) })
	for _, l := range r.Engine.Lanes() {
		if err := l.Audit(); err != nil {
			t.Error(err)
		}
	}
}
