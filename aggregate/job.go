package aggregate

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rackweave/rackweave/aggregate/failure"
	"github.com/rackweave/rackweave/aggregate/outer"
	"github.com/rackweave/rackweave/aggregate/pace"
	"github.com/rackweave/rackweave/aggregate/reduce"
	"github.com/rackweave/rackweave/aggregate/shard"
	"github.com/rackweave/rackweave/aggregate/store"
	"github.com/rackweave/rackweave/aggregate/uplink"
	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/codec"
	diloco "github.com/rackweave/rackweave/hierarchy/outer"
	"github.com/rackweave/rackweave/verbs"
)

// Job is one tenant's aggregation: its memory, and a shard in every lane.
type Job struct {
	*failure.Latch
	// Gate runs the policy of a job in mode stream. In other modes it is nil.
	Gate *pace.Gate

	site   site
	shared *shard.Job
	memory *store.Memory
	place  *Place // if nil, the rack is alone
	// firstLane is the number in the plan of the first lane, where the job is spread over several aggregators.
	firstLane int
	shards    []*shard.Shard   // by lane
	uplinks   []*uplink.Uplink // by lane; empty if the rack is alone
	placed    []atomic.Int64   // by lane: bytes of its chunks
	config    JobConfig
	replacing atomic.Bool // the state was replaced in part, and the job has not made a step since

	mu     sync.Mutex
	closed bool
}

// site holds the parts of an engine that a job uses.
type site struct {
	lanes    []*Lane
	scratch  []*shard.Scratch // by lane
	devices  []*verbs.Device
	window   int
	timeouts shard.Timeouts
}

// lossGrace is the time for which a job that is spread over several aggregators waits for a better explanation of a lost worker.
const lossGrace = time.Second

func newJob(c JobConfig, at site) (*Job, error) {
	if err := c.complete(); err != nil {
		return nil, fmt.Errorf("job %q: %w", c.Name, err)
	}
	lanes := at.lanes
	j := &Job{
		site: at, place: c.Place, firstLane: c.Part.Number * len(lanes), config: c, placed: make([]atomic.Int64, len(lanes)),
	}
	notify := func() {
		for _, l := range lanes {
			l.Notify()
		}
	}
	grace := time.Duration(0)
	if c.Part.Several() && !lanes[0].Manual {
		grace = lossGrace
	}
	j.Latch = failure.NewLatch(notify, grace)
	j.shared = &shard.Job{
		Name: c.Name, Workers: c.Workers, ChunkBytes: c.ChunkBytes, Fail: j.Latch,
		Barrier: shard.NewBarrier(len(lanes)), Timeouts: at.timeouts,
		Left: make([]atomic.Bool, c.Workers), Notify: notify,
	}
	if c.Place != nil {
		j.shared.Rack = c.Place.Rack
	}
	for range c.Workers {
		j.shared.Breaks = append(j.shared.Breaks, make(chan shard.Break, 2*len(lanes)))
	}
	if err := j.openLanes(); err != nil {
		return nil, errors.Join(fmt.Errorf("job %q: %w", c.Name, err), j.Close())
	}
	return j, nil
}

func (j *Job) openLanes() (err error) {
	c := &j.config
	if j.memory, err = store.NewMemory(c.Name, j.site.devices); err != nil {
		return err
	}
	if c.Mode == Stream {
		if j.Gate, err = pace.New(c.Policy, c.Workers, len(j.site.lanes), j.later, c.Decided); err != nil {
			return err
		}
		j.shared.Gate = j.Gate
		j.Spare = j.spare
	}
	for i, l := range j.site.lanes {
		s, err := j.openShard(l, j.site.scratch[i])
		if err != nil {
			return err
		}
		j.shards = append(j.shards, s)
		if j.place != nil {
			s.Store.NextOwner = j.place.NextOwner(l.Index)
			u, err := j.raise(s, l, j.site.scratch[i])
			if err != nil {
				return err
			}
			j.uplinks = append(j.uplinks, u)
		}
	}
	for i, l := range j.site.lanes {
		if err := l.Do(context.Background(), j.shards[i].Flow.Enter); err != nil {
			return err
		}
	}
	return nil
}

// openShard makes the job's shard of a lane, with its buffers.
func (j *Job) openShard(l *Lane, scratch *shard.Scratch) (*shard.Shard, error) {
	c := &j.config
	buffers := int64(store.NumBuffers)
	switch {
	case j.Gate != nil:
		buffers += store.ScaledBuffers + store.CopyBuffers
	case len(c.Candidates) > 0:
		buffers += store.ScaledBuffers
	case c.Compress.Down.ID != codec.Raw:
		buffers++ // for a result before it is encoded
	}
	region, err := j.results(l, buffers*int64(c.ChunkBytes), verbs.AccessLocalWrite)
	if err != nil {
		return nil, err
	}
	var rackSum *store.RackSum
	if len(c.Part.RackWorkers) > 1 {
		r, err := j.results(l, c.Part.sumBytes(c.ChunkBytes), verbs.AccessLocalWrite)
		if err != nil {
			return nil, err
		}
		rackSum = store.NewRackSum(c.Part.RackWorkers, c.Part.Pods, c.ChunkBytes, r)
	}
	st := &store.Store{Config: c.storeConfig(), Lane: j.firstLane + l.Index, Index: l.Index, Node: l.Config.Node, Memory: j.memory,
		Replaced: &j.replacing}
	m := reduce.Config{
		Lane: l.Index, Workers: c.Workers, Window: j.site.window, Sends: l.Depths.AggregatorSend, Results: store.NumBuffers,
		Mode: c.Mode, Norms: c.Rule.NeedsNorms(), Standing: reduce.Alone,
	}
	m.Maps = c.Place == nil && l.Attr.Has(verbs.DevMaps)
	if j.Gate != nil {
		m.Standing = j.Gate.Standing()
	}
	if c.Place != nil {
		m.Above, m.RootWorker = true, c.Place.RootWorker()
	}
	if c.Outer != (diloco.Optimizer{}) {
		m.Inner = func(index uint32) bool { return outer.Local(c.Outer, &st.Chunks[index]) }
	}
	return shard.New(shard.Config{Job: j.shared, Lane: l, Scratch: scratch, Store: st, RackSum: rackSum}, m, region, c.Weight), nil
}

// spare takes out a lost worker if the job's policy can do without it. It reports whether the policy can.
func (j *Job) spare(rank int, err error) bool {
	spared, first := j.Gate.Lose(rank, j.Now())
	if first {
		j.shared.Left[rank].Store(true)
		if j.config.Lost != nil {
			go j.config.Lost(rank, err)
		}
	}
	return spared
}

func (j *Job) results(l *Lane, bytes int64, access verbs.Access) (*store.Region, error) {
	return j.memory.Allocate(store.Results, l.Index, l.Config.Node, bytes, access, false)
}

func (j *Job) raise(s *shard.Shard, l *Lane, scratch *shard.Scratch) (*uplink.Uplink, error) {
	c, st := &j.config, s.Store
	bytes := uplink.BuffersBytes(j.site.window, c.ChunkBytes, c.Place)
	region, err := j.results(l, bytes, verbs.AccessLocalWrite|verbs.AccessRemoteWrite)
	if err != nil {
		return nil, err
	}
	k := &scratch.Arithmetic
	u := uplink.New(uplink.Config{
		Place: c.Place, Lane: l, Fail: j.Latch, Shard: s, Machine: s.Machine, Reduction: j.reduction(s, k), Store: st,
		Arithmetic: k, Region: region, Window: j.site.window, ChunkBytes: c.ChunkBytes,
	})
	st.TempChunk = u.TempChunk()
	s.Uplink = u
	return u, nil
}

func (j *Job) reduction(s *shard.Shard, k *store.Arithmetic) uplink.Reduction {
	c := &j.config
	base := uplink.BaseReduction{Place: c.Place, K: k, Store: s.Store}
	switch {
	case c.Outer != diloco.Optimizer{}:
		return outer.New(c.Outer, c.Place.Rack, c.Workers, c.total(), k, s.Store)
	case c.Mode == Aggregate:
		return &uplink.AggregateReduction{BaseReduction: base}
	case c.Mode == TwoPhase:
		return &uplink.TwoPhaseReduction{BaseReduction: base, Epoch: s.Machine.CommitEpoch}
	}
	return &uplink.EagerReduction{BaseReduction: base}
}

// stagedSparse is the number of sparse tensors for which workers have staging buffers by reference, four for each.
const stagedSparse = 32

// checkSparse returns an error if workers or racks have no room for all sparse tensors. A worker keeps four messages of its window
// for each, and each has a slot of its own at other racks.
func (j *Job) checkSparse(plan *chunk.Plan) error {
	sparse, most := 0, min(j.site.window/4, stagedSparse)
	if j.place != nil {
		most = min(most, uplink.MostSparse(j.site.window, j.shared.ChunkBytes))
	}
	for t := range plan.NumTensors() {
		if plan.Tensor(t).Width > 0 {
			sparse++
		}
		if sparse > most {
			return fmt.Errorf("sparse tensor %q is number %d, and with a window of %d job %q has room for %d: use one tensor for several "+
				"tables", plan.Tensor(t).Name, sparse, j.site.window, j.shared.Name, most)
		}
	}
	return nil
}

// AddTensors adds the plan's tensors to the job, from number first on. It allocates their memory in every lane, on the lane's node.
// Lanes receive the tensors when all memory is allocated.
func (j *Job) AddTensors(ctx context.Context, plan *chunk.Plan, first int, specs []TensorSpec) error {
	if err := j.open(); err != nil {
		return err
	}
	if len(specs) == 0 {
		return nil
	}
	for i := range specs {
		if err := j.config.CheckTensor(plan.Tensor(first+i), specs[i].Standard); err != nil {
			return err
		}
	}
	if err := j.checkSparse(plan); err != nil {
		return err
	}
	from, _ := plan.TensorChunks(first)
	norms := make([]store.Norms, plan.NumChunks()-from)
	additions := make([]*store.Addition, len(j.shards))
	for i, s := range j.shards {
		var err error
		if additions[i], err = s.Store.LayOut(plan, first, specs, norms); err != nil {
			return err
		}
	}
	for i, a := range additions {
		j.placed[i].Add(a.Bytes)
		j.site.lanes[i].Placed.Add(a.Bytes)
	}
	j.shared.Barrier.Add(norms)
	for i, s := range j.shards {
		if err := s.Flow.Borrow(ctx, func() error { s.Add(additions[i]); return nil }); err != nil {
			j.Fail(noRank, fmt.Errorf("tensors are known to some lanes only: %w", err))
			return err
		}
	}
	return nil
}

// Memory returns the memory that the job holds.
func (j *Job) Memory() MemoryUse { return j.memory.Use() }

// WorkerCounters returns each worker's counters, summed over the lanes, by rank.
func (j *Job) WorkerCounters() []WorkerCounters {
	out := make([]WorkerCounters, j.shared.Workers)
	for _, s := range j.shards {
		s.WorkerCounters(out)
	}
	return out
}

// ReadGauges returns the measurements since the last call, about so many tensors: of each worker, by rank, and what each candidate
// would lose of gradients, by tensor and candidate. A controller chooses the job's codecs by them.
func (j *Job) ReadGauges(ctx context.Context, tensors int) (workers []WorkerGauge, tries []TensorGauge, err error) {
	workers, tries = make([]WorkerGauge, j.shared.Workers), make([]TensorGauge, tensors*len(j.config.Candidates))
	for rank := range workers {
		workers[rank].Tensors = make([]TensorGauge, tensors)
	}
	for _, s := range j.shards {
		if err := s.Flow.Do(ctx, func() error { s.ReadGauges(workers, tries); return nil }); err != nil {
			return nil, nil, err
		}
	}
	return workers, tries, nil
}

// Rows returns the sparse tensors of this aggregator, in their order.
func (j *Job) Rows(ctx context.Context) ([]*RowStatus, error) {
	all := map[int]*RowStatus{}
	for _, s := range j.shards {
		if err := s.Flow.Borrow(ctx, func() error { shard.AddRows(s, all); return nil }); err != nil {
			return nil, err
		}
	}
	return slices.SortedFunc(maps.Values(all), func(a, b *RowStatus) int { return a.Tensor - b.Tensor }), nil
}

// Breaks returns a channel of a worker's connections that broke.
func (j *Job) Breaks(rank int) <-chan shard.Break { return j.shared.Breaks[rank] }

// Now returns the time of the job's clock, in ns.
func (j *Job) Now() int64 { return j.site.lanes[0].Now() }

// Detach closes the connections of a worker that has left the job in peace. Their loss fails nothing afterwards. The job cannot
// finish further chunks without the worker.
func (j *Job) Detach(ctx context.Context, rank int) error {
	j.shared.Left[rank].Store(true)
	for _, s := range j.shards {
		if err := s.Flow.Do(ctx, func() error { s.Workers.Leave(rank); return nil }); err != nil {
			return err
		}
	}
	if j.Gate != nil {
		return j.Gate.Finish(rank, j.Now())
	}
	return nil
}

// later queues f on every lane, in the same order on each. A lane skips it if the job has failed.
func (j *Job) later(f func(pace.Shard)) {
	for _, s := range j.shards {
		s.Flow.Later(func() {
			if s.Failure() == nil {
				f(s.Stream())
				s.Flow.Schedule()
			}
		})
	}
}

// Awaited counts, by rank, the chunks in progress without the worker's gradient. If it finds no such chunk, it counts the lanes
// without the worker's commit, because a worker commits once its gradients are answered. For a failed job, it counts the chunks in
// progress at the failure. since is the time at which the oldest of them began, by [Job.Now].
func (j *Job) Awaited(ctx context.Context) (chunks []int, since int64, err error) {
	chunks, since = make([]int, j.shared.Workers), j.Now()
	commits := make([]int, j.shared.Workers)
	for _, s := range j.shards {
		err := s.Flow.Borrow(ctx, func() error {
			if began := s.Machine.Missing(chunks, commits); began != 0 {
				since = min(since, began)
			}
			return nil
		})
		if err != nil {
			return nil, 0, err
		}
	}
	if slices.Max(chunks) == 0 {
		chunks = commits
	}
	return chunks, since, nil
}

// notifyTime bounds the time in which a failed job's workers receive the failure.
const notifyTime = 500 * time.Millisecond

// Close ends the job and frees its memory. The workers' queue pairs fail. Other calls must have returned; later calls fail with
// ErrClosed.
func (j *Job) Close() error {
	if !j.shut() {
		return nil
	}
	return errors.Join(j.end(), j.memory.Close())
}

func (j *Job) open() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.closed {
		return fmt.Errorf("job %q: %w", j.shared.Name, ErrClosed)
	}
	return nil
}

// shut closes the job for calls, and reports whether it was open.
func (j *Job) shut() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	was := j.closed
	j.closed = true
	return !was
}

func (j *Job) end() error {
	if len(j.uplinks) == len(j.site.lanes) {
		j.leavePeers()
	}
	if j.Failure() != nil { // a C program learns of the failure from the notice alone
		ctx, cancel := context.WithTimeout(context.Background(), notifyTime)
		j.await(ctx, func(lane int) bool { return j.shards[lane].Workers.Notified() })
		cancel()
	}
	j.Fail(noRank, ErrClosed)
	var errs []error
	for i, s := range j.shards {
		release := func() { errs = append(errs, s.Close()) }
		switch err := j.site.lanes[i].Do(context.Background(), release); {
		case err == ErrClosed:
			release() // the lane has ended
		case err != nil:
			errs = append(errs, err)
		}
	}
	for i, l := range j.site.lanes {
		l.Placed.Add(-j.placed[i].Swap(0))
	}
	return errors.Join(errs...)
}

// leavePeers announces to the other racks that this rack's workers have left, once every message that they wait for has arrived. It
// waits until the racks have received the announcement, or the reason for the job's failure.
func (j *Job) leavePeers() {
	ctx, cancel := context.WithTimeout(context.Background(), j.shared.Timeouts.Link)
	defer cancel()
	j.await(ctx, func(lane int) bool { return j.Failure() != nil || j.uplinks[lane].Links.Flushed(false) })
	for i, u := range j.uplinks {
		if j.Failure() == nil {
			_ = j.site.lanes[i].Do(ctx, u.Links.Leave)
		}
	}
	j.await(ctx, func(lane int) bool { return j.uplinks[lane].Links.Flushed(true) })
}

// await waits until a condition of the job holds in every lane. It does not wait for manual lanes, or for shards that have
// panicked.
func (j *Job) await(ctx context.Context, holds func(lane int) bool) {
	for i, s := range j.shards {
		for held := j.site.lanes[i].Manual; !held; {
			if j.site.lanes[i].Do(ctx, func() { held = s.Flow.Dead() || holds(i) }) != nil {
				break // the lane has ended, or the time has passed
			}
			if !held {
				time.Sleep(time.Millisecond)
			}
		}
	}
}
