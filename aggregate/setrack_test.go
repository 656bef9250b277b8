package aggregate_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/rackweave/rackweave/aggregate"
	"github.com/rackweave/rackweave/aggregate/optim"
	"github.com/rackweave/rackweave/aggregate/racktest"
	"github.com/rackweave/rackweave/cgo/worker"
	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/policy"
)

// rough returns a worker's gradient of a step, whose sums depend on their order.
func rough(rank int, step uint64) [][]float32 {
	rng := rand.New(rand.NewPCG(uint64(rank), step))
	g := make([][]float32, len(streamSizes))
	for k, n := range streamSizes {
		g[k] = make([]float32, n)
		fill(rng, g[k])
	}
	return g
}

// setRack is a rack in mode stream whose workers take steps at random speeds, driven by one goroutine.
type setRack struct {
	*racktest.Rack
	t       *testing.T
	network func() // if nil, the lanes and the network run by themselves
	chance  *rand.Rand
	decided []policy.Act
	workers []*setWorker
	grads   func(rank int, step uint64) [][]float32
}

// setWorker is one worker's training, one part at a time.
type setWorker struct {
	*racktest.Worker
	rack    *setRack
	kind    chunk.Op
	step    uint64
	until   uint64
	part    int
	handles []uint64
	stays   bool // and stays there; otherwise it leaves
	rests   bool
	lost    bool // it is not driven
}

func newSetRack(t *testing.T, provider string, workers int, job aggregate.JobConfig, seed uint64) *setRack {
	t.Helper()
	s := &setRack{t: t, chance: rand.New(rand.NewPCG(seed, 7)), grads: rough}
	job.Decided = func(a policy.Act) { s.decided = append(s.decided, a) }
	cfg := racktest.Config{Lanes: 2, Window: 4, Staging: 3, Job: job, Tensors: tensorsOf(chunk.F32, streamSizes...)}
	if provider == "sim" {
		s.Rack, s.network = simRack(t, seed, "", workers, cfg)
	} else {
		cfg.Window = 16 // shortens the waits for a processor
		s.Rack = threadedRack(t, provider, workers, cfg)
	}
	for _, w := range s.Workers {
		s.workers = append(s.workers, &setWorker{Worker: w, rack: s, kind: chunk.OpPushPull})
	}
	return s
}

// advance starts the next part of a worker's step when the last is done.
func (w *setWorker) advance() error {
	for _, h := range w.handles {
		if done, err := w.Done(h); err != nil || !done {
			return err
		}
	}
	w.handles = nil
	switch w.part++; w.part {
	case 1:
		if w.step == w.until {
			w.part, w.rests = 0, true
			if w.stays {
				return nil
			}
			return w.rack.Job.Detach(context.Background(), w.Rank)
		}
		for k, g := range w.rack.grads(w.Rank, w.step) {
			copy(w.SrcF32(k), g)
		}
		return w.submit(w.kind)
	case 2:
		h, rc := w.CommitStart(chunk.TensorRecord{})
		if rc < 0 {
			return w.Error(rc)
		}
		w.handles = []uint64{h}
	case 3:
		w.part = 0
		end, err := w.Answer()
		if err != nil {
			return err
		}
		w.step = uint64(end.Step)
		if end.Pull {
			return w.submit(chunk.OpPull)
		}
	}
	return nil
}

func (w *setWorker) submit(kind chunk.Op) (err error) {
	var ops []worker.Op
	for k := range streamSizes {
		ops = append(ops, w.Op(kind, k, 0))
	}
	w.handles, err = w.Submit(ops...)
	return err
}

// round advances everything a little, each worker with its own speed.
func (s *setRack) round(speeds []float64) {
	s.t.Helper()
	if s.network != nil {
		s.network()
		for _, l := range s.Engine.Lanes() {
			if _, err := l.Step(); err != nil {
				s.t.Fatal(err)
			}
			if err := l.Audit(); err != nil {
				s.t.Fatal(err)
			}
			l.Tick()
		}
	}
	took := 0
	for rank, w := range s.workers {
		if w.lost {
			continue
		}
		took += worker.Progress(w.C)
		if w.rests || s.chance.Float64() >= speeds[rank] {
			continue
		}
		if err := w.advance(); err != nil {
			s.t.Fatalf("%v\n%s", err, s.picture())
		}
	}
	if s.network == nil && took == 0 {
		time.Sleep(50 * time.Microsecond)
	}
}

func (s *setRack) picture() (text string) {
	for rank, w := range s.workers {
		p := s.Job.Gate.Look(rank)
		text += fmt.Sprintf("worker %d: step %d, part %d, rests %v; the aggregator says step %d, waits %v, pushed %d, dropped %d\n", rank,
			w.step, w.part, w.rests, p.Step, p.Waits, p.Pushed, p.Dropped)
	}
	if f := s.Job.Failure(); f != nil {
		text += fmt.Sprintf("the job failed: %v\n", f.Err)
	}
	return text + fmt.Sprintf("%d updates", len(s.decided))
}

// train runs every worker until it has reached a step, where it stays or leaves.
func (s *setRack) train(steps uint64, stays bool, speeds ...float64) {
	s.t.Helper()
	for _, w := range s.workers {
		w.until, w.stays, w.rests = steps, stays, w.lost
	}
	s.until(speeds, func() bool { return !slices.ContainsFunc(s.workers, func(w *setWorker) bool { return !w.rests }) })
}

// trainInTurns is train with one worker's whole step after another's.
func (s *setRack) trainInTurns(steps uint64, stays bool) {
	s.t.Helper()
	for s.workers[0].step < steps {
		for rank, w := range s.workers {
			w.until, w.stays, w.rests = w.step+1, true, false
			speeds := make([]float64, len(s.workers))
			speeds[rank] = 1
			s.until(speeds, func() bool { return w.rests })
		}
	}
	s.train(steps, stays, 1, 1, 1, 1)
}

func (s *setRack) until(speeds []float64, done func() bool) {
	s.t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); !done(); s.round(speeds) {
		if time.Now().After(deadline) {
			s.t.Fatalf("not done:\n%s", s.picture())
		}
	}
}

// parameters reads the parameters after every update is made.
func (s *setRack) parameters() [][]float32 {
	s.t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); ; {
		out, err := s.read()
		if err == nil {
			return out
		}
		if !errors.Is(err, aggregate.ErrNotQuiet) || time.Now().After(deadline) {
			s.t.Fatalf("%v\n%s", err, s.picture())
		}
		s.round(make([]float64, len(s.workers)))
	}
}

func (s *setRack) read() ([][]float32, error) {
	snapshot, err := s.Job.Snapshot(context.Background(), s.Plan)
	if err != nil {
		return nil, err
	}
	out := make([][]float32, s.Plan.NumTensors())
	for k := range out {
		from, end := s.Plan.TensorChunks(k)
		for c := from; c < end; c++ {
			data := make([]float32, s.Plan.Chunk(c).Elems)
			if err := snapshot.Read(context.Background(), []aggregate.Piece{{Chunk: c, Data: data}}); err != nil {
				return nil, err
			}
			out[k] = append(out[k], data...)
		}
	}
	return out, nil
}

func zeros() (w [][]float32) {
	for _, n := range streamSizes {
		w = append(w, make([]float32, n))
	}
	return w
}

// replay returns plain Go's result of the decided updates.
func (s *setRack) replay() [][]float32 {
	job := &s.Config.Job
	ref := racktest.NewReference(job.Mode, job.Rule, job.Hyper, chunk.F32, zeros())
	void := map[uint64]bool{} // sets without an update
	for _, u := range s.decided {
		if u.Kind == policy.Cancel {
			void[u.Step] = true
		}
	}
	made := uint64(0)
	for _, u := range s.decided {
		if u.Kind != policy.Apply {
			continue
		}
		if !void[made] {
			ref.Replay(u, len(s.workers), s.grads)
		}
		made++
	}
	return ref.W
}

func (s *setRack) same(what string, want [][]float32) {
	s.t.Helper()
	for k, got := range s.parameters() {
		if i, same := racktest.SameBits(got, want[k]); !same {
			s.t.Fatalf("tensor %d element %d is %v, %s says %v\n%s", k, i, got[i], what, want[k][i], s.picture())
		}
	}
}

// momentumJob keeps the effect of an update for long.
func momentumJob(t testing.TB, text string) aggregate.JobConfig {
	h := optim.SGDTorch.Defaults()
	h.LR, h.Momentum, h.WD = 0.05, 0.9, 1e-3
	return aggregate.JobConfig{
		Name: "job", Mode: aggregate.Stream, Rule: optim.SGDTorch, Hyper: h, ChunkBytes: 4096, Policy: spec(t, text),
	}
}
