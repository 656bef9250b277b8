package aggregate

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/rackweave/rackweave/aggregate/optim"
	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/verbs"
)

// Mode is what the aggregator does with gradients.
type Mode int

const (
	// Eager updates the parameters when a chunk's last gradient arrives; a pushpull is answered with the new parameters.
	Eager Mode = iota
	// Aggregate only sums: a pushpull is answered with the sum.
	Aggregate
	// TwoPhase accumulates pushes until every worker commits the step, with its learning rate, scale and clipping; then the
	// parameters are updated and can be pulled.
	TwoPhase
)

var modeNames = [...]string{"eager", "aggregate", "two-phase"}

func (m Mode) String() string { return modeNames[m] }

// ParseMode reads the name of a mode.
func ParseMode(s string) (Mode, error) {
	for i, name := range modeNames {
		if name == s {
			return Mode(i), nil
		}
	}
	return 0, fmt.Errorf("unknown mode %q: use eager, aggregate or two-phase", s)
}

const (
	rootRank = 0  // whose values a broadcast takes
	noRank   = -1 // a failure that no worker caused
)

// JobConfig is what a job is made of.
type JobConfig struct {
	Name       string
	Workers    int
	Mode       Mode
	Rule       optim.Rule
	Hyper      optim.Hyper
	ChunkBytes int
}

// TensorSpec is what a job knows of a tensor beside the plan.
type TensorSpec struct {
	LRMult, WDMult float64
}

// Failure is why a job ended: the worker that caused it, or -1.
type Failure struct {
	Rank int
	Err  error
}

// Job is one tenant's aggregation: its workers' connections and, in every lane, its share.
type Job struct {
	engine     *Engine
	name       string
	workers    int
	mode       Mode
	rule       optim.Rule
	hyper      optim.Hyper
	scaled     *optim.Scalars // aggregate-only: of a sum that is scaled or clipped; nil: it is neither
	states     int
	chunkBytes int
	window     int
	pds        []*verbs.PD // by device
	shares     []*share    // by lane

	// Written only while no lane looks: by AddTensors, before the chunks it is for exist.
	names      []string
	norms      [2][]float64 // of chunks' accumulated gradients, squared, by the parity of the commit they are for
	paramNorms []float64
	stepNorms  []float64

	barrier atomic.Int64 // lanes that reached a barrier, counted through all commits
	failure atomic.Pointer[Failure]
	failed  chan struct{}
	breaks  []chan Break // by rank

	mu      sync.Mutex
	regions []region
	closed  bool
}

// NewJob makes a job without tensors or workers.
func (e *Engine) NewJob(c JobConfig) (*Job, error) {
	if c.Workers < 1 || c.Workers > MaxWorkers {
		return nil, fmt.Errorf("job %q: %d workers: use 1 to %d", c.Name, c.Workers, MaxWorkers)
	}
	if c.Mode == Aggregate {
		c.Rule = optim.Sum
	} else if c.Rule == optim.Sum {
		return nil, fmt.Errorf("job %q: mode %v needs an optimizer: name one, or use mode aggregate", c.Name, c.Mode)
	} else if c.Rule.NeedsNorms() && c.Mode != TwoPhase {
		return nil, fmt.Errorf("job %q: optimizer %v needs whole tensors' norms: use mode two-phase", c.Name, c.Rule)
	}
	if err := c.Rule.Check(c.Hyper); err != nil {
		return nil, fmt.Errorf("job %q: %w", c.Name, err)
	}
	j := &Job{
		engine: e, name: c.Name, workers: c.Workers, mode: c.Mode, rule: c.Rule, hyper: c.Hyper,
		states: c.Rule.States(c.Hyper), chunkBytes: c.ChunkBytes, window: e.cfg.Window, failed: make(chan struct{}),
	}
	if c.Mode == Aggregate && (c.Hyper.Scale != 1 || c.Hyper.Clip > 0) {
		scalars := optim.Derive(optim.Sum, c.Hyper, 1)
		j.scaled = &scalars
	}
	for range c.Workers {
		j.breaks = append(j.breaks, make(chan Break, 2*len(e.lanes)))
	}
	for _, d := range e.devices {
		pd, err := d.AllocPD()
		if err != nil {
			return nil, errors.Join(err, j.Close())
		}
		j.pds = append(j.pds, pd)
	}
	for _, l := range e.lanes {
		s := &share{job: j, lane: l, folds: foldPool{first: noFold, last: noFold}, kept: noFold, patience: turnAfter, conns: make([]*conn, c.Workers), published: make([]WorkerCounters, c.Workers), lkeys: make([][]uint32, len(e.devices))}
		s.commit.messages = make([]message, c.Workers)
		j.shares = append(j.shares, s)
		r, err := j.allocate(resultRegion, l, "results", resultBuffers*int64(c.ChunkBytes), verbs.AccessLocalWrite, false)
		if err != nil {
			return nil, errors.Join(err, j.Close())
		}
		s.results.open(r, c.ChunkBytes)
	}
	for _, s := range j.shares {
		if err := s.lane.Do(context.Background(), func() { s.lane.shares = append(s.lane.shares, s) }); err != nil {
			return nil, errors.Join(err, j.Close())
		}
	}
	return j, nil
}

// stride is the distance in bytes between a chunk's parameters and its states, each in its own cache lines.
func (j *Job) stride(elems uint32) uint64 { return (uint64(elems)*4 + 63) &^ 63 }

// arrays is how many f32 arrays the job keeps for each parameter.
func (j *Job) arrays() int {
	switch j.mode {
	case Aggregate:
		return 0
	case TwoPhase:
		return 2 + j.states
	}
	return 1 + j.states
}

func (j *Job) tensorName(t int) string { return j.names[t] }

// checkHyper tells whether live hyper-parameters can be used: they must not need more state than the job was made with.
func (j *Job) checkHyper(h optim.Hyper) error {
	if err := j.rule.Check(h); err != nil {
		return err
	}
	if j.rule.States(h) > j.states {
		return fmt.Errorf("%v with momentum %v needs %d state arrays, the job was made with %d: make it with a momentum", j.rule, h.Momentum, j.rule.States(h), j.states)
	}
	return nil
}

// AddTensors takes the plan's tensors from number first on into the job: memory for them in every lane, on its node.
func (j *Job) AddTensors(ctx context.Context, plan *chunk.Plan, first int, specs []TensorSpec) error {
	if err := j.open(); err != nil {
		return err
	}
	for i := range specs {
		j.names = append(j.names, plan.Tensor(first+i).Name)
	}
	grow := func(a []float64) []float64 { return append(a, make([]float64, plan.NumChunks()-len(a))...) }
	norms := [2][]float64{grow(j.norms[0]), grow(j.norms[1])}
	params, steps := grow(j.paramNorms), grow(j.stepNorms)
	for _, s := range j.shares {
		batch, err := j.layOut(s, plan, first, specs)
		if err != nil {
			return err
		}
		if err := s.lane.Do(ctx, func() { s.add(batch) }); err != nil {
			return err
		}
	}
	// No lane is in a commit here, and the new chunks are not pushed before this returns.
	return j.shares[0].lane.Do(ctx, func() { j.norms, j.paramNorms, j.stepNorms = norms, params, steps })
}

// batch is what one AddTensors brings to a lane.
type batch struct {
	tensors []tensorState
	chunks  []chunkState
	lkeys   [][]uint32
}

func (j *Job) layOut(s *share, plan *chunk.Plan, first int, specs []TensorSpec) (*batch, error) {
	b := &batch{}
	var bytes uint64
	ids := plan.LaneChunks(s.lane.index)
	for _, lt := range plan.LaneTensors(s.lane.index) {
		if int(lt.Tensor) < first {
			continue
		}
		t := plan.Tensor(int(lt.Tensor))
		from, end := plan.TensorChunks(int(lt.Tensor))
		b.tensors = append(b.tensors, tensorState{
			tensor: int(lt.Tensor), first: lt.First, chunks: lt.Chunks, wire: t.DType,
			lrMult: specs[int(lt.Tensor)-first].LRMult, wdMult: specs[int(lt.Tensor)-first].WDMult,
			globalFirst: from, globalEnd: end, hyper: j.hyper,
		})
		for i := lt.First; i < lt.First+lt.Chunks; i++ {
			c := plan.Chunk(int(ids[i]))
			b.chunks = append(b.chunks, chunkState{
				memory: bytes, elems: uint32(c.Elems), laneTensor: uint32(len(b.tensors) - 1), global: ids[i], fold: noFold,
				offset: c.Offset * uint64(t.DType.Size()),
			})
			bytes += uint64(j.arrays()) * j.stride(uint32(c.Elems))
		}
	}
	for range j.pds {
		b.lkeys = append(b.lkeys, make([]uint32, len(b.chunks)))
	}
	if bytes == 0 {
		for i := range b.chunks {
			b.chunks[i].memory = 0
		}
		return b, nil
	}
	r, err := j.allocate(parameterRegion, s.lane, "parameters", int64(bytes), verbs.AccessLocalWrite, false)
	if err != nil {
		return nil, err
	}
	for i := range b.chunks {
		b.chunks[i].memory += r.addr()
		for nic := range b.lkeys {
			b.lkeys[nic][i] = r.mrs[nic].LKey
		}
	}
	return b, nil
}

// add appends a batch; on the lane's goroutine.
func (s *share) add(b *batch) {
	base := len(s.tensors)
	for i := range b.chunks {
		b.chunks[i].laneTensor += uint32(base)
	}
	s.tensors = append(s.tensors, b.tensors...)
	s.chunks = append(s.chunks, b.chunks...)
	for nic := range b.lkeys {
		s.lkeys[nic] = append(s.lkeys[nic], b.lkeys[nic]...)
	}
	s.folds.resize(min(len(s.chunks), s.job.workers*s.job.window), s.job.workers)
	// Everything that can wait is a held message: no queue of them ever grows beyond this.
	s.ready = append(make([]int32, 0, len(s.folds.folds)), s.ready...)
	s.deferred = append(make([]message, 0, s.job.workers*s.job.window), s.deferred...)
	for _, c := range s.conns {
		if c != nil {
			c.dst = append(c.dst, make([]destination, len(b.tensors))...)
			c.hyperSum = append(c.hyperSum, make([]uint32, len(b.tensors))...)
			c.asked = append(c.asked, make([]bool, len(b.chunks))...)
		}
	}
}

// fail ends the job with its first failure. Any goroutine.
func (j *Job) fail(rank int, err error) {
	if j.failure.CompareAndSwap(nil, &Failure{rank, err}) {
		close(j.failed)
		for _, s := range j.shares {
			s.lane.notify()
		}
	}
}

// Fail ends the job because of what the control plane saw of a worker; rank -1: because of no worker.
func (j *Job) Fail(rank int, err error) { j.fail(rank, err) }

// Failed is closed when the job has failed.
func (j *Job) Failed() <-chan struct{} { return j.failed }

// Failure is why the job failed; nil while it has not.
func (j *Job) Failure() *Failure { return j.failure.Load() }

// notifyLanes wakes the job's other lanes.
func (j *Job) notifyLanes(but *Lane) {
	for _, s := range j.shares {
		if s.lane != but {
			s.lane.wake()
		}
	}
}

// end stops a failed job's traffic in a lane: the workers that live are told, the rest is ignored.
func (s *share) end() {
	s.ended = true
	rank := uint32(chunk.IndexMask)
	if f := s.job.failure.Load(); f.Rank >= 0 {
		rank = uint32(f.Rank)
	}
	for _, c := range s.conns {
		if c != nil && !c.dead && c.ring.free() > 0 && planted != plantSilentFailure {
			c.control(chunk.Pack(chunk.OpAbort, 0, rank))
		}
	}
	s.lane.local.FoldsOpen -= uint64(s.open)
	s.open = 0
}

// Close ends the job and frees what it held. The workers' queue pairs fail. No other call may be under way; those that come
// later fail with ErrClosed.
func (j *Job) Close() error {
	j.mu.Lock()
	if j.closed {
		j.mu.Unlock()
		return nil
	}
	j.closed = true
	j.mu.Unlock()
	j.fail(noRank, ErrClosed)
	var errs []error
	for _, s := range j.shares {
		release := func() { errs = append(errs, s.close()) }
		if s.lane.Do(context.Background(), release) != nil {
			release() // the lane has ended
		}
	}
	for _, r := range j.regions {
		errs = append(errs, r.close())
	}
	for _, pd := range j.pds {
		errs = append(errs, pd.Close())
	}
	return errors.Join(errs...)
}

// open refuses work on a job that was closed.
func (j *Job) open() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.closed {
		return fmt.Errorf("job %q: %w", j.name, ErrClosed)
	}
	return nil
}

// close takes the share off its lane.
func (s *share) close() error {
	var errs []error
	s.ended = true
	s.lane.local.FoldsOpen -= uint64(s.open)
	s.open = 0
	for _, c := range s.conns {
		if c != nil {
			errs = append(errs, c.close())
		}
	}
	for i, other := range s.lane.shares {
		if other == s {
			s.lane.shares = append(s.lane.shares[:i], s.lane.shares[i+1:]...)
			break
		}
	}
	for i, other := range s.lane.busy {
		if other == s {
			s.lane.busy = append(s.lane.busy[:i], s.lane.busy[i+1:]...)
			break
		}
	}
	return errors.Join(errs...)
}
