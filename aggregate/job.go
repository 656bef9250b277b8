package aggregate

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rackweave/rackweave/aggregate/optim"
	"github.com/rackweave/rackweave/aggregate/reduce"
	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/policy"
	"github.com/rackweave/rackweave/verbs"
)

// Job is one tenant's aggregation: its workers' connections and, in every lane, its share.
type Job struct {
	name       string
	workers    int
	chunkBytes int
	window     int
	timeouts   timeouts
	memory     memory
	fate       fate
	across     across
	pace       *pace    // mode stream; else nil
	above      *Above   // nil: the rack is alone
	owners     []owners // by lane
	placed     []int64  // by lane: bytes of its chunks
	lanes      []*Lane
	shares     []*share      // by lane
	breaks     []chan Break  // by rank
	left       []atomic.Bool // by rank: in peace, which a lane may not have heard of yet

	mu     sync.Mutex
	closed bool
}

// timeouts are those of an engine's configuration.
type timeouts struct{ peer, link time.Duration }

// complete fills in what follows from the rest, and reports what cannot be.
func (c *JobConfig) complete() error {
	if c.Workers < 1 || c.Workers > MaxWorkers {
		return fmt.Errorf("%d workers: use 1 to %d", c.Workers, MaxWorkers)
	}
	if c.Mode == Aggregate {
		c.Rule = optim.Sum
	} else if c.Rule == optim.Sum {
		return fmt.Errorf("mode %v needs an optimizer: name one, or use mode aggregate", c.Mode)
	} else if c.Rule.NeedsNorms() && c.Mode != TwoPhase {
		return fmt.Errorf("optimizer %v needs whole tensors' norms: use mode two-phase", c.Rule)
	}
	if c.Weight == 0 {
		c.Weight = 1
	}
	if c.Weight < 1 || c.Weight > MaxWeight {
		return fmt.Errorf("weight %d: use 1 to %d", c.Weight, MaxWeight)
	}
	if c.Mode != Stream && c.Policy != (policy.Spec{}) {
		return fmt.Errorf("mode %v runs no policy %v: use mode %v", c.Mode, c.Policy, Stream)
	}
	if c.Above != nil {
		if err := checkAbove(c); err != nil {
			return err
		}
	}
	return c.Rule.Check(c.Hyper)
}

// newJob makes a job without tensors or workers.
func newJob(c JobConfig, lanes []*Lane, devices []*verbs.Device, window int, t timeouts) (*Job, error) {
	if err := c.complete(); err != nil {
		return nil, fmt.Errorf("job %q: %w", c.Name, err)
	}
	j := &Job{
		name: c.Name, workers: c.Workers, chunkBytes: c.ChunkBytes, window: window, timeouts: t, lanes: lanes,
		above: c.Above, memory: memory{job: c.Name}, fate: fate{failed: make(chan struct{})}, left: make([]atomic.Bool, c.Workers),
		placed: make([]int64, len(lanes)),
	}
	j.across.lanes = int64(len(lanes))
	j.fate.notify = func() {
		for _, l := range lanes {
			l.notify()
		}
	}
	for range c.Workers {
		j.breaks = append(j.breaks, make(chan Break, 2*len(lanes)))
	}
	if c.Mode == Stream {
		p, err := newPace(c.Policy, c.Workers, len(lanes), j.later)
		if err != nil {
			return nil, fmt.Errorf("job %q: %w", c.Name, err)
		}
		p.log = c.Decided
		j.pace = p
	}
	for _, d := range devices {
		pd, err := d.AllocPD()
		if err != nil {
			return nil, errors.Join(err, j.Close())
		}
		j.memory.pds = append(j.memory.pds, pd)
	}
	for _, l := range lanes {
		buffers := int64(resultBuffers)
		if j.pace != nil && j.pace.sets {
			buffers += scratchBuffers
		}
		r, err := j.memory.allocate(resultRegion, l.index, l.cfg.Node, buffers*int64(c.ChunkBytes), verbs.AccessLocalWrite, false)
		if err != nil {
			return nil, errors.Join(err, j.Close())
		}
		s := j.newShare(c, l, r)
		if c.Above != nil {
			bytes := int64(sumBuffers(window, c.ChunkBytes)) * int64(sumBufferBytes(c.ChunkBytes))
			r, err := j.memory.allocate(resultRegion, l.index, l.cfg.Node, bytes, verbs.AccessLocalWrite|verbs.AccessRemoteWrite, false)
			if err != nil {
				return nil, errors.Join(err, j.Close())
			}
			s.above = newAbove(&c, l.index, window, l.depths.PeerSend, r)
		}
		j.shares, j.owners = append(j.shares, s), append(j.owners, newOwners(c.Above, l.index))
	}
	for i, l := range lanes {
		if err := l.Do(context.Background(), func() { l.join(j.shares[i]) }); err != nil {
			return nil, errors.Join(err, j.Close())
		}
	}
	return j, nil
}

func (j *Job) newShare(c JobConfig, l *Lane, r *region) *share {
	var scaled *optim.Scalars
	if c.Mode == Aggregate && (c.Hyper.Scale != 1 || c.Hyper.Clip > 0) {
		scalars := optim.Derive(optim.Sum, c.Hyper, 1)
		scaled = &scalars
	}
	sets := j.pace != nil && j.pace.sets
	return &share{
		core: &l.core, name: c.Name, chunkBytes: c.ChunkBytes, linkNS: int64(j.timeouts.link), maps: l.attr.Has(verbs.DevMaps),
		machine: reduce.New(reduce.Config{
			Lane: l.index, Workers: c.Workers, Window: j.window, Sends: l.depths.AggregatorSend, Results: resultBuffers, Mode: c.Mode,
			Norms: c.Rule.NeedsNorms(), Standing: j.pace.standing(),
			Above: c.Above != nil, Root: c.Above.root(),
		}),
		fate: &j.fate, across: &j.across, pace: j.pace, weight: uint64(c.Weight),
		links: make([]*link, c.Workers), breaks: j.breaks, left: j.left, results: newResults(r, c.ChunkBytes),
		store: store{mode: c.Mode, sets: sets, rule: c.Rule, states: c.Rule.States(c.Hyper), hyper: c.Hyper, scaled: scaled},
		wakeLanes: func() {
			for _, other := range j.lanes {
				if other != l {
					other.wake()
				}
			}
		},
	}
}

// AddTensors takes the plan's tensors from number first on into the job: memory for them in every lane, on its node. Lanes get
// to know them once all of it is there.
func (j *Job) AddTensors(ctx context.Context, plan *chunk.Plan, first int, specs []TensorSpec) error {
	if err := j.open(); err != nil {
		return err
	}
	if len(specs) == 0 {
		return nil
	}
	from, _ := plan.TensorChunks(first)
	norms := make([]norms, plan.NumChunks()-from)
	additions := make([]*addition, len(j.shares))
	for i, s := range j.shares {
		var err error
		if additions[i], err = s.store.layOut(plan, i, j.lanes[i].cfg.Node, first, specs, norms, &j.memory,
			&j.owners[i]); err != nil {
			return err
		}
	}
	for i, l := range j.lanes {
		_, bytes := plan.LaneLoad(i)
		l.placed.Add(int64(bytes) - j.placed[i])
		j.placed[i] = int64(bytes)
	}
	j.across.add(norms)
	for i, s := range j.shares {
		if err := j.lanes[i].borrow(ctx, s, func() error { s.add(additions[i]); return nil }); err != nil {
			j.fate.fail(noRank, fmt.Errorf("tensors are known to some lanes only: %w", err))
			return err
		}
	}
	return nil
}

// add takes tensors into the share; its lane leaves it alone meanwhile.
func (s *share) add(a *addition) {
	tensors := make([]reduce.Tensor, len(a.tensors))
	for i := range a.tensors {
		tensors[i] = reduce.Tensor{Name: a.tensors[i].name, Direct: s.store.direct(a.tensors[i].wire)}
	}
	s.store.add(a)
	chunks := make([]reduce.Chunk, len(a.chunks))
	for i := range a.chunks {
		c := &a.chunks[i]
		chunks[i] = reduce.Chunk{Tensor: c.tensor, Bytes: uint32(s.store.wireBytes(c))}
	}
	s.machine.Add(tensors, chunks)
	if s.above != nil {
		s.above.add(a.chunks)
	}
	for _, k := range s.links {
		if k != nil {
			k.dst = append(k.dst, make([]destination, len(a.tensors))...)
			if s.pace != nil {
				k.stream.fit(&s.store)
			}
		}
	}
}

// Memory returns what the job holds.
func (j *Job) Memory() MemoryUse { return j.memory.use() }

// WorkerCounters returns what each worker did, summed over the lanes, by rank.
func (j *Job) WorkerCounters() []WorkerCounters {
	out := make([]WorkerCounters, j.workers)
	for i, l := range j.lanes {
		l.mu.Lock()
		for rank, c := range l.publishedByRank[j.shares[i]] {
			out[rank].add(&c)
		}
		l.mu.Unlock()
	}
	return out
}

// RackCounters returns what there is to do with each rack, summed over the lanes; nothing if the rack is alone.
func (j *Job) RackCounters() []RackCounters {
	if j.above == nil {
		return nil
	}
	out := make([]RackCounters, j.above.Racks)
	for i, l := range j.lanes {
		l.mu.Lock()
		for rack := range out {
			out[rack].add(&j.shares[i].above.published[rack])
		}
		l.mu.Unlock()
	}
	return out
}

// Fail ends the job because of what the control plane saw of a worker; rank -1: because of no worker.
func (j *Job) Fail(rank int, err error) { j.fate.fail(rank, err) }

// Failed is closed when the job has failed.
func (j *Job) Failed() <-chan struct{} { return j.fate.failed }

// Failure is why the job failed; nil while it has not.
func (j *Job) Failure() *Failure { return j.fate.failure.Load() }

// Breaks tells of a worker's connections that broke.
func (j *Job) Breaks(rank int) <-chan Break { return j.breaks[rank] }

// Detach lets go of a worker that has left the job in peace: from here on losing its connection fails nothing. The job can
// finish no more chunks without it.
func (j *Job) Detach(ctx context.Context, rank int) error {
	j.left[rank].Store(true)
	for i, s := range j.shares {
		err := j.lanes[i].do(ctx, s, func() {
			if k := s.links[rank]; k != nil {
				s.leave(k)
			}
		})
		if err != nil {
			return err
		}
	}
	if j.pace != nil {
		return j.pace.finish(rank, j.lanes[0].now())
	}
	return nil
}

// later has every lane do something with its share, unless the job has failed by then. Lanes do what they are told in one order.
func (j *Job) later(f func(s paced)) {
	for i, s := range j.shares {
		l := j.lanes[i]
		l.later(s, func() {
			if s.fate.failure.Load() == nil {
				f(s)
				l.list(s)
			}
		})
	}
}

// SetPolicy lets another policy decide who waits for whom in a job of mode stream, from a step on that no worker has begun. Until
// all have reached it, the old one does.
func (j *Job) SetPolicy(spec policy.Spec) (was policy.Spec, err error) {
	if j.pace == nil {
		return was, fmt.Errorf("job %q: only mode %v has a policy to change", j.name, Stream)
	}
	if was, err = j.pace.change(spec, j.lanes[0].now()); err != nil {
		return was, fmt.Errorf("job %q: %w", j.name, err)
	}
	return was, nil
}

// ReportLoss tells the job's policy the validation loss after an epoch. A synchronous job has no use for it.
func (j *Job) ReportLoss(rank int, loss float64) error {
	if j.pace == nil {
		return nil
	}
	if err := j.pace.loss(rank, loss, j.lanes[0].now()); err != nil {
		return fmt.Errorf("job %q: %w", j.name, err)
	}
	return nil
}

// Now is the clock of the job's times, in ns.
func (j *Job) Now() int64 { return j.lanes[0].now() }

// Policy is the policy that decides now.
func (j *Job) Policy() policy.Spec {
	if j.pace == nil {
		return policy.Spec{}
	}
	j.pace.mu.Lock()
	defer j.pace.mu.Unlock()
	return j.pace.spec
}

// Pace returns how far a worker of a job in mode stream is.
func (j *Job) Pace(rank int) (p Pace, ok bool) {
	if j.pace == nil {
		return Pace{}, false
	}
	return j.pace.look(rank), true
}

// Awaited counts, by rank, the chunks in progress that miss a worker's gradient; of a failed job, those when it failed. since is
// when the oldest of them began, by [Job.Now].
func (j *Job) Awaited(ctx context.Context) (chunks []int, since int64, err error) {
	chunks, since = make([]int, j.workers), j.Now()
	for i, s := range j.shares {
		err := j.lanes[i].borrow(ctx, s, func() error {
			if began := s.machine.Missing(chunks); began != 0 {
				since = min(since, began)
			}
			return nil
		})
		if err != nil {
			return nil, 0, err
		}
	}
	return chunks, since, nil
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
	if j.above != nil {
		j.leavePeers()
	}
	j.fate.fail(noRank, ErrClosed)
	for i, l := range j.lanes {
		l.placed.Add(-j.placed[i])
	}
	var errs []error
	for i, s := range j.shares {
		l := j.lanes[i]
		release := func() { errs = append(errs, l.leave(s)) }
		switch err := l.Do(context.Background(), release); {
		case err == ErrClosed:
			release() // the lane has ended
		case err != nil:
			errs = append(errs, err)
		}
	}
	return errors.Join(append(errs, j.memory.close())...)
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

// leavePeers tells the other racks that this one's workers have left, once all that they wait for has arrived, and waits until
// they know that, or why the job has failed.
func (j *Job) leavePeers() {
	ctx, cancel := context.WithTimeout(context.Background(), j.timeouts.link)
	defer cancel()
	j.flushPeers(ctx, false)
	for i, s := range j.shares {
		if j.fate.failure.Load() == nil {
			_ = j.lanes[i].Do(ctx, func() { s.tellPeers(peerLeft, 0) })
		}
	}
	j.flushPeers(ctx, true)
}

// flushPeers waits until what the other racks are sent has arrived; told: also how the job has ended.
func (j *Job) flushPeers(ctx context.Context, told bool) {
	for i, s := range j.shares {
		for flushed := false; !flushed && ctx.Err() == nil && !j.lanes[i].manual && (told || j.fate.failure.Load() == nil); {
			if j.lanes[i].Do(ctx, func() { flushed = s.flushed(told) }) != nil {
				return
			}
			time.Sleep(time.Millisecond)
		}
	}
}

// checkAbove reports what of a job cannot run over several racks.
func checkAbove(c *JobConfig) error {
	a := c.Above
	if err := a.Check(); err != nil {
		return err
	}
	switch {
	case a.Rack < 0 || a.Rack >= a.Racks || len(a.Names) != a.Racks || len(a.Workers) != a.Racks:
		return fmt.Errorf("rack %d of %d, with %d names and workers in %d", a.Rack, a.Racks, len(a.Names), len(a.Workers))
	case a.Workers[a.Rack] != c.Workers:
		return fmt.Errorf("%d workers in a rack of %d", c.Workers, a.Workers[a.Rack])
	case c.Mode == Stream:
		return errors.New("mode stream runs in one rack: use mode eager, or one aggregator")
	case c.Mode == TwoPhase:
		return errors.New("mode two-phase runs in one rack: use mode eager, or one aggregator")
	case c.Rule != optim.Sum && c.Rule.NeedsNorms():
		return fmt.Errorf("optimizer %v runs in one rack: use another, or one aggregator", c.Rule)
	}
	return nil
}
