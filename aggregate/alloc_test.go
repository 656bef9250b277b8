// Under AddressSanitizer the compiler moves variables to the heap.
//go:build !asan

package aggregate_test

import (
	"testing"

	"github.com/rackweave/rackweave/aggregate"
	"github.com/rackweave/rackweave/aggregate/optim"
	"github.com/rackweave/rackweave/aggregate/racktest"
	"github.com/rackweave/rackweave/cgo/fabric/simfabric"
	"github.com/rackweave/rackweave/cgo/worker"
	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/hierarchy"
	"github.com/rackweave/rackweave/hierarchy/outer"
	"github.com/rackweave/rackweave/verbs"
)

// stepper exchanges on a manual rack without allocating anything itself.
type stepper struct {
	t       *testing.T
	rack    *racktest.Rack
	network func()
	handles [][]uint64 // by worker
}

// run steps lanes and workers until every handle is done.
func (s *stepper) run() {
	const limit = 1_000_000
	for range limit {
		s.network()
		if !s.advance() {
			return
		}
	}
	s.t.Fatalf("not done after %d rounds", limit)
}

// advance steps lanes and workers once, and reports whether some handle is not done.
func (s *stepper) advance() (pending bool) {
	for _, l := range s.rack.Engine.Lanes() {
		if _, err := l.Step(); err != nil {
			s.t.Fatal(err)
		}
	}
	for rank, w := range s.rack.Workers {
		worker.Progress(w.C)
		for _, h := range s.handles[rank] {
			rc := worker.Test(w.C, h)
			if rc < 0 {
				s.t.Fatal(w.Error(rc))
			}
			pending = pending || rc == 0
		}
	}
	return pending
}

// submit starts every worker's operations.
func (s *stepper) submit(ops [][]worker.Op) {
	for rank, w := range s.rack.Workers {
		if n := worker.Submit(w.C, ops[rank], s.handles[rank]); n != len(ops[rank]) {
			s.t.Fatal(w.Error(n))
		}
	}
}

// do starts every worker's operations, and waits for them.
func (s *stepper) do(ops [][]worker.Op) {
	s.submit(ops)
	s.run()
}

// ops lists one operation per worker and tensor.
func (s *stepper) ops(kind chunk.Op) [][]worker.Op {
	ops := make([][]worker.Op, len(s.rack.Workers))
	for rank, w := range s.rack.Workers {
		for k := range s.rack.Plan.NumTensors() {
			ops[rank] = append(ops[rank], w.Op(kind, k, int32(k)))
		}
	}
	return ops
}

// A step runs from the first gradient to the last answer, with the aggregator's loops, the workers and the transport.
func TestExchangesDoNotAllocate(t *testing.T) {
	momentum := optim.SGDTorch.Defaults()
	momentum.Momentum = 0.9
	for _, transport := range []struct{ name, provider, options string }{
		{"sim", simfabric.Provider, ""},
		{"sim by reference", simfabric.Provider, ",by_reference=1"},
		{"sim over two NICs", simfabric.Provider, ",link=1"},
		{"shm", verbs.ProviderSHM, ""},
		{"tcp", verbs.ProviderTCP, ""},
	} {
		for _, tc := range []struct {
			name  string
			mode  aggregate.Mode
			rule  optim.Rule
			hyper optim.Hyper
			wire  chunk.DType
			codec string
		}{
			{"sum", aggregate.Aggregate, optim.Sum, optim.Sum.Defaults(), chunk.F32, ""},
			{"momentum", aggregate.Eager, optim.SGDTorch, momentum, chunk.F32, ""},
			{"adam over bf16", aggregate.Eager, optim.AdamTorch, optim.AdamTorch.Defaults(), chunk.BF16, ""},
			{"two-phase", aggregate.TwoPhase, optim.SGDTorch, momentum, chunk.F32, ""},
			{"stream", aggregate.Stream, optim.SGDTorch, momentum, chunk.F32, ""},
			{"sum of topk", aggregate.Aggregate, optim.Sum, optim.Sum.Defaults(), chunk.F32, "topk:1%"},
			{"momentum with int4", aggregate.Eager, optim.SGDTorch, momentum, chunk.F32, "int4"},
			{"stream with int8", aggregate.Stream, optim.SGDTorch, momentum, chunk.F32, "int8/none"},
		} {
			t.Run(transport.name+"/"+tc.name, func(t *testing.T) {
				job := aggregate.JobConfig{Name: "job", Mode: tc.mode, Rule: tc.rule, Hyper: tc.hyper, ChunkBytes: 4096,
					Compress: pair(t, tc.codec, true)}
				if tc.mode == aggregate.Stream {
					job.Policy = spec(t, "asp")
				}
				r, network := manualRack(t, transport.provider, transport.options, 3, racktest.Config{
					Lanes: 2, Window: 4, Arena: true, Job: job, Tensors: tensorsOf(tc.wire, 1, 5000, 40_000),
				})
				s := newStepper(t, r, network)
				s.do(s.ops(chunk.OpBroadcast))
				step := s.step(tc.mode)
				step()                              // queues and pools grow to their size in a step
				if transport.options == ",link=1" { // also on another NIC than the lane's
					if err := r.Resume(r.Workers[0], 0, 1, 1); err != nil {
						t.Fatal(err)
					}
					step()
				}
				allocatesNothing(t, r.Plan, step)
			})
		}
	}
}

func newStepper(t *testing.T, r *racktest.Rack, network func()) *stepper {
	s := &stepper{t: t, rack: r, network: network, handles: make([][]uint64, len(r.Workers))}
	for i := range s.handles {
		s.handles[i] = make([]uint64, r.Plan.NumTensors())
	}
	return s
}

func allocatesNothing(t *testing.T, plan *chunk.Plan, step func()) {
	t.Helper()
	five := func() { // AllocsPerRun rounds down, so that fewer than one allocation a step would not count
		for range 5 {
			step()
		}
	}
	n := testing.AllocsPerRun(1, five)
	for tries := 0; n != 0 && tries < 3; tries++ { // the runtime's own goroutines allocate now and then, and only add
		n = min(n, testing.AllocsPerRun(1, five))
	}
	if n != 0 {
		t.Errorf("five steps of %d chunks allocate %v times, want 0", plan.NumChunks(), n)
	}
}

// The test repeats this over racks that reduce among themselves.
func TestExchangesAboveTheRackDoNotAllocate(t *testing.T) {
	table := []chunk.Tensor{{Name: "table", Elems: 16 * 3000, DType: chunk.F32, Width: 16}}
	for _, tc := range []struct {
		topology hierarchy.Topology
		mode     aggregate.Mode
		rule     optim.Rule
		wire     chunk.DType
		outer    outer.Optimizer
		sparse   []chunk.Tensor
	}{
		{hierarchy.Topology{Shape: hierarchy.Sharded}, aggregate.Aggregate, optim.Sum, chunk.F32, outer.Optimizer{}, table},
		{hierarchy.Topology{Shape: hierarchy.Chain}, aggregate.Eager, optim.AdamTorch, chunk.BF16, outer.Optimizer{}, table},
		{hierarchy.Topology{Shape: hierarchy.Pods, Pods: 2}, aggregate.Eager, optim.AdamTorch, chunk.F32, outer.Optimizer{}, nil},
		{hierarchy.Topology{Shape: hierarchy.Root}, aggregate.Eager, optim.AdamTorch, chunk.BF16,
			outer.Optimizer{Every: 2, Fragments: 2, Rule: outer.Nesterov, LR: 0.7, Momentum: 0.9}, nil},
		{hierarchy.Topology{Shape: hierarchy.Chain}, aggregate.Eager, optim.AdamTorch, chunk.F32,
			outer.Optimizer{Every: 2, Rule: outer.SGD, LR: 1, Drift: 0.1}, nil},
	} {
		t.Run(tc.topology.Shape.String(), func(t *testing.T) {
			tc.topology.Racks = 4
			job := aggregate.JobConfig{Name: "job", Mode: tc.mode, Rule: tc.rule, Hyper: tc.rule.Defaults(), ChunkBytes: 4096,
				Outer: tc.outer}
			c, network := simCluster(t, 3, tc.topology, []int{2, 1, 1, 2}, racktest.Config{
				Lanes: 2, Window: 4, Staging: 4, Arena: true, Job: job, Tensors: append(tensorsOf(tc.wire, 1, 5000, 40_000), tc.sparse...),
			})
			racks := make([]*stepper, len(c.Racks))
			for i, r := range c.Racks {
				racks[i] = newStepper(t, r, nil)
			}
			exchange := func(kind chunk.Op) func() {
				ops := make([][][]worker.Op, len(racks))
				for i, s := range racks {
					ops[i] = s.ops(kind)
				}
				return func() {
					for i, s := range racks {
						s.submit(ops[i])
					}
					for pending, rounds := true, 0; pending; rounds++ {
						if rounds == 1_000_000 {
							t.Fatalf("not done after %d rounds", rounds)
						}
						network()
						pending = false
						for _, s := range racks {
							pending = s.advance() || pending
						}
					}
				}
			}
			exchange(chunk.OpBroadcast)()
			step := exchange(chunk.OpPushPull)
			step() // queues and pools grow to what a step needs
			allocatesNothing(t, c.Racks[0].Plan, step)
		})
	}
}

// step is one step of a mode.
func (s *stepper) step(mode aggregate.Mode) func() {
	if mode != aggregate.TwoPhase {
		ops := s.ops(chunk.OpPushPull)
		return func() { s.do(ops) }
	}
	push, pull := s.ops(chunk.OpPush), s.ops(chunk.OpPull)
	commits := make([][]uint64, len(s.rack.Workers))
	for i := range commits {
		commits[i] = make([]uint64, 1)
	}
	h := s.rack.Config.Job.Hyper
	record := chunk.TensorRecord{LR: float32(h.LR), Scale: 1, Momentum: float32(h.Momentum)}
	return func() {
		s.do(push)
		tensors := s.handles
		s.handles = commits
		for rank, w := range s.rack.Workers {
			h, rc := w.CommitStart(record)
			if rc < 0 {
				s.t.Fatal(w.Error(rc))
			}
			commits[rank][0] = h
		}
		s.run()
		s.handles = tensors
		s.do(pull)
	}
}

func TestFormsAreReadWithoutAllocation(t *testing.T) {
	r := newCodedRack(t, "", aggregate.JobConfig{Mode: aggregate.Aggregate, Hyper: optim.Sum.Defaults(), Compress: pair(t, "int8", true)})
	st := r.Job.Shards()[0].Store
	for _, text := range []string{"int8", "sign", "topk:1%", "topk:50%"} {
		p := payload(t, text, codedElems)
		n := testing.AllocsPerRun(100, func() {
			copy(r.ends[0].memory, p)
			if form, err := st.Form(&st.Chunks[0], r.ends[0].mr.Addr, len(p)); err != nil || form == 0 {
				t.Fatal(form, err)
			}
		})
		if n != 0 {
			t.Errorf("%s: %v allocations", text, n)
		}
	}
}
