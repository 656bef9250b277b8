package shard

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rackweave/rackweave/aggregate/failure"
	"github.com/rackweave/rackweave/aggregate/lane"
	"github.com/rackweave/rackweave/aggregate/pace"
	"github.com/rackweave/rackweave/aggregate/reduce"
	"github.com/rackweave/rackweave/aggregate/store"
	"github.com/rackweave/rackweave/cgo/kernel"
	"github.com/rackweave/rackweave/verbs"
)

// ErrStale is returned for an attempt to resume after a later attempt.
var ErrStale = errors.New("stale attempt")

// Job holds the values that a job's shards share.
type Job struct {
	Name       string
	Workers    int
	ChunkBytes int
	Rack       int // index of the shards' rack among the job's
	Fail       *failure.Latch
	Barrier    *Barrier
	Gate       *pace.Gate // in mode stream; otherwise nil
	Timeouts   Timeouts
	Breaks     []chan Break  // by rank
	Left       []atomic.Bool // by rank: the worker has left in peace, although a lane may not have received that yet
	Notify     func()        // makes the job's lanes check the barrier
}

// Timeouts bounds the time in which a worker must connect, and the time in which a broken connection must resume.
type Timeouts struct{ Peer, Link time.Duration }

// Break is a connection that waits for its worker to resume it.
type Break struct {
	Lane    int
	Attempt uint64 // of the worker's last [chunk.Resume] of the lane
}

// Uplink reduces a shard's chunks with those of other racks.
type Uplink interface {
	// Add adds chunks to the lane's.
	Add(chunks []store.Chunk)
	// HandUp takes a complete chunk.
	HandUp(a *reduce.Action)
	// Deliver makes a chunk's result, or its initial values, the rack's own, writes it to every output, and frees its buffer.
	Deliver(index uint32, broadcast bool, outs []uint64, pastCache bool)
	// MergeRows merges rows of the workers' messages as [store.Arithmetic.MergeRows] does: above the rack it adds them to the block of
	// sums that goes up.
	MergeRows(t *store.Tensor, src []kernel.RowSource, from, to uint32, block uint64, fresh bool) (at uint32, full bool, wrong int)
	// Exchange passes the norms of a commit between the racks, and then the lanes' barrier.
	Exchange()
	// Refresh gives all racks the parameters that a commit changed, unless it is skipped.
	Refresh(skip bool)
	// Pending and Advance are those of lane.Tenant.
	Pending() bool
	Advance() bool
	// Tick looks for a stall. It reports whether chunks are under way, and whether they make progress.
	Tick(counted bool) (open, moving bool)
	// End announces to the other racks that the job has failed because of a worker.
	End(rank int)
	Publish()
}

// Config places a shard.
type Config struct {
	Job     *Job
	Lane    *lane.Lane
	Scratch *Scratch
	Store   *store.Store
	RackSum *store.RackSum // if workers of several racks send gradients here; otherwise nil
}

// Shard is one job's part of one lane.
type Shard struct {
	Config
	Workers Workers
	Machine *reduce.Machine // decides
	Flow    *lane.Flow      // the shard's place in its lane
	Uplink  Uplink          // of a job in one rack it does nothing

	maps    bool // the transport maps the workers' memory, so that results can be written there
	buffers store.Buffers
	rows    rows          // of sparse tensors
	stream  *stream       // in mode stream; otherwise nil
	tries   []TensorGauge // what candidates would lose of gradients, by tensor and candidate
	trace   *trace        // if nil, no event is kept

	target    int64        // count of the barrier for which this lane waits
	commit    store.Commit // the commit under way
	deferred  uint64       // number of the machine's deferrals that are counted already
	published published
}

type published struct {
	mu      sync.Mutex
	workers []WorkerCounters
}

// New makes a shard of a job in one rack. r has room for [store.NumBuffers] chunks, in mode stream or with candidates for
// [store.ScaledBuffers] more, in mode stream for [store.CopyBuffers] behind them, and with compressed answers for one more.
func New(c Config, m reduce.Config, r *store.Region, weight int) *Shard {
	s := &Shard{
		Config: c, maps: c.Lane.Attr.Has(verbs.DevMaps), Machine: reduce.New(m),
		buffers:   store.NewBuffers(r, uint64(c.Job.ChunkBytes), store.NumBuffers),
		published: published{workers: make([]WorkerCounters, c.Job.Workers)},
	}
	s.Workers = Workers{s, make([]*link, c.Job.Workers)}
	s.Uplink = noUplink{s}
	s.rows = rows{Shard: s, mode: m.Mode}
	if c.Job.Gate != nil {
		s.stream = &stream{Shard: s, drift: drift{copied: s.buffers.Addr(store.NumBuffers + store.ScaledBuffers), reads: followEvery}}
	}
	s.Flow = c.Lane.Join(s, weight)
	return s
}

// Recover resumes broken connections whose workers have returned. It reports whether others are still broken.
func (s *Shard) Recover() (broken bool) { return s.Workers.Recover() }

// Add takes tensors into the shard.
func (s *Shard) Add(a *store.Addition) {
	tensors := make([]reduce.Tensor, len(a.Tensors))
	for i := range a.Tensors {
		t := &a.Tensors[i]
		tensors[i] = reduce.Tensor{Name: t.Name, Direct: s.Store.DirectFor(t.Wire)}
		if t.Rows != nil {
			tensors[i].Rows, tensors[i].First, tensors[i].MergeMost = t.Rows.Count, t.Rows.First, store.MergeMost
			s.rows.add(t.Rows)
		}
	}
	s.Store.Add(a)
	s.tries = append(s.tries, make([]TensorGauge, len(a.Tensors)*len(s.Store.Candidates))...)
	chunks := make([]reduce.Chunk, len(a.Chunks))
	for i := range a.Chunks {
		c := &a.Chunks[i]
		chunks[i] = reduce.Chunk{Tensor: c.Tensor, Bytes: uint32(s.Store.WireBytes(c))}
	}
	s.Machine.Add(tensors, chunks)
	s.Uplink.Add(a.Chunks)
	for _, k := range s.Workers.links {
		if k != nil {
			k.dst = append(k.dst, make([]destination, len(a.Tensors))...)
			k.gauge.fit(s.Store)
			if s.stream != nil {
				k.stream.fit(s.Store)
			}
		}
	}
}

// WorkerCounters holds the counters of one worker in one lane.
type WorkerCounters struct {
	RecvBytes, SentBytes uint64
	Up, Down             store.Coding // of a job with codecs: its gradients, and the answers to it
	reduce.WorkerStats
}

// Publish copies the counters for other goroutines, and adds the gauges to c.
func (s *Shard) Publish(c *lane.Counters) {
	c.FoldsOpen += uint64(s.Machine.Open())
	c.Deferred += s.Machine.Deferred - s.deferred
	s.deferred = s.Machine.Deferred
	s.published.mu.Lock()
	for rank, k := range s.Workers.links {
		if k == nil {
			continue
		}
		c.SlotsHeld += uint64(s.Machine.Held(rank))
		k.counters.WorkerStats = s.Machine.Stats(rank)
		s.published.workers[rank] = k.counters
	}
	s.published.mu.Unlock()
	s.Uplink.Publish()
}

// WorkerCounters adds the counters that were published last to out, by rank. Any goroutine may call it.
func (s *Shard) WorkerCounters(out []WorkerCounters) {
	s.published.mu.Lock()
	defer s.published.mu.Unlock()
	for rank := range out {
		c, o := &out[rank], &s.published.workers[rank]
		c.RecvBytes += o.RecvBytes
		c.SentBytes += o.SentBytes
		c.Up.Add(&o.Up)
		c.Down.Add(&o.Down)
		c.Chunks += o.Chunks
		c.LastArrivals += o.LastArrivals
		c.LatenessNS += o.LatenessNS
	}
}

// Failure returns the error of the job's failure, or nil.
func (s *Shard) Failure() error {
	if f := s.Job.Fail.Failure(); f != nil {
		return f.Err
	}
	return nil
}

// Fail ends the job.
func (s *Shard) Fail(err error) { s.Job.Fail.Fail(failure.NoRank, err) }

// End stops the job's traffic in this lane. It notifies the live workers and the other racks, and ignores further messages.
func (s *Shard) End() {
	blame := s.Job.Fail.Failure().Rank
	s.Machine.End(blame)
	s.CarryOut()
	s.Uplink.End(blame)
}

// Close drops the shard's connections and takes it off the lane. It is called on the lane's goroutine.
func (s *Shard) Close() error {
	err := s.Flow.Leave()
	if !s.Flow.Dead() {
		s.Machine.End(failure.NoRank)
	}
	return err
}

// Owns reports whether a chunk's optimizer runs in this rack.
func (s *Shard) Owns(c *store.Chunk) bool { return int(c.Owner) == s.Job.Rack }

// ReachBarrier announces this lane at the next barrier of the job's lanes.
func (s *Shard) ReachBarrier() {
	var all bool
	if s.target, all = s.Job.Barrier.reach(); all {
		s.Job.Notify()
	}
}

// release removes a holder of a result buffer, if it is one.
func (s *Shard) release(buffer int32) {
	if buffer != store.NoBuffer && s.buffers.Release(buffer) {
		s.Machine.Freed()
	}
}

// noUplink is the uplink of a job in one rack, whose machine hands nothing up.
type noUplink struct{ s *Shard }

func (noUplink) Add([]store.Chunk)     {}
func (noUplink) HandUp(*reduce.Action) { panic("shard: a chunk was handed up in a job of one rack") }
func (noUplink) Deliver(uint32, bool, []uint64, bool) {
	panic("shard: a result came to a job of one rack")
}
func (u noUplink) MergeRows(t *store.Tensor, src []kernel.RowSource, from, to uint32, at uint64, fresh bool) (uint32, bool, int) {
	return u.s.Scratch.MergeRows(t, src, from, to, at, fresh)
}
func (u noUplink) Exchange()                   { u.s.ReachBarrier() }
func (noUplink) Refresh(bool)                  { panic("shard: a refresh in a job of one rack") }
func (noUplink) Pending() bool                 { return false }
func (noUplink) Advance() bool                 { return false }
func (noUplink) Tick(bool) (open, moving bool) { return false, false }
func (noUplink) End(int)                       {}
func (noUplink) Publish()                      {}

// Scratch holds memory that one lane's shards share, because they run one after the other.
type Scratch struct {
	store.Arithmetic
	reader  recordReader
	message reduce.Message
	src     [MaxWorkers]uint64
	forms   [MaxWorkers]uint64
	outs    [MaxWorkers]uint64
	targets targets
	sample  int
}

// MaxWorkers is the largest number of workers of a job.
const MaxWorkers = 1024

// NewScratch returns the scratch memory of a lane, with the widest kernels of this processor.
func NewScratch() (*Scratch, error) {
	isa, err := kernel.Default()
	if err != nil {
		return nil, err
	}
	return &Scratch{Arithmetic: store.Arithmetic{ISA: isa}}, nil
}

// sources returns a list of n gradients to be set.
func (c *Scratch) sources(n int) sources {
	return sources{Sources: kernel.Sources{Addr: c.src[:n], Form: c.forms[:n]}}
}

// timed reports whether a chunk is the one of its sample that is timed.
func (c *Scratch) timed() bool {
	c.sample = (c.sample + 1) % lane.SampleEvery
	return c.sample == 1
}
