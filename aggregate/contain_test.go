package aggregate_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/rackweave/rackweave/aggregate"
	"github.com/rackweave/rackweave/aggregate/optim"
	"github.com/rackweave/rackweave/aggregate/racktest"
	"github.com/rackweave/rackweave/cgo/worker"
	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/verbs"
)

// beside opens a job's rack on the aggregator of another rack.
func beside(t testing.TB, r *racktest.Rack, provider string, workers int, cfg racktest.Config) *racktest.Rack {
	t.Helper()
	cfg.Engine, cfg.NICs, cfg.Lanes = r.Engine, r.Config.NICs, r.Config.Lanes
	for range workers {
		cfg.Workers = append(cfg.Workers, []*verbs.Device{openDevice(t, provider)})
	}
	return openRack(t, cfg)
}

// tear leaves a job's shard of a lane in a state that no input should bring about. The lane panics at its next chunk.
func tear(j *aggregate.Job, lane int) error {
	s := j.Shards()[lane]
	return s.Flow.Do(context.Background(), func() error { s.Store.Chunks = nil; return nil })
}

// panicIn runs a command of the job that panics.
func panicIn(j *aggregate.Job, lane int) error {
	return j.Shards()[lane].Flow.Do(context.Background(), func() error { panic("for the test") })
}

func sumJob(name string, elems ...uint64) racktest.Config {
	return racktest.Config{
		Lanes: 2, Window: 8, MaxConns: 16,
		Job:     aggregate.JobConfig{Name: name, Mode: aggregate.Aggregate, Hyper: optim.Sum.Defaults(), ChunkBytes: 4096},
		Tensors: tensorsOf(chunk.F32, elems...),
	}
}

func TestAPanicInALaneFailsTheJobThatCausedItAndNoOther(t *testing.T) {
	for _, provider := range []string{verbs.ProviderSHM, verbs.ProviderTCP} {
		for what, attack := range map[string]func(*aggregate.Job) error{
			"a message": func(j *aggregate.Job) error { return tear(j, 1) },
			"a command": func(j *aggregate.Job) error {
				if err := panicIn(j, 1); err == nil {
					return errors.New("the command's caller got no panic")
				}
				return nil
			},
		} {
			t.Run(provider+", "+what, func(t *testing.T) {
				victim := threadedRack(t, provider, 2, sumJob("victim", 30_000))
				culprit := beside(t, victim, provider, 2, sumJob("culprit", 30_000))
				ended := make(chan error, 1)
				go func() {
					var err error
					for range 1000 {
						if err = runAll(culprit, pushPullAll(culprit)); err != nil {
							break
						}
					}
					ended <- err
				}()
				exchange(t, victim, 3, func(ops [][]worker.Op) error { return runAll(victim, ops) })
				if err := attack(culprit.Job); err != nil {
					t.Fatal(err)
				}
				exchange(t, victim, 10, func(ops [][]worker.Op) error { return runAll(victim, ops) })
				select {
				case err := <-ended:
					if err == nil {
						t.Error("the job that caused a panic went on")
					}
				case <-time.After(2 * time.Minute):
					t.Fatal("the workers of the job that caused a panic still wait")
				}
				var p *aggregate.PanicError
				if f := culprit.Job.Failure(); f == nil || !errors.As(f.Err, &p) || !strings.Contains(string(p.Stack), "lane.(*Lane)") {
					t.Errorf("its failure is %+v, not a panic with its stack", f)
				}
				if err := panicIn(culprit.Job, 1); !errors.As(err, &p) {
					t.Errorf("a later command of it says %v", err)
				}
				late := beside(t, victim, provider, 2, sumJob("late", 5000))
				exchange(t, late, 2, func(ops [][]worker.Op) error { return runAll(late, ops) })
			})
		}
	}
}

func pushPullAll(r *racktest.Rack) [][]worker.Op {
	ops := make([][]worker.Op, len(r.Workers))
	for i, w := range r.Workers {
		for k := range r.Plan.NumTensors() {
			ops[i] = append(ops[i], w.Op(chunk.OpPushPull, k, 0))
		}
	}
	return ops
}

// Lanes receive new tensors one after another, while others of them are at a commit.
func TestCommitsWhileTensorsAreAddedHurtNobody(t *testing.T) {
	for _, rule := range []optim.Rule{optim.SGDTorch, optim.LAMB} {
		t.Run(rule.String(), func(t *testing.T) {
			victim := threadedRack(t, verbs.ProviderSHM, 2, sumJob("victim", 30_000))
			cfg := sumJob("culprit", 5000)
			cfg.Job = aggregate.JobConfig{Name: "culprit", Mode: aggregate.TwoPhase, Rule: rule, Hyper: rule.Defaults(), ChunkBytes: 4096}
			culprit := beside(t, victim, verbs.ProviderSHM, 1, cfg)
			stop, ended := make(chan struct{}), make(chan error, 1)
			go func() {
				w := culprit.Workers[0]
				for {
					select {
					case <-stop:
						ended <- nil
						return
					default:
					}
					if err := w.Run(20*time.Second, w.Op(chunk.OpPush, 0, 0)); err != nil {
						ended <- err
						return
					}
					h, rc := w.CommitStart(chunk.TensorRecord{LR: 0.1, Scale: 1})
					if rc < 0 {
						ended <- w.Error(rc)
						return
					}
					if rc := worker.Wait(w.C, h, 20_000); rc < 0 {
						ended <- w.Error(rc)
						return
					}
				}
			}()
			plan := culprit.Plan
			for i := range 200 {
				first := plan.NumTensors()
				tensors := tensorsOf(chunk.F32, 20_000, 3)
				for k := range tensors {
					tensors[k].Name = fmt.Sprintf("late%d.%d", i, k)
				}
				if err := plan.Add(tensors); err != nil {
					t.Fatal(err)
				}
				specs := []aggregate.TensorSpec{{LRMult: 1, WDMult: 1}, {LRMult: 1, WDMult: 1}}
				if err := culprit.Job.AddTensors(context.Background(), plan, first, specs); err != nil {
					t.Fatal(err)
				}
			}
			exchange(t, victim, 5, func(ops [][]worker.Op) error { return runAll(victim, ops) })
			close(stop)
			if err := <-ended; err != nil {
				t.Errorf("commits beside new tensors: %v", err)
			}
		})
	}
}

func TestAJobThatRegistersTensorsOneByOneLeavesRegionsToOthers(t *testing.T) {
	cfg := sumJob("many", 5000)
	cfg.Job = aggregate.JobConfig{
		Name: "many", Mode: aggregate.Eager, Rule: optim.SGDTorch, Hyper: optim.SGDTorch.Defaults(), ChunkBytes: 4096,
	}
	many := threadedRack(t, verbs.ProviderSHM, 1, cfg)
	before := many.Job.Memory().Parameters
	for i := range 5000 {
		first := many.Plan.NumTensors()
		if err := many.Plan.Add([]chunk.Tensor{{Name: fmt.Sprint("late", i), Elems: 1000, DType: chunk.F32}}); err != nil {
			t.Fatal(err)
		}
		specs := []aggregate.TensorSpec{{LRMult: 1, WDMult: 1}}
		if err := many.Job.AddTensors(context.Background(), many.Plan, first, specs); err != nil {
			t.Fatalf("registration %d: %v", i, err)
		}
	}
	if got, need := many.Job.Memory().Parameters-before, uint64(5000*4000); got > need*3/2 {
		t.Errorf("%d bytes of parameters are held for %d that are needed", got, need)
	}
	next := beside(t, many, verbs.ProviderSHM, 2, sumJob("next", 5000))
	exchange(t, next, 2, func(ops [][]worker.Op) error { return runAll(next, ops) })
}
