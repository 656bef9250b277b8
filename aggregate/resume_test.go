package aggregate_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/rackweave/rackweave/aggregate"
	"github.com/rackweave/rackweave/aggregate/optim"
	"github.com/rackweave/rackweave/aggregate/racktest"
	"github.com/rackweave/rackweave/cgo/fabric/simfabric"
	"github.com/rackweave/rackweave/cgo/worker"
	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/verbs"
)

// nicRack is a manual rack over a simulated network in which aggregator and workers have two NICs each.
type nicRack struct {
	*racktest.Rack
	t   *testing.T
	sim *simfabric.World
	// each is called in every round, before the network moves.
	each func(round int)
	now  int
}

func newNICRack(t *testing.T, seed uint64, workers int, cfg racktest.Config) *nicRack {
	t.Helper()
	byHand(t)
	sim, err := simfabric.New(seed)
	if err != nil {
		t.Fatal(err)
	}
	r := &nicRack{t: t, sim: sim, each: func(int) {}}
	var all []*verbs.Device
	pair := func(name string) (nics []*verbs.Device) {
		for i := range 2 {
			d, err := verbs.Open(simfabric.Provider, fmt.Sprintf("%s.%d", name, i), sim.Options()+",link=1")
			if err != nil {
				t.Fatal(err)
			}
			nics, all = append(nics, d), append(all, d)
		}
		return nics
	}
	cfg.NICs = pair("aggregator")
	for w := range workers {
		cfg.Workers = append(cfg.Workers, pair(fmt.Sprintf("worker%d", w)))
	}
	cfg.Manual, cfg.AckTimeout = true, 100*time.Millisecond
	cfg.Now = func() int64 { return int64(sim.Now()) }
	if r.Rack, err = racktest.Open(cfg); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
		for _, d := range all {
			if err := d.Close(); err != nil {
				t.Error(err)
			}
		}
		sim.Close()
	})
	return r
}

func (r *nicRack) network() {
	r.each(r.now)
	r.now++
	for range 4 {
		r.sim.Step()
	}
	for _, l := range r.Engine.Lanes() {
		if err := l.Audit(); err != nil {
			r.t.Fatalf("round %d: %v", r.now, err)
		}
	}
}

func (r *nicRack) run(ops [][]worker.Op) error {
	handles := make([][]uint64, len(ops))
	for i, w := range r.Workers {
		h, err := w.Submit(ops[i]...)
		if err != nil {
			return err
		}
		handles[i] = h
	}
	err := r.Drive(r.network, handles, 100000)
	if f := r.Job.Failure(); err != nil && f != nil {
		err = fmt.Errorf("%w: because of worker %d: %w", err, f.Rank, f.Err)
	}
	return err
}

// link takes a NIC's link up or down.
func (r *nicRack) link(d *verbs.Device, up bool) { simfabric.Link(d, up) }

// resume resumes a lane over other NICs and fails the test if it cannot.
func (r *nicRack) resume(rank, lane, aggregatorNIC, nic int) {
	r.t.Helper()
	if err := r.Resume(r.Workers[rank], lane, aggregatorNIC, nic); err != nil {
		r.t.Fatalf("round %d: resume lane %d of worker %d over NICs %d, %d: %v", r.now, lane, rank, aggregatorNIC, nic, err)
	}
}

// rescue resumes every lane whose queue pair failed, at either end, over the first possible path, which is a NIC of the
// aggregator's and one of the worker's.
func (r *nicRack) rescue(paths ...[2]int) {
	r.t.Helper()
	for rank, w := range r.Workers {
		broken := make([]uint8, r.Config.Lanes)
		worker.Broken(w.C, broken)
		for told := true; told; {
			select {
			case b := <-r.Job.Breaks(rank):
				broken[b.Lane] = 1
			default:
				told = false
			}
		}
		for lane, is := range broken {
			if is == 0 {
				continue
			}
			var errs []error
			for _, to := range paths {
				err := r.Resume(w, lane, to[0], to[1])
				if err == nil {
					errs = nil
					break
				}
				errs = append(errs, err)
			}
			if err := errors.Join(errs...); err != nil {
				r.t.Fatalf("round %d: rescue lane %d of worker %d: %v", r.now, lane, rank, err)
			}
		}
	}
}

var resumeCases = []struct {
	name   string
	mode   aggregate.Mode
	rule   optim.Rule
	wire   chunk.DType
	arena  bool
	copy   bool
	codecs string
}{
	{"sum", aggregate.Aggregate, optim.Sum, chunk.F32, false, false, ""},
	{"sum in arenas", aggregate.Aggregate, optim.Sum, chunk.F32, true, false, ""},
	{"momentum in arenas", aggregate.Eager, optim.SGDTorch, chunk.F32, true, false, ""},
	{"adam through staging buffers", aggregate.Eager, optim.AdamTorch, chunk.F32, false, true, ""},
	{"bf16 wire", aggregate.Eager, optim.AdamWTorch, chunk.BF16, false, false, ""},
	{"momentum with int4", aggregate.Eager, optim.SGDTorch, chunk.F32, false, false, "int4"},
}

func (r *nicRack) failovers() (n uint64) {
	for _, l := range r.Engine.Lanes() {
		n += l.Counters().Failovers
	}
	return n
}

// resumeConfig returns a rack of three lanes for a case.
func resumeConfig(mode aggregate.Mode, rule optim.Rule, wire chunk.DType) racktest.Config {
	h := rule.Defaults()
	if rule == optim.SGDTorch {
		h.Momentum = 0.9
	}
	return racktest.Config{
		Lanes: 3, Window: 4,
		Job:     aggregate.JobConfig{Name: "job", Mode: mode, Rule: rule, Hyper: h, ChunkBytes: 4096},
		Tensors: tensorsOf(wire, 1, 5000, 1023, 20000, 3),
	}
}

func TestConnectionsMoveAtAnyTimeAndSumsStayExact(t *testing.T) {
	for _, tc := range resumeCases {
		for seed := range uint64(6) {
			t.Run(fmt.Sprintf("%s/%d", tc.name, seed), func(t *testing.T) {
				cfg := resumeConfig(tc.mode, tc.rule, tc.wire)
				cfg.Arena, cfg.Copy, cfg.Job.Compress = tc.arena, tc.copy, pair(t, tc.codecs, true)
				r := newNICRack(t, seed, 3, cfg)
				rng := rand.New(rand.NewPCG(seed, 5))
				r.each = func(int) {
					for rng.IntN(12) == 0 {
						r.resume(rng.IntN(3), rng.IntN(3), rng.IntN(2), rng.IntN(2))
					}
				}
				exchange(t, r.Rack, 3, r.run)
				if r.failovers() == 0 {
					t.Error("nothing moved")
				}
			})
		}
	}
}

func TestAStepSurvivesALinkThatGoesDown(t *testing.T) {
	for _, side := range []string{"aggregator", "worker", "both"} {
		for _, tc := range resumeCases {
			t.Run(side+"/"+tc.name, func(t *testing.T) {
				cfg := resumeConfig(tc.mode, tc.rule, tc.wire)
				cfg.Arena, cfg.Copy, cfg.Job.Compress = tc.arena, tc.copy, pair(t, tc.codecs, true)
				r := newNICRack(t, 9, 3, cfg)
				var cut []*verbs.Device
				if side != "worker" {
					cut = append(cut, r.Config.NICs[0])
				}
				if side != "aggregator" {
					cut = append(cut, r.Config.Workers[1][0])
				}
				r.each = func(round int) {
					switch {
					case round == 20:
						for _, d := range cut {
							r.link(d, false)
						}
					case round > 20 && round < 2000:
						r.rescue([2]int{1, 1})
					case round == 2000:
						for _, d := range cut {
							r.link(d, true)
						}
						for rank := range r.Workers {
							for lane := range r.Config.Lanes {
								r.resume(rank, lane, lane%2, lane%2)
							}
						}
					}
				}
				steps := 0
				exchange(t, r.Rack, 5, func(ops [][]worker.Op) error {
					for steps++; steps == 4 && r.now <= 2000; { // until the link returns
						r.network()
					}
					return r.run(ops)
				})
				if r.failovers() < 9 {
					t.Errorf("%d failovers", r.failovers())
				}
			})
		}
	}
}

// A lost queue loses its completions. None of them had been acknowledged here, so nothing is missing.
func TestAStepSurvivesALostCompletionQueueOrQueuePair(t *testing.T) {
	seeds := uint64(8)
	if testing.Short() {
		seeds = 3
	}
	for name, faults := range map[string]simfabric.Network{
		"completion queue": {CQOverrun: 65536, FatalMax: 1},
		"queue pair":       {QPFail: 65536, FatalMax: 3},
	} {
		for _, tc := range resumeCases {
			for seed := range seeds {
				t.Run(fmt.Sprintf("%s/%s/%d", name, tc.name, seed), func(t *testing.T) {
					cfg := resumeConfig(tc.mode, tc.rule, tc.wire)
					cfg.Arena, cfg.Copy, cfg.Job.Compress = tc.arena, tc.copy, pair(t, tc.codecs, true)
					r := newNICRack(t, seed, 3, cfg)
					r.each = func(round int) {
						if round == 20+int(seed) {
							r.sim.SetNetwork(faults)
						}
						r.rescue([2]int{1, 1}, [2]int{0, 0})
					}
					exchange(t, r.Rack, 4, r.run)
					if r.failovers() == 0 {
						t.Error("nothing moved")
					}
				})
			}
		}
	}
}

func TestTwoPhaseStepsSurviveFailovers(t *testing.T) {
	for _, rule := range []optim.Rule{optim.AdamWTorch, optim.LAMB} {
		for _, wire := range []chunk.DType{chunk.F32, chunk.BF16} {
			t.Run(fmt.Sprintf("%v, %v", rule, wire), func(t *testing.T) {
				cfg := resumeConfig(aggregate.TwoPhase, rule, wire)
				cfg.Tensors = tensorsOf(wire, 3000, 1, 12345, 70)
				r := newNICRack(t, 4, 2, cfg)
				rng := rand.New(rand.NewPCG(6, 7))
				r.each = func(int) {
					for rng.IntN(8) == 0 {
						r.resume(rng.IntN(2), rng.IntN(3), rng.IntN(2), rng.IntN(2))
					}
				}
				two := &twoPhaseRack{
					Rack: r.Rack, t: t, ref: racktest.NewReference(aggregate.TwoPhase, rule, rule.Defaults(), wire, nil),
					rng: rand.New(rand.NewPCG(3, 4)), network: r.network,
				}
				two.broadcast(0, 1, 2, 3)
				for step := range 3 {
					two.push(0, 1, 2, 3)
					two.commit(chunk.TensorRecord{LR: 0.1, Scale: 0.25, WD: 0.01, Clip: 0.5})
					two.each(chunk.OpPull, 0, 1, 2, 3)
					two.check(fmt.Sprintf("step %d", step), 0, 1, 2, 3)
				}
			})
		}
	}
}

func TestAConnectionThatNobodyResumesIsALostWorkerInTime(t *testing.T) {
	r := newNICRack(t, 3, 2, resumeConfig(aggregate.Aggregate, optim.Sum, chunk.F32))
	cutAt := int64(0)
	r.each = func(round int) {
		if round == 20 {
			r.link(r.Config.Workers[1][0], false)
			cutAt = r.Config.Now()
		}
	}
	var ops [][]worker.Op
	for _, w := range r.Workers {
		ops = append(ops, []worker.Op{w.Op(chunk.OpPushPull, 1, 0), w.Op(chunk.OpPushPull, 3, 0)})
	}
	if err := r.run(ops); err == nil {
		t.Fatal("the exchange succeeded")
	}
	f := r.Job.Failure()
	if f == nil || f.Rank != 1 || !errors.Is(f.Err, aggregate.ErrWorkerLost) ||
		!strings.Contains(f.Err.Error(), "no path to it for 5s") {
		t.Fatalf("%+v", f)
	}
	if took := time.Duration(r.Config.Now() - cutAt); took > aggregate.DefaultLinkTimeout+time.Second {
		t.Errorf("that took %v", took)
	}
}

func TestAnOldOrImpossibleAttemptToResumeIsRefused(t *testing.T) {
	r := newNICRack(t, 3, 2, resumeConfig(aggregate.Aggregate, optim.Sum, chunk.F32))
	r.resume(0, 0, 1, 1)
	if _, err := r.Job.Resume(t.Context(), 0, chunk.Resume{Lane: 0, Attempt: 1}); !errors.Is(err, aggregate.ErrStale) {
		t.Errorf("an attempt that came before: %v", err)
	}
	for _, at := range []chunk.Resume{{Lane: -1}, {Lane: 3}, {NIC: 2}, {NIC: -1}} {
		if _, err := r.Job.Resume(t.Context(), 0, at); err == nil {
			t.Errorf("%+v was not refused", at)
		}
	}
	if r.Job.Failure() != nil {
		t.Fatal(r.Job.Failure().Err)
	}
	_, err := r.Job.Resume(t.Context(), 0, chunk.Resume{Lane: 0, Attempt: 2, Received: 5})
	if f := r.Job.Failure(); !errors.Is(err, aggregate.ErrProtocol) || f == nil || f.Rank != 0 {
		t.Errorf("a worker that received what was never sent: %v, %+v", err, f)
	}
}

func TestAnAttemptToResumeLeavesTheConnectionToALaterOne(t *testing.T) {
	r := newNICRack(t, 3, 2, resumeConfig(aggregate.Aggregate, optim.Sum, chunk.F32))
	s, first := r.Job.Shards()[0], chunk.Resume{Lane: 0, Attempt: 1, NIC: 1}
	if err := s.Workers.TakeOut(0, &first); err != nil {
		t.Fatal(err)
	}
	if err := r.Resume(r.Workers[0], 0, 1, 1); !errors.Is(err, aggregate.ErrStale) { // its first attempt, like the one above
		t.Fatal(err)
	}
	r.resume(0, 0, 1, 1)
	if _, err := s.Workers.Drain(0, &first); !errors.Is(err, aggregate.ErrStale) {
		t.Errorf("drain: %v", err)
	}
	if _, err := s.Workers.Reconnect(0, &first, nil); !errors.Is(err, aggregate.ErrStale) {
		t.Errorf("resume: %v", err)
	}
	exchange(t, r.Rack, 2, r.run)
	if f := r.Job.Failure(); f != nil {
		t.Error(f.Err)
	}
}

func TestWhatIsSubmittedWhileTheQueuesAreClaimedGoesOutAtTheirRelease(t *testing.T) {
	r := newNICRack(t, 3, 1, resumeConfig(aggregate.Aggregate, optim.Sum, chunk.F32))
	w := r.Workers[0]
	sent := func() uint64 {
		var s worker.Stats
		worker.StatsOf(w.C, &s)
		return s.SentChunks
	}
	if rc := worker.Claim(w.C); rc < 0 {
		t.Fatal(w.Error(rc))
	}
	if _, err := w.Submit(w.Op(chunk.OpPushPull, 1, 0)); err != nil {
		t.Fatal(err)
	}
	if n := sent(); n != 0 {
		t.Errorf("%d chunks were sent on queues that are claimed", n)
	}
	worker.Release(w.C)
	if sent() == 0 {
		t.Error("nothing was sent when they were released")
	}
}

// The race detector finds the fault here. Nothing may order the two goroutines, so both use timers.
func TestACallThatGaveUpOnABusyLaneSharesNothingWithWhatTheLaneDoesLater(t *testing.T) {
	for name, call := range map[string]func(context.Context, *racktest.Rack) error{
		"resume": func(ctx context.Context, r *racktest.Rack) error {
			_, err := r.Job.Resume(ctx, 0, chunk.Resume{Attempt: 1})
			return err
		},
		"attach": func(ctx context.Context, r *racktest.Rack) error {
			_, err := r.Job.Attach(ctx, 0, make([]chunk.WorkerLane, r.Config.Lanes))
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := threadedRack(t, verbs.ProviderSHM, 1, resumeConfig(aggregate.Aggregate, optim.Sum, chunk.F32))
			busy := make(chan struct{})
			go r.Engine.Lanes()[0].Do(t.Context(), func() { close(busy); time.Sleep(100 * time.Millisecond) })
			<-busy
			gaveUp, cancel := context.WithCancel(t.Context())
			cancel()
			if err := call(gaveUp, r); !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
			time.Sleep(200 * time.Millisecond)
		})
	}
}
