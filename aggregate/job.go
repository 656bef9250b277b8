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
	"github.com/rackweave/rackweave/hierarchy"
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
	pace       *pace  // mode stream; else nil
	above      *Above // nil: the rack is alone
	part       Part
	firstLane  int      // of the plan's, where the job is spread over several aggregators
	owners     []owners // by lane
	placed     []int64  // by lane: bytes of its chunks
	lanes      []*Lane
	shares     []*share        // by lane
	come       []atomic.Uint32 // by fragment, to how many meetings the rack has come, where racks may miss some; else nil
	breaks     []chan Break    // by rank
	left       []atomic.Bool   // by rank: in peace, which a lane may not have heard of yet
	moves      moves
	replaced   atomic.Bool // the state was replaced in part, and no step made since
	closing    func()      // nil: nobody is to know

	tracing sync.Mutex // of what Traced keeps in shares

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
	if err := checkPart(c); err != nil {
		return err
	}
	if err := checkOuter(c); err != nil {
		return err
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
		placed: make([]int64, len(lanes)), part: c.Part,
		firstLane: c.Part.Number * len(lanes),
	}
	if c.Part.Several() && !lanes[0].manual {
		j.fate.patience = lossPatience
	}
	j.across.lanes = int64(len(lanes))
	j.moves.open(len(lanes))
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
		s, err := j.openShare(c, l)
		if err != nil {
			return nil, errors.Join(err, j.Close())
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

// openShare makes the job's share of a lane, with its buffers.
func (j *Job) openShare(c JobConfig, l *Lane) (*share, error) {
	buffers := int64(resultBuffers)
	if j.pace != nil && j.pace.sets {
		buffers += scratchBuffers
	}
	r, err := j.memory.allocate(resultRegion, l.index, l.cfg.Node, buffers*int64(c.ChunkBytes), verbs.AccessLocalWrite, false)
	if err != nil {
		return nil, err
	}
	s := j.newShare(c, l, r)
	if c.Above != nil {
		bytes := sumsBytes(j.window, c.ChunkBytes, c.Above.Racks, c.Above.Buddies)
		r, err := j.memory.allocate(resultRegion, l.index, l.cfg.Node, bytes, verbs.AccessLocalWrite|verbs.AccessRemoteWrite, false)
		if err != nil {
			return nil, err
		}
		s.above = newAbove(&c, l.index, j.window, l.depths.PeerSend, r)
		s.quorum = j.openQuorum(&c, l)
		s.store.above, s.store.scratch = c.Above, s.above.sums.spare(c.Above.Racks)
	}
	if len(c.Part.Racks) > 1 {
		r, err := j.memory.allocate(resultRegion, l.index, l.cfg.Node, c.Part.need(c.ChunkBytes), verbs.AccessLocalWrite, false)
		if err != nil {
			return nil, err
		}
		s.byRack = newByRack(&c.Part, c.ChunkBytes, r.addr())
	}
	return s, nil
}

// openQuorum makes a lane's part in meetings that racks may miss; nil: all come to all.
func (j *Job) openQuorum(c *JobConfig, l *Lane) *quorum {
	if c.Outer.Quorum == 0 {
		return nil
	}
	var d *desk
	if l.index == 0 {
		d, j.come = newDesk(c, j.spread), make([]atomic.Uint32, max(c.Outer.Fragments, 1))
	}
	return newQuorum(c, d, j.come, j.window, func(fragment int) {
		j.atDesk(func(d *desk) { d.put(noticeCome, uint32(fragment)) })
	})
}

// spread has all lanes but the first hear words.
func (j *Job) spread(words []hierarchy.Word) {
	for i, l := range j.lanes[1:] {
		s := j.shares[1+i]
		l.later(s, func() {
			if s.fate.failure.Load() == nil {
				s.hear(words)
				l.list(s)
			}
		})
	}
}

// atDesk does something at the job's desk; on any goroutine.
func (j *Job) atDesk(f func(*desk)) {
	l, s := j.lanes[0], j.shares[0]
	l.later(s, func() {
		if s.fate.failure.Load() == nil {
			f(s.quorum.desk)
			l.list(s)
		}
	})
}

func (j *Job) newShare(c JobConfig, l *Lane, r *region) *share {
	var scaled *optim.Scalars
	if c.Mode == Aggregate && (c.Hyper.Scale != 1 || c.Hyper.Clip > 0) {
		scalars := optim.Derive(optim.Sum, c.Hyper, 1)
		scaled = &scalars
	}
	sets := j.pace != nil && j.pace.sets
	s := &share{
		handOver: func(index uint32, to int, a arrival) { j.handOver(place{l.index, index}, to, a) },
		core:     &l.core, name: c.Name, chunkBytes: c.ChunkBytes, linkNS: int64(j.timeouts.link), maps: l.attr.Has(verbs.DevMaps),
		fate: &j.fate, replaced: &j.replaced, across: &j.across, pace: j.pace, weight: uint64(c.Weight),
		links: make([]*link, c.Workers), breaks: j.breaks, left: j.left, results: newResults(r, c.ChunkBytes),
		store: store{mode: c.Mode, sets: sets, rule: c.Rule, states: c.Rule.States(c.Hyper), hyper: c.Hyper, scaled: scaled,
			outer: newOuter(&c)},
		wakeLanes: func() {
			for _, other := range j.lanes {
				if other != l {
					other.wake()
				}
			}
		},
	}
	m := reduce.Config{
		Lane: l.index, Workers: c.Workers, Window: j.window, Sends: l.depths.AggregatorSend, Results: resultBuffers, Mode: c.Mode,
		Norms: c.Rule.NeedsNorms(), Standing: j.pace.standing(), Above: c.Above != nil, Root: c.Above.root(),
	}
	if s.store.outer != nil {
		m.Inner = s.store.stays
	}
	s.machine = reduce.New(m)
	return s
}

// handOver gives a chunk to another lane; on the goroutine of the lane that had it.
func (j *Job) handOver(from place, to int, a arrival) {
	bytes := int64(a.elems) * int64(a.tensor.wire.Size())
	a.index = j.moves.arrived(from, to, bytes)
	j.lanes[from.lane].placed.Add(-bytes)
	j.lanes[to].placed.Add(bytes)
	j.shares[to].arrivals.put(a)
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
		if additions[i], err = s.store.layOut(plan, j.firstLane+i, j.lanes[i].cfg.Node, first, specs, norms, &j.memory,
			&j.owners[i]); err != nil {
			return err
		}
	}
	for i, l := range j.lanes {
		_, bytes := plan.LaneLoad(j.firstLane + i)
		l.placed.Add(int64(bytes) - j.placed[i])
		j.placed[i] = int64(bytes)
	}
	j.across.add(norms)
	for i, s := range j.shares {
		if err := j.lanes[i].borrow(ctx, s, func() error { return s.add(additions[i]) }); err != nil {
			j.fate.fail(noRank, fmt.Errorf("tensors are known to some lanes only: %w", err))
			return err
		}
	}
	j.moves.grow(plan, j.firstLane)
	return nil
}

// add takes tensors into the share; its lane leaves it alone meanwhile.
func (s *share) add(a *addition) error {
	if s.quorum != nil && s.quorum.begun && len(a.chunks) > 0 {
		return errLateTensors
	}
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
	if s.quorum != nil {
		s.quorum.chunks = append(s.quorum.chunks, make([]turning, len(a.chunks))...)
	}
	for _, k := range s.links {
		if k != nil {
			k.dst = append(k.dst, make([]destination, len(a.tensors))...)
			if s.pace != nil {
				k.stream.fit(&s.store)
			}
		}
	}
	return nil
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
	if !j.shut() {
		return nil
	}
	return errors.Join(j.end(), j.memory.close())
}

// shut closes the job for calls, and reports whether it was open.
func (j *Job) shut() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	was := j.closed
	j.closed = true
	return !was
}

// end ends the job in every lane.
func (j *Job) end() error {
	if j.closing != nil {
		j.closing()
	}
	if j.above != nil {
		j.leavePeers()
	}
	if j.Failure() != nil {
		tellWorkers(j.lanes, j.shares)
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
	j.moves.close(j.lanes)
	return errors.Join(errs...)
}

// leavePeers tells the other racks that this one's workers have left, once all that they wait for has arrived, and waits until
// they know that, or why the job has failed.
func (j *Job) leavePeers() {
	ctx, cancel := context.WithTimeout(context.Background(), j.timeouts.link)
	defer cancel()
	j.leaveMeetings(ctx)
	j.flushPeers(ctx, false)
	for i, s := range j.shares {
		if j.fate.failure.Load() == nil {
			_ = j.lanes[i].Do(ctx, func() { s.tellPeers(peerLeft, 0) })
		}
	}
	j.flushPeers(ctx, true)
}

// leaveMeetings tells the leader that the rack's workers have left.
func (j *Job) leaveMeetings(ctx context.Context) {
	if j.come == nil || j.fate.failure.Load() != nil || j.lanes[0].manual {
		return
	}
	_ = j.lanes[0].Do(ctx, func() {
		j.shares[0].quorum.desk.put(noticeLeave, 0)
		j.lanes[0].list(j.shares[0])
	})
}

// flushPeers waits until what the other racks are sent has arrived; told: also how the job has ended.
func (j *Job) flushPeers(ctx context.Context, told bool) {
	await(ctx, j.lanes, j.shares, func(s *share) bool { return !told && j.Failure() != nil || s.flushed(told) })
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

// Away says whether all of the rack's workers wait for those of other racks, and so come to no meeting: a quorum is not waited for
// that cannot come.
func (j *Job) Away(away bool) {
	if j.come == nil {
		return
	}
	what := uint8(noticeBack)
	if away {
		what = noticeAway
	}
	j.atDesk(func(d *desk) { d.put(what, 0) })
}

// checkAbove reports what of a job cannot run over several racks.
func checkAbove(c *JobConfig) error {
	a := c.Above
	if err := a.check(); err != nil {
		return err
	}
	switch {
	case a.Rack < 0 || a.Rack >= a.Racks || len(a.Names) != a.Racks || len(a.Workers) != a.Racks:
		return fmt.Errorf("rack %d of %d, with %d names and workers in %d", a.Rack, a.Racks, len(a.Names), len(a.Workers))
	case a.Workers[a.Rack] != c.Workers:
		return fmt.Errorf("%d workers in a rack of %d", c.Workers, a.Workers[a.Rack])
	case c.Mode == Stream:
		return errors.New("mode stream runs in one rack: use mode eager, or one aggregator")
	case c.Outer.Every > 0 && a.Core == chunk.BF16:
		return fmt.Errorf("racks that meet every %d steps hand up differences, which cross the core in f32 only", c.Outer.Every)
	}
	return checkBuddies(c)
}

// checkPart reports what of a job cannot be spread over several aggregators.
func checkPart(c *JobConfig) error {
	p := &c.Part
	all := 0
	for _, n := range p.Racks {
		all += n
	}
	switch {
	case p.Number < 0 || p.Number >= max(p.Of, 1):
		return fmt.Errorf("part %d of %d", p.Number, p.Of)
	case p.Several() && c.Above != nil:
		return errors.New("aggregators that reduce among themselves share no parts of a job")
	case p.Several() && (c.Mode == Stream || c.Mode == TwoPhase):
		return fmt.Errorf("mode %v runs at one aggregator: use mode eager, or one aggregator", c.Mode)
	case len(p.Racks) > 0 && (all != c.Workers || p.Pods > 1 && len(p.Racks)%p.Pods != 0):
		return fmt.Errorf("%d workers in racks of %v and %d pods", c.Workers, p.Racks, p.Pods)
	}
	return nil
}
