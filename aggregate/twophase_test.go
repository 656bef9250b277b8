package aggregate_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/rackweave/rackweave/aggregate"
	"github.com/rackweave/rackweave/aggregate/optim"
	"github.com/rackweave/rackweave/aggregate/racktest"
	"github.com/rackweave/rackweave/cgo/worker"
	"github.com/rackweave/rackweave/chunk"
)

// twoPhaseRack is a rack in two-phase mode with its reference.
type twoPhaseRack struct {
	*racktest.Rack
	t       *testing.T
	ref     *racktest.Reference
	rng     *rand.Rand
	network func()
}

func newTwoPhaseRack(t *testing.T, rule optim.Rule, wire chunk.DType, lanes int) *twoPhaseRack {
	r, network := simRack(t, 11, "", 2, racktest.Config{
		Lanes: lanes, Window: 4,
		Job:     aggregate.JobConfig{Name: "job", Mode: aggregate.TwoPhase, Rule: rule, Hyper: rule.Defaults(), ChunkBytes: 4096},
		Tensors: tensorsOf(wire, 3000, 1, 12345, 70),
	})
	ref := racktest.NewReference(aggregate.TwoPhase, rule, rule.Defaults(), wire, nil)
	return &twoPhaseRack{Rack: r, t: t, ref: ref, rng: rand.New(rand.NewPCG(3, 4)), network: network}
}

func (r *twoPhaseRack) drive(handles [][]uint64) {
	r.t.Helper()
	if err := r.Drive(r.network, handles, 100000); err != nil {
		r.t.Fatal(err)
	}
}

// each runs an operation on some tensors with every worker.
func (r *twoPhaseRack) each(kind chunk.Op, tensors ...int) {
	r.t.Helper()
	handles := make([][]uint64, len(r.Workers))
	for i, w := range r.Workers {
		var ops []worker.Op
		for _, k := range tensors {
			ops = append(ops, w.Op(kind, k, 0))
		}
		var err error
		if handles[i], err = w.Submit(ops...); err != nil {
			r.t.Fatal(err)
		}
	}
	r.drive(handles)
}

// check compares every worker's last result with the parameters.
func (r *twoPhaseRack) check(what string, tensors ...int) {
	r.t.Helper()
	for _, w := range r.Workers {
		for _, k := range tensors {
			want := racktest.OnWire(r.ref.Wire, r.ref.W[k])
			if i, same := racktest.SameBits(want, w.DstF32(k)[:len(want)]); !same {
				r.t.Fatalf("%s: worker %d tensor %d element %d is %v, plain Go says %v", what, w.Rank, k, i, w.DstF32(k)[i], want[i])
			}
		}
	}
}

func (r *twoPhaseRack) broadcast(tensors ...int) {
	r.t.Helper()
	for _, k := range tensors {
		x := r.Workers[0].SrcF32(k)[:r.Plan.Tensor(k).Elems]
		fill(r.rng, x)
		r.ref.Add(append([]float32(nil), racktest.OnWire(r.ref.Wire, x)...))
	}
	r.each(chunk.OpBroadcast, tensors...)
	r.check("broadcast", tensors...)
}

func (r *twoPhaseRack) push(tensors ...int) {
	r.t.Helper()
	for _, k := range tensors {
		grads := make([][]float32, len(r.Workers))
		for i, w := range r.Workers {
			grads[i] = w.SrcF32(k)[:len(r.ref.W[k])]
			fill(r.rng, grads[i])
		}
		r.ref.Push(k, grads)
	}
	r.each(chunk.OpPush, tensors...)
}

func (r *twoPhaseRack) commit(rec chunk.TensorRecord) {
	r.t.Helper()
	handles := make([][]uint64, len(r.Workers))
	for i, w := range r.Workers {
		h, rc := w.CommitStart(rec)
		if rc < 0 {
			r.t.Fatal(w.Error(rc))
		}
		handles[i] = []uint64{h}
	}
	r.drive(handles)
	want := r.ref.Commit(rec, r.Config.Job.ChunkBytes)
	for _, w := range r.Workers {
		answer, err := w.Answer()
		if err != nil {
			r.t.Fatal(err)
		}
		if answer.Norm != want {
			r.t.Fatalf("worker %d got norm %v, plain Go says %v", w.Rank, answer.Norm, want)
		}
	}
}

func TestTwoPhaseStepEqualsPlainGoBitForBit(t *testing.T) {
	commits := []chunk.TensorRecord{
		{LR: 0.1, Scale: 1},
		{LR: 0.1, Scale: 0.25, WD: 0.01, Clip: 0.5},
		{LR: 0.1, Scale: 1, Flags: chunk.RecordSkip},
		{LR: 0.05, Scale: 0.5, Clip: 1e6},
		{LR: 0.05, Scale: 0.5, Flags: chunk.RecordSkipNonFinite},
		{LR: 0.05, Scale: float32(math.Inf(1)), Flags: chunk.RecordSkipNonFinite},
	}
	for _, rule := range []optim.Rule{optim.SGDTorch, optim.AdamWTorch, optim.LAMB} {
		for _, wire := range []chunk.DType{chunk.F32, chunk.BF16, chunk.F16} {
			for _, lanes := range []int{1, 3} {
				t.Run(fmt.Sprintf("%v, %v, %d lanes", rule, wire, lanes), func(t *testing.T) {
					r := newTwoPhaseRack(t, rule, wire, lanes)
					r.broadcast(0, 1, 2, 3)
					for step, rec := range commits {
						for range 1 + step%2 {
							r.push(0, 1, 2, 3)
						}
						r.commit(rec)
						r.each(chunk.OpPull, 0, 1, 2, 3)
						r.check(fmt.Sprintf("step %d", step), 0, 1, 2, 3)
					}
				})
			}
		}
	}
}

func TestCommitLeavesTensorsWithoutGradientsAlone(t *testing.T) {
	for _, rule := range []optim.Rule{optim.AdamWTorch, optim.LAMB} {
		t.Run(rule.String(), func(t *testing.T) {
			r := newTwoPhaseRack(t, rule, chunk.F32, 2)
			r.broadcast(0, 1, 2, 3)
			for step, pushed := range [][]int{{0, 1, 2, 3}, {1}, {0, 2}, {}, {3, 1}} {
				r.push(pushed...)
				r.commit(chunk.TensorRecord{LR: 0.1, Scale: 1, Clip: 1})
				r.each(chunk.OpPull, 0, 1, 2, 3)
				r.check(fmt.Sprintf("step %d, gradients of %v", step, pushed), 0, 1, 2, 3)
			}
		})
	}
}
