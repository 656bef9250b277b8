package aggregate_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/rackweave/rackweave/aggregate"
	"github.com/rackweave/rackweave/aggregate/optim"
	"github.com/rackweave/rackweave/aggregate/racktest"
	"github.com/rackweave/rackweave/cgo/worker"
	"github.com/rackweave/rackweave/chunk"
)

// stallConfigs lists configurations in which a worker runs out of slots or of staging buffers.
var stallConfigs = []struct {
	name, options string
	cfg           racktest.Config
}{
	{"window 2", "", racktest.Config{Window: 2}},
	{"window 3", "", racktest.Config{Window: 3}},
	{"window 4", "", racktest.Config{Window: 4}},
	{"window 16", "", racktest.Config{Window: 16}},
	{"by reference", ",by_reference=1", racktest.Config{Window: 3}},
	{"by reference, 2 staging buffers", ",by_reference=1", racktest.Config{Window: 64, Staging: 2, Copy: true}},
	{"by reference, 3 staging buffers", ",by_reference=1", racktest.Config{Window: 64, Staging: 3, Copy: true}},
}

// Every worker submits every tensor, in an order of its own, and windows are far smaller than tensors. On average no chunk is sent
// more than twice.
func TestWorkersMayPushInDifferentOrders(t *testing.T) {
	seeds := uint64(4)
	if testing.Short() {
		seeds = 2
	}
	for seed := range seeds {
		for _, tc := range stallConfigs {
			t.Run(fmt.Sprintf("seed %d, %s", seed, tc.name), func(t *testing.T) {
				cfg := tc.cfg
				cfg.Lanes, cfg.Tensors = 2, tensorsOf(chunk.F32, 9000, 8000, 7000, 30000, 6000)
				cfg.Job = aggregate.JobConfig{Name: "job", Mode: aggregate.Aggregate, Hyper: optim.Sum.Defaults(), ChunkBytes: 4096}
				if seed%2 == 1 { // what the codec left out of a chunk that is NACKed is in none of its copies
					cfg.Job.Compress = pair(t, "int4", true)
				}
				r, network := simRack(t, seed, tc.options, 3, cfg)
				rng := rand.New(rand.NewPCG(seed, 0))
				exchange(t, r, 2, func(ops [][]worker.Op) error {
					handles := make([][]uint64, len(ops))
					for i, w := range r.Workers {
						rng.Shuffle(len(ops[i]), func(a, b int) { ops[i][a], ops[i][b] = ops[i][b], ops[i][a] })
						for k := range ops[i] {
							ops[i][k].Priority = int32(rng.IntN(5))
						}
						h, err := w.Submit(ops[i]...)
						if err != nil {
							return err
						}
						handles[i] = h
					}
					return r.Drive(network, handles, 200000)
				})
				sent, resent := 2*len(r.Workers)*r.Plan.NumChunks(), uint64(0)
				for _, l := range r.Engine.Lanes() {
					resent += l.Counters().NACKs
				}
				if resent > uint64(sent) {
					t.Errorf("%d chunks were NACKed for %d that were to be sent", resent, sent)
				}
			})
		}
	}
}

// One worker waits for a tensor before it submits the next, while another has filled its window with a later one.
func TestWindowFullOfWhatOthersHaveNotSubmittedDoesNotBlock(t *testing.T) {
	for _, tc := range stallConfigs {
		t.Run(tc.name, func(t *testing.T) {
			cfg := tc.cfg
			cfg.Lanes, cfg.Tensors = 1, tensorsOf(chunk.F32, 20000, 20000, 5000)
			cfg.Job = aggregate.JobConfig{Name: "job", Mode: aggregate.Aggregate, Hyper: optim.Sum.Defaults(), ChunkBytes: 4096}
			r, network := simRack(t, 1, tc.options, 2, cfg)
			waitForCommonTensor(t, r, network)
		})
	}
}

func TestStallsAreLookedForBeforeAllHaveAttached(t *testing.T) {
	r, network := simRack(t, 1, "", 2, racktest.Config{
		Lanes: 1, Window: 2, Absent: 1,
		Job:     aggregate.JobConfig{Name: "job", Mode: aggregate.Aggregate, Hyper: optim.Sum.Defaults(), ChunkBytes: 4096},
		Tensors: tensorsOf(chunk.F32, 20000),
	})
	h, err := r.Workers[0].Submit(r.Workers[0].Op(chunk.OpPushPull, 0, 0))
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Drive(network, [][]uint64{h, nil}, 100); err == nil {
		t.Fatal("a chunk was finished without all workers")
	}
}

// The lane looks for stalls many times before every other worker polls its queue once. Further NACKs in between would undo the
// workers' next sends. The test takes 20000 rounds at most, and for ever if the lane does not wait for answers.
func TestStallsOfWorkersThatSeldomAnswerEnd(t *testing.T) {
	const seldom, limit = 300, 80000
	for seed := range uint64(2) {
		for _, tc := range stallConfigs {
			t.Run(fmt.Sprintf("seed %d, %s", seed, tc.name), func(t *testing.T) {
				cfg := tc.cfg
				cfg.Lanes, cfg.Tensors = 1, tensorsOf(chunk.F32, 1, 8000, 700, 5000)
				cfg.Job = aggregate.JobConfig{Name: "job", Mode: aggregate.Aggregate, Hyper: optim.Sum.Defaults(), ChunkBytes: 4096}
				r, network := simRack(t, seed, tc.options, 5, cfg)
				rng := rand.New(rand.NewPCG(seed, 0))
				pending := make([][]uint64, len(r.Workers))
				for i, w := range r.Workers {
					for _, k := range rng.Perm(len(cfg.Tensors)) {
						h, err := w.Submit(w.Op(chunk.OpPushPull, k, 0))
						if err != nil {
							t.Fatal(err)
						}
						pending[i] = append(pending[i], h...)
					}
				}
				for range limit {
					network()
					if worked, err := r.Engine.Lanes()[0].Step(); err != nil {
						t.Fatal(err)
					} else if !worked {
						r.Engine.Lanes()[0].Tick()
					}
					left := 0
					for i, w := range r.Workers {
						if i%2 == 1 || rng.IntN(seldom) == 0 {
							pending[i] = unfinished(t, w, pending[i])
						}
						left += len(pending[i])
					}
					if left == 0 {
						return
					}
				}
				t.Fatalf("not done after %d rounds", limit)
			})
		}
	}
}

// unfinished lets a worker make progress and returns its operations that are not done.
func unfinished(t *testing.T, w *racktest.Worker, handles []uint64) (left []uint64) {
	t.Helper()
	worker.Progress(w.C)
	for _, h := range handles {
		done, err := w.Done(h)
		if err != nil {
			t.Fatal(err)
		}
		if !done {
			left = append(left, h)
		}
	}
	return left
}

// waitForCommonTensor submits tensor 0 at worker 0 and tensor 1 at worker 1. Both then submit tensor 2 and wait for it.
func waitForCommonTensor(t *testing.T, r *racktest.Rack, network func()) {
	t.Helper()
	a, b := r.Workers[0], r.Workers[1]
	submit := func(w *racktest.Worker, tensors ...int) (handles []uint64) {
		t.Helper()
		for _, k := range tensors {
			h, err := w.Submit(w.Op(chunk.OpPushPull, k, 0))
			if err != nil {
				t.Fatal(err)
			}
			handles = append(handles, h...)
		}
		return handles
	}
	ha, hb := submit(a, 0, 2), submit(b, 1, 2)
	if err := r.Drive(network, [][]uint64{ha[1:], hb[1:]}, 100000); err != nil {
		t.Fatal(err)
	}
	ha, hb = append(ha, submit(a, 1)...), append(hb, submit(b, 0)...)
	if err := r.Drive(network, [][]uint64{ha, hb}, 100000); err != nil {
		t.Fatal(err)
	}
}

// Many small tensors are done and submitted again while a large one of a higher priority holds the whole window.
func TestTensorsMaySubmitAgainBehindAFullWindow(t *testing.T) {
	const small, large = 100, 400 // number of tensors of one element, and of chunks of the last tensor
	sizes := make([]uint64, small+1)
	for k := range sizes {
		sizes[k] = 1
	}
	sizes[small] = large * 1024
	r, network := simRack(t, 5, "", 2, racktest.Config{
		Lanes: 1, Window: 2 * small,
		Job:     aggregate.JobConfig{Name: "job", Mode: aggregate.Aggregate, Hyper: optim.Sum.Defaults(), ChunkBytes: 4096},
		Tensors: tensorsOf(chunk.F32, sizes...),
	})
	submit := func(w *racktest.Worker, first, end int, priority int32) []uint64 {
		t.Helper()
		var ops []worker.Op
		for k := first; k < end; k++ {
			ops = append(ops, w.Op(chunk.OpPushPull, k, priority))
		}
		handles, err := w.Submit(ops...)
		if err != nil {
			t.Fatal(err)
		}
		return handles
	}
	drive := func(handles ...[]uint64) {
		t.Helper()
		if err := r.Drive(network, handles, 100000); err != nil {
			t.Fatal(err)
		}
	}
	a, b := r.Workers[0], r.Workers[1]
	smallA := submit(a, 0, small, 0)
	largeA := submit(a, small, small+1, 1)
	for range 3 {
		drive(smallA, submit(b, 0, small, 0))
		smallA = submit(a, 0, small, 0)
	}
	drive(append(smallA, largeA...), append(submit(b, small, small+1, 0), submit(b, 0, small, 1)...))
}
