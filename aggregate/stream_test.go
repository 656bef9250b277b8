package aggregate_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/rackweave/rackweave/aggregate"
	"github.com/rackweave/rackweave/aggregate/optim"
	"github.com/rackweave/rackweave/aggregate/racktest"
	"github.com/rackweave/rackweave/cgo/worker"
	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/policy"
)

var streamSizes = []uint64{1, 5000, 1023, 20000, 3}

func spec(t testing.TB, text string) policy.Spec {
	t.Helper()
	s, err := policy.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// streamJob uses plain SGD with powers of two, so that small whole gradients add up exactly in any order.
func streamJob(t testing.TB, text string) aggregate.JobConfig {
	h := optim.SGDTorch.Defaults()
	h.LR, h.Scale = 0.25, 0.5
	return aggregate.JobConfig{
		Name: "job", Mode: aggregate.Stream, Rule: optim.SGDTorch, Hyper: h, ChunkBytes: 4096, Policy: spec(t, text),
	}
}

// gradient returns a worker's gradient of a step, which is whole and small.
func gradient(rank, step, tensor, i int) float32 { return float32((rank+1)*(step%5+1) + (tensor+i)%7) }

// streamWorker is one worker's training, started one part at a time.
type streamWorker struct {
	*racktest.Worker
	r       *racktest.Rack
	step    int
	pulls   int
	handles []uint64
}

func (w *streamWorker) submit(kind chunk.Op) error {
	var ops []worker.Op
	for k := range w.r.Plan.NumTensors() {
		ops = append(ops, w.Op(kind, k, 0))
	}
	h, err := w.Submit(ops...)
	w.handles = h
	return err
}

func (w *streamWorker) push(kind chunk.Op) error {
	for k := range w.r.Plan.NumTensors() {
		x := w.SrcF32(k)[:w.r.Plan.Tensor(k).Elems]
		for i := range x {
			x[i] = gradient(w.Rank, w.step, k, i)
		}
	}
	return w.submit(kind)
}

func (w *streamWorker) endStep() error {
	h, rc := w.CommitStart(chunk.TensorRecord{})
	if rc < 0 {
		return w.Error(rc)
	}
	w.handles = []uint64{h}
	return nil
}

// answered reads the answer to a step's end.
func (w *streamWorker) answered() (pull bool, err error) {
	end, err := w.Answer()
	if err != nil {
		return false, err
	}
	w.step++
	if int(end.Step) != w.step {
		return false, fmt.Errorf("worker %d goes on with step %d, want %d", w.Rank, end.Step, w.step)
	}
	return end.Pull, nil
}

// want returns a tensor's value after all steps of all workers.
func want(workers, steps, tensor, i int) float32 {
	sum := float32(0)
	for rank := range workers {
		for step := range steps {
			sum += gradient(rank, step, tensor, i)
		}
	}
	return -0.25 * 0.5 * sum
}

func checkSum(t *testing.T, r *racktest.Rack, steps int) {
	t.Helper()
	for _, w := range r.Workers {
		for k, n := range streamSizes {
			for i, got := range w.DstF32(k)[:n] {
				if want := want(len(r.Workers), steps, k, i); got != want {
					t.Fatalf("worker %d tensor %d element %d is %v, all gradients make %v", w.Rank, k, i, got, want)
				}
			}
		}
	}
}

// train runs steps by a worker's own goroutine.
func (w *streamWorker) train(steps int, kind chunk.Op) error {
	for range steps {
		for _, part := range []func() error{func() error { return w.push(kind) }, w.wait, w.endStep, w.wait} {
			if err := part(); err != nil {
				return err
			}
		}
		pull, err := w.answered()
		if err != nil {
			return err
		}
		if pull || kind == chunk.OpPush {
			w.pulls++
			if err := w.submit(chunk.OpPull); err != nil {
				return err
			}
			if err := w.wait(); err != nil {
				return err
			}
		}
	}
	return nil
}

func (w *streamWorker) wait() error {
	for _, h := range w.handles {
		if rc := worker.Wait(w.C, h, 20000); rc < 0 {
			return w.Error(rc)
		}
	}
	return nil
}

func TestStreamAppliesEveryGradientOnceOverRealTransports(t *testing.T) {
	const steps, workers = 6, 4
	for _, provider := range []string{"shm", "tcp"} {
		for _, text := range []string{"asp", "ssp:s=0", "ssp:s=2", "lagtuner:sl=1,su=3"} {
			for _, kind := range []chunk.Op{chunk.OpPushPull, chunk.OpPush} {
				t.Run(fmt.Sprintf("%s %s %v", provider, text, kind), func(t *testing.T) {
					r := threadedRack(t, provider, workers, racktest.Config{
						Lanes: 2, Window: 8, Job: streamJob(t, text), Tensors: tensorsOf(chunk.F32, streamSizes...),
					})
					var wg sync.WaitGroup
					errs := make([]error, workers)
					all := make([]*streamWorker, workers)
					for i, w := range r.Workers {
						all[i] = &streamWorker{Worker: w, r: r}
						wg.Go(func() { errs[i] = all[i].train(steps, kind) })
					}
					wg.Wait()
					if err := errors.Join(errs...); err != nil {
						t.Fatal(err)
					}
					for _, w := range all {
						if err := w.submit(chunk.OpPull); err != nil {
							t.Fatal(err)
						}
						if err := w.wait(); err != nil {
							t.Fatal(err)
						}
					}
					checkSum(t, r, steps)
					for rank := range workers {
						if p := r.Job.Gate.Look(rank); p.Step != steps || p.Pushed != steps {
							t.Errorf("worker %d is at %+v", rank, p)
						}
						if text == "asp" && kind == chunk.OpPushPull && all[rank].pulls > 0 {
							t.Errorf("worker %d pulled %d times although nothing holds it", rank, all[rank].pulls)
						}
						if text == "ssp:s=0" && all[rank].pulls != steps {
							t.Errorf("worker %d pulled %d times in %d steps", rank, all[rank].pulls, steps)
						}
					}
				})
			}
		}
	}
}

// simStream is a rack in stream mode over a simulated network, whose workers take their steps on command.
type simStream struct {
	*racktest.Rack
	t       *testing.T
	network func()
	workers []*streamWorker
}

func newSimStream(t *testing.T, workers int, options string, job aggregate.JobConfig, wire chunk.DType) *simStream {
	r, network := simRack(t, 5, options, workers, racktest.Config{
		Lanes: 2, Window: 4, Staging: 3, Job: job, Tensors: tensorsOf(wire, streamSizes...),
	})
	s := &simStream{Rack: r, t: t, network: network}
	for _, w := range r.Workers {
		s.workers = append(s.workers, &streamWorker{Worker: w, r: r})
	}
	return s
}

// drive runs until the operations of these workers are done.
func (s *simStream) drive(ranks ...int) {
	s.t.Helper()
	handles := make([][]uint64, len(s.workers))
	for _, rank := range ranks {
		handles[rank] = s.workers[rank].handles
	}
	if err := s.Drive(s.network, handles, 100000); err != nil {
		s.t.Fatal(err)
	}
}

// settle runs for a while, and reports whether a worker's operations are done.
func (s *simStream) settle(rank int) bool {
	s.t.Helper()
	never := make([][]uint64, len(s.workers))
	never[rank] = s.workers[rank].handles
	return s.Drive(s.network, never, 500) == nil
}

func (s *simStream) do(part func() error) {
	s.t.Helper()
	if err := part(); err != nil {
		s.t.Fatal(err)
	}
}

// push pushes and pulls a step's gradients, and ends the step.
func (s *simStream) push(rank int) {
	s.t.Helper()
	w := s.workers[rank]
	s.do(func() error { return w.push(chunk.OpPushPull) })
	s.drive(rank)
	s.do(w.endStep)
}

// proceed expects that a worker may begin its next step, and pulls if it must.
func (s *simStream) proceed(rank int, pulls bool) {
	s.t.Helper()
	s.drive(rank)
	w := s.workers[rank]
	pull, err := w.answered()
	if err != nil {
		s.t.Fatal(err)
	}
	if pull != pulls {
		s.t.Fatalf("worker %d, before step %d: pull is %v, want %v", rank, w.step, pull, pulls)
	}
	if pull {
		s.do(func() error { return w.submit(chunk.OpPull) })
		s.drive(rank)
	}
}

func (s *simStream) held(rank int) {
	s.t.Helper()
	if s.settle(rank) {
		s.t.Fatalf("worker %d goes on with step %d and should be held", rank, s.workers[rank].step+1)
	}
	if p := s.Job.Gate.Look(rank); !p.Waits || p.Step != uint64(s.workers[rank].step+1) {
		s.t.Fatalf("worker %d is said to be at %+v", rank, p)
	}
}

func TestStreamHoldsWhoIsTooFarAhead(t *testing.T) {
	s := newSimStream(t, 2, "", streamJob(t, "ssp:s=1"), chunk.F32)
	s.push(0)
	s.proceed(0, false)
	s.push(0)
	s.held(0)
	// Its wait delays no other step.
	s.push(1)
	s.proceed(1, false)
	s.proceed(0, true)
	s.push(0)
	s.held(0)
	// Others do not wait for a worker that has finished.
	if err := s.Job.Detach(context.Background(), 1); err != nil {
		t.Fatal(err)
	}
	s.proceed(0, true)
	s.push(0)
	s.proceed(0, false)
}

func TestStreamInTurnsEqualsPlainGoBitForBit(t *testing.T) {
	momentum := optim.SGDMXNet.Defaults()
	momentum.Momentum, momentum.WD = 0.9, 1e-4
	for _, tc := range []struct {
		options, policy string
		rule            optim.Rule
		hyper           optim.Hyper
		wire            chunk.DType
	}{
		{"", "asp", optim.SGDMXNet, momentum, chunk.F32},
		{",by_reference=1", "asp", optim.AdamTorch, optim.AdamTorch.Defaults(), chunk.F32},
		{"", "ssp:s=none", optim.AdamWTorch, optim.AdamWTorch.Defaults(), chunk.BF16},
		{",by_reference=1", "ssp:s=0", optim.SGDTorch, optim.SGDTorch.Defaults(), chunk.F16},
		{"", "asp:rate=staleness", optim.SGDTorch, optim.SGDTorch.Defaults(), chunk.F32},
	} {
		t.Run(fmt.Sprintf("%s %v %v%s", tc.policy, tc.rule, tc.wire, tc.options), func(t *testing.T) {
			job := streamJob(t, tc.policy)
			job.Rule, job.Hyper = tc.rule, tc.hyper
			s := newSimStream(t, 2, tc.options, job, tc.wire)
			var zeros [][]float32
			for _, n := range streamSizes {
				zeros = append(zeros, make([]float32, n))
			}
			ref := racktest.NewReference(aggregate.Eager, tc.rule, tc.hyper, tc.wire, zeros)
			rounded := ref.Hyper
			for step := range 3 {
				for rank, w := range s.workers {
					s.push(rank)
					grads := make([][]float32, len(streamSizes))
					for k, n := range streamSizes {
						grads[k] = append([]float32(nil), w.SrcF32(k)[:n]...)
					}
					// Both have the first parameters from the start, and later ones since before the other's step.
					tau := 1
					if step == 0 {
						tau = rank
					}
					factor := 0.5
					if tc.policy == "asp:rate=staleness" {
						factor = 1 / float64(tau+1)
					}
					ref.Hyper = rounded
					ref.Hyper.Scale *= 2
					ref.Hyper.LR *= factor
					want := ref.Step([][][]float32{grads})
					for k := range want {
						if i, same := racktest.SameBits(w.DstF32(k)[:len(want[k])], want[k]); !same {
							t.Fatalf("step %d, worker %d, tensor %d, element %d is %v, plain Go says %v", step, rank, k, i, w.DstF32(k)[i],
								want[k][i])
						}
					}
					if tc.policy != "ssp:s=0" {
						s.proceed(rank, false)
					}
				}
				if tc.policy == "ssp:s=0" {
					s.proceed(0, true)
					s.proceed(1, true)
				}
			}
		})
	}
}

// Drift is the distance that the parameters move from a worker's read to its next gradient.
func TestStreamMeasuresHowFarWorkersDrift(t *testing.T) {
	for _, wire := range []chunk.DType{chunk.F32, chunk.BF16} {
		for _, policy := range []string{"asp", "k-asp:k=1"} {
			t.Run(fmt.Sprint(wire, " ", policy), func(t *testing.T) {
				r, network := simRack(t, 5, "", 2, racktest.Config{
					Lanes: 1, Window: 4, Staging: 3, Job: streamJob(t, policy), Tensors: tensorsOf(wire, 1000),
				})
				s := &simStream{Rack: r, t: t, network: network}
				pulls := policy != "asp"
				step := func(rank int, gradient float32) {
					t.Helper()
					w := s.workers[rank]
					x := w.SrcF32(0)[:1000]
					for i := range x {
						x[i] = gradient
					}
					kind := chunk.OpPushPull
					if pulls {
						kind = chunk.OpPush
					}
					s.do(func() error { return w.submit(kind) })
					s.drive(rank)
					s.do(w.endStep)
					s.proceed(rank, pulls)
				}
				drift := func(want float64) {
					t.Helper()
					d, ok, err := r.Job.Drift(t.Context())
					if err != nil || ok != (want >= 0) || d.Share != max(want, 0) || d.Most != 0 {
						t.Errorf("drift %+v, %v, %v, want %v", d, ok, err, want)
					}
				}
				for _, w := range r.Workers {
					s.workers = append(s.workers, &streamWorker{Worker: w, r: r})
				}
				step(0, 1) // it reads the parameters at a distance of 1 from 0
				drift(-1)
				step(1, 3) // and they move to 4
				drift(-1)
				step(0, 1)
				drift(0.75)
			})
		}
	}
}
