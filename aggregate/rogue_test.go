package aggregate_test

import (
	"errors"
	"testing"

	"github.com/rackweave/rackweave/aggregate"
	"github.com/rackweave/rackweave/aggregate/optim"
	"github.com/rackweave/rackweave/aggregate/racktest"
	"github.com/rackweave/rackweave/cgo/fabric/simfabric"
	"github.com/rackweave/rackweave/cgo/worker"
	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/verbs"
)

// halfPushed is a rack whose worker 1 has pushed its only tensor and worker 0 has not.
func halfPushed(t *testing.T) (r *racktest.Rack, network func(), handle uint64) {
	t.Helper()
	r, network = simRack(t, 1, "", 2, racktest.Config{
		Lanes: 1, Window: 8,
		Job:     aggregate.JobConfig{Name: "job", Mode: aggregate.Aggregate, Hyper: optim.Sum.Defaults(), ChunkBytes: 4096},
		Tensors: tensorsOf(chunk.F32, 3000),
	})
	h, err := r.Workers[1].Submit(r.Workers[1].Op(chunk.OpPushPull, 0, 0))
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Drive(network, [][]uint64{nil, h}, 100); err == nil {
		t.Fatal("a sum was finished without worker 0")
	}
	return r, network, h[0]
}

// A message that breaks the protocol takes a slot that the worker did not fill, so the worker's later messages lie in other slots.
func TestNothingThatFollowsAViolationIsSummed(t *testing.T) {
	r, network, handle := halfPushed(t)
	rogue, victim := r.Workers[0], r.Workers[1]
	_, err := rogue.QPs[0].PostSend([]verbs.SendWR{{Opcode: verbs.OpWriteWithImm, Imm: chunk.Pack(chunk.OpPush, 40, 0)}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := rogue.Submit(rogue.Op(chunk.OpPushPull, 0, 0)); err != nil {
		t.Fatal(err)
	}
	for range 50 {
		network() // all arrives before the lane polls
	}
	for range 50 {
		if _, err := r.Engine.Lanes()[0].Step(); err != nil {
			t.Fatal(err)
		}
		network()
		worker.Progress(victim.C)
	}
	if f := r.Job.Failure(); f == nil || f.Rank != 0 || !errors.Is(f.Err, aggregate.ErrProtocol) {
		t.Fatalf("the job's failure is %+v, not a protocol violation of worker 0", f)
	}
	if done, err := victim.Done(handle); err == nil {
		t.Fatalf("the other worker got an answer that cannot be right (done %v)", done)
	}
}

func TestOpenFoldsOfAJobThatEndedAreNotCounted(t *testing.T) {
	for _, tc := range []struct {
		name string
		end  func(*aggregate.Job) error
	}{
		{"closed", (*aggregate.Job).Close},
		{"failed", func(j *aggregate.Job) error { j.Fail(0, errors.New("gone")); return nil }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r, _, _ := halfPushed(t)
			lane := r.Engine.Lanes()[0]
			if n := lane.Counters().FoldsOpen; n != 3 {
				t.Fatalf("%d folds open, expected one for each chunk", n)
			}
			if err := tc.end(r.Job); err != nil {
				t.Fatal(err)
			}
			if _, err := lane.Step(); err != nil {
				t.Fatal(err)
			}
			if n := lane.Counters().FoldsOpen; n != 0 {
				t.Fatalf("%d folds are open after their job was %s", n, tc.name)
			}
		})
	}
}

func TestJobsFailWhenTheirLaneLosesItsQueue(t *testing.T) {
	sim, err := simfabric.New(1)
	if err != nil {
		t.Fatal(err)
	}
	r, network := rackIn(t, sim, "", 1, racktest.Config{
		Lanes: 1, Window: 8,
		Job:     aggregate.JobConfig{Name: "job", Mode: aggregate.Aggregate, Hyper: optim.Sum.Defaults(), ChunkBytes: 4096},
		Tensors: tensorsOf(chunk.F32, 3000),
	})
	sim.SetNetwork(simfabric.Network{CQOverrun: 65536, FatalMax: 1}) // the first completion is the aggregator's
	if _, err := r.Workers[0].Submit(r.Workers[0].Op(chunk.OpPushPull, 0, 0)); err != nil {
		t.Fatal(err)
	}
	var lost error
	for range 50 {
		network()
		if _, lost = r.Engine.Lanes()[0].Step(); lost != nil {
			break
		}
	}
	if f := r.Job.Failure(); lost == nil || f == nil || f.Rank != -1 || !errors.Is(f.Err, lost) {
		t.Fatalf("the lane says %v, the job's failure is %+v", lost, f)
	}
}

func TestAClosedJobTakesNoMore(t *testing.T) {
	r, _, _ := halfPushed(t)
	if err := r.Job.Close(); err != nil {
		t.Fatal(err)
	}
	if err := r.Add([]chunk.Tensor{{Name: "late", Elems: 5, DType: chunk.F32}}); !errors.Is(err, aggregate.ErrClosed) {
		t.Errorf("tensors: %v", err)
	}
	if _, err := r.Job.Attach(t.Context(), 0, make([]chunk.WorkerLane, 1)); !errors.Is(err, aggregate.ErrClosed) {
		t.Errorf("a worker: %v", err)
	}
}
