// Package racktest puts an aggregator and C workers into one process, without a control plane. Tests of the data path use it on any
// provider, and so does the simulation.
package racktest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
	"unsafe"

	"github.com/rackweave/rackweave/aggregate"
	"github.com/rackweave/rackweave/aggregate/lane"
	"github.com/rackweave/rackweave/cgo/kernel"
	"github.com/rackweave/rackweave/cgo/worker"
	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/client/lanes"
	"github.com/rackweave/rackweave/codec"
	"github.com/rackweave/rackweave/numa"
	"github.com/rackweave/rackweave/verbs"
)

// Config describes a rack.
type Config struct {
	NICs       []*verbs.Device   // the aggregator's; the lanes are spread over all of them
	Others     [][]*verbs.Device // NICs of further aggregators, over which the job is spread too
	Workers    [][]*verbs.Device // by worker: its NICs; several workers may share them
	AckTimeout time.Duration     // if 0, the contract's default
	Absent     int               // further workers of the job, which never attach
	Shuffle    uint64            // seed of each worker's own order in AllOps; if 0, orders are equal
	FirstRank  int               // rank of the first worker, in a job over several racks
	Core       chunk.DType       // type of sums between racks; if 0, F32
	CoreCodecs codec.Pair        // of what crosses between racks
	Buddies    bool              // owners have buddies, in a job over several racks
	Lanes      int
	Window     int
	MaxConns   int                 // per lane, for all jobs; if 0, len(Workers)
	Engine     *aggregate.Engine   // engine of another rack with equal NICs; if nil, the rack starts its own
	Job        aggregate.JobConfig // its Workers is ignored
	Tensors    []chunk.Tensor
	Standard   bool                       // rows of sparse tensors without a gradient take the rule, too
	Begin      func(*aggregate.Job) error // called before the job has tensors, if not nil
	Memory     chunk.DType                // of the workers' buffers; if 0, F32
	Arena      bool                       // gradients and results in registered memory
	Copy       bool                       // copy ordinary memory through staging buffers, even where a device could reach it
	CacheBytes uint64                     // cache of each worker; results of a larger model are written past it; if 0, unknown
	Staging    int                        // buffers per lane where payloads go by reference; if 0, 8
	Manual     bool                       // nothing runs by itself; the caller calls Lane.Step and Worker.Progress
	Now        func() int64
	Watch      func(func() error) func() error  // as in [aggregate.Config]
	Log        func(format string, args ...any) // receives messages about failovers
	ClockNS    *uint64
}

// Rack is an aggregator and its workers.
type Rack struct {
	Config  Config
	Engine  *aggregate.Engine
	Job     *aggregate.Job
	Plan    *chunk.Plan
	Workers []*Worker
	others  []aggregator
}

// aggregator is one of several over which a job is spread.
type aggregator struct {
	engine *aggregate.Engine
	job    *aggregate.Job
}

// aggregators returns all aggregators of the job.
func (r *Rack) aggregators() []aggregator {
	return append([]aggregator{{r.Engine, r.Job}}, r.others...)
}

// Worker is one worker of the rack.
type Worker struct {
	*lanes.Session
	Rank    int
	Staging []uint64 // by lane: address of the buffers that it sends from
	buffers []buffer // by tensor
	arenas  []*numa.Arena
}

// buffer is a worker's memory for one tensor.
type buffer struct {
	src, dst unsafe.Pointer
	bytes    uint64
}

// Open builds the rack and connects it.
func Open(cfg Config) (r *Rack, err error) {
	if cfg.Memory == 0 {
		cfg.Memory = chunk.F32
	}
	if cfg.Staging == 0 {
		cfg.Staging = 8
	}
	cfg.Job.Workers = len(cfg.Workers) + cfg.Absent
	if cfg.Job.ChunkBytes == 0 {
		cfg.Job.ChunkBytes = chunk.DefaultChunkBytes
	}
	r = &Rack{Config: cfg}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.Close())
		}
	}()
	places := make([]chunk.Lane, cfg.Lanes)
	for i := range places {
		places[i] = chunk.Lane{Core: i}
	}
	if r.Config.MaxConns == 0 {
		r.Config.MaxConns = len(cfg.Workers)
	}
	if r.Engine = cfg.Engine; r.Engine == nil {
		if r.Engine, err = r.start(cfg.NICs); err != nil {
			return r, err
		}
	}
	if n := 1 + len(cfg.Others); n > 1 {
		r.Config.Job.Part.Of, places = n, chunk.Spread(places, n)
	}
	if r.Job, err = r.Engine.NewJob(r.Config.Job); err != nil {
		return r, err
	}
	for i, nics := range cfg.Others {
		if err = r.open(1+i, nics); err != nil {
			return r, err
		}
	}
	if r.Plan, err = chunk.NewPlan(chunk.Config{ChunkBytes: cfg.Job.ChunkBytes, Lanes: places}); err != nil {
		return r, err
	}
	for rank, nics := range cfg.Workers {
		w := &Worker{Rank: rank}
		r.Workers = append(r.Workers, w)
		if err = r.connect(w, nics); err != nil {
			return r, err
		}
	}
	if cfg.Begin != nil {
		if err := cfg.Begin(r.Job); err != nil {
			return r, err
		}
	}
	return r, r.Add(cfg.Tensors)
}

// start starts an engine on NICs.
func (r *Rack) start(nics []*verbs.Device) (*aggregate.Engine, error) {
	cfg := &r.Config
	placed := make([]aggregate.LaneConfig, cfg.Lanes)
	for i := range placed {
		placed[i] = aggregate.LaneConfig{Device: nics[i%len(nics)], NIC: i % len(nics), CPU: -1, Node: -1}
	}
	return aggregate.Start(aggregate.Config{
		Lanes: placed, Window: cfg.Window, MaxConns: cfg.MaxConns, Watch: cfg.Watch, Manual: cfg.Manual,
		Now: cfg.Now,
	})
}

// open opens a further aggregator, with its part of the job.
func (r *Rack) open(number int, nics []*verbs.Device) error {
	e, err := r.start(nics)
	if err != nil {
		return err
	}
	a := aggregator{engine: e}
	c := r.Config.Job
	c.Part.Number = number
	a.job, err = e.NewJob(c)
	r.others = append(r.others, a)
	return err
}

// connect opens the worker's session and attaches it to the job.
func (r *Rack) connect(w *Worker, nics []*verbs.Device) (err error) {
	cfg := &r.Config
	window := r.Engine.Window()
	attr := nics[0].Attr()
	depths, err := lane.QueueDepths(window, 1, attr.MaxQPWR, attr.MaxCQE)
	if err != nil {
		return err
	}
	byReference := cfg.NICs[0].Attr().Has(verbs.DevByReference)
	staging := window
	if byReference {
		staging = cfg.Staging
	}
	ask := control{lanes: cfg.Lanes, nics: len(cfg.NICs), rank: w.Rank, to: &w.Staging}
	var primaries []int
	for i, a := range r.aggregators() {
		ask.jobs = append(ask.jobs, a.job)
		for _, l := range r.Engine.Lanes() {
			primaries = append(primaries, i*len(cfg.NICs)+l.Config.NIC)
		}
	}
	each := 0
	if len(r.others) > 0 {
		each = len(cfg.NICs)
	}
	linkTimeout := cfg.AckTimeout
	if len(nics) > 1 || len(r.Engine.NICs()) > 1 {
		linkTimeout = aggregate.DefaultLinkTimeout
	}
	log := func(format string, args ...any) {
		if cfg.Log != nil {
			cfg.Log("worker %d: "+format, slices.Insert(args, 0, any(w.Rank))...)
		}
	}
	isa, err := kernel.Default()
	if err != nil {
		return err
	}
	w.Session, err = lanes.Open(lanes.Config{
		Name: "worker", Control: ask, Devices: nics, Lanes: primaries, Each: each,
		Worker: worker.Config{
			Rank: uint32(cfg.FirstRank + w.Rank), ChunkBytes: uint32(cfg.Job.ChunkBytes), Window: uint32(window), Staging: uint32(staging),
			ByReference: byReference, AnyMemory: attr.Has(verbs.DevAnyMemory) && !cfg.Copy, ISA: int32(isa), ClockNS: cfg.ClockNS,
			CacheBytes: cfg.CacheBytes, Steps: cfg.Job.Mode == aggregate.Stream, Answers: cfg.answers(),
		},
		SendDepth: depths.WorkerSend, RecvDepth: depths.WorkerRecv,
		AckTimeout: cfg.AckTimeout, LinkTimeout: linkTimeout, ReconnectTimeout: reconnectTimeout, Now: cfg.Now, Log: log,
	})
	if err != nil {
		return err
	}
	return w.Attach(context.Background(), 5*time.Second)
}

// answers returns the kind of the job's answers.
func (c *Config) answers() uint8 {
	switch {
	case c.Job.Compress.Down.ID == codec.Raw:
		return worker.AnswersWhole
	case c.Job.Mode == aggregate.Aggregate:
		return worker.AnswersSums
	}
	return worker.AnswersChanges
}

// Add registers tensors with the job and every worker, and makes the workers' buffers.
func (r *Rack) Add(tensors []chunk.Tensor) error {
	first, firstChunk := r.Plan.NumTensors(), r.Plan.NumChunks()
	if err := r.Plan.Add(tensors); err != nil {
		return err
	}
	specs := make([]aggregate.TensorSpec, len(tensors))
	for i := range specs {
		specs[i] = aggregate.TensorSpec{LRMult: 1, WDMult: 1, Standard: r.Config.Standard}
	}
	for _, a := range r.aggregators() {
		if err := a.job.AddTensors(context.Background(), r.Plan, first, specs); err != nil {
			return err
		}
	}
	descs := make([]worker.Tensor, len(tensors))
	for i, t := range tensors {
		descs[i] = worker.Tensor{Elems: t.Elems, WireType: uint8(t.DType), MemoryType: uint8(r.Config.Memory), Width: t.Width}
	}
	lanes := make([]uint32, r.Plan.NumChunks()-firstChunk)
	for i := range lanes {
		lanes[i] = uint32(r.Plan.Chunk(firstChunk + i).Lane)
	}
	for _, w := range r.Workers {
		if err := w.makeBuffers(tensors, r.Config.Memory, r.Config.Arena); err != nil {
			return err
		}
		if rc := worker.Add(w.C, descs, lanes); rc < 0 {
			return fmt.Errorf("add tensors to worker %d: %d", w.Rank, rc)
		}
		if err := w.compress(r.Config.Job.Compress.Up, first, len(tensors)); err != nil {
			return err
		}
		if m := r.Config.Job.Mode; m == aggregate.Eager || m == aggregate.Stream {
			hyper := r.Config.Job.Rule.Record(r.Config.Job.Hyper)
			for i := range tensors {
				worker.Hyper(w.C, uint32(first+i), &hyper)
			}
		}
	}
	return nil
}

// compress sets the codec of the gradients of n tensors.
func (w *Worker) compress(s codec.Spec, first, n int) error {
	for t := first; s.ID != codec.Raw && t < first+n; t++ {
		if rc := worker.Compress(w.C, uint32(t), worker.Codec{ID: uint8(s.ID), Stochastic: s.Stochastic, Param: s.Param}); rc < 0 {
			return w.Error(rc)
		}
	}
	return nil
}

// makeBuffers makes memory for the tensors' gradients and for their results, each tensor aligned to 64 bytes.
func (w *Worker) makeBuffers(tensors []chunk.Tensor, memory chunk.DType, register bool) error {
	offsets := make([]uint64, len(tensors)+1)
	for i, t := range tensors {
		offsets[i+1] = (offsets[i] + t.Elems*uint64(memory.Size()) + 63) &^ 63
	}
	total := offsets[len(tensors)]
	arena, err := w.allocate(int(2*total), register)
	if err != nil {
		return err
	}
	for i := range tensors {
		w.buffers = append(w.buffers, buffer{
			src: unsafe.Add(arena.Addr(), offsets[i]), dst: unsafe.Add(arena.Addr(), total+offsets[i]), bytes: offsets[i+1] - offsets[i],
		})
	}
	return nil
}

// allocate returns memory, registered or not, that is freed when the rack is closed.
func (w *Worker) allocate(bytes int, register bool) (*numa.Arena, error) {
	if register {
		m, err := w.Allocate("tensors", bytes)
		if err != nil {
			return nil, err
		}
		return m.Arena, nil
	}
	a, err := numa.NewArena(numa.ArenaConfig{Name: "worker", Bytes: int64(bytes), Node: numa.AnyNode})
	if err == nil {
		w.arenas = append(w.arenas, a)
	}
	return a, err
}

// Src returns a tensor's gradient buffer, padded to 64 bytes.
func (w *Worker) Src(t int) []byte {
	return unsafe.Slice((*byte)(w.buffers[t].src), w.buffers[t].bytes)
}

// Dst returns a tensor's result buffer, padded to 64 bytes.
func (w *Worker) Dst(t int) []byte {
	return unsafe.Slice((*byte)(w.buffers[t].dst), w.buffers[t].bytes)
}

// SrcF32 is Src for a rack whose memory type is F32.
func (w *Worker) SrcF32(t int) []float32 { return f32(w.Src(t)) }

// DstF32 is Dst for a rack whose memory type is F32.
func (w *Worker) DstF32(t int) []float32 { return f32(w.Dst(t)) }

func f32(b []byte) []float32 {
	return unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/4)
}

// Op returns an operation on a tensor with the worker's buffers.
func (w *Worker) Op(kind chunk.Op, t int, priority int32) worker.Op {
	b := &w.buffers[t]
	return worker.Op{Src: uintptr(b.src), Dst: uintptr(b.dst), Tensor: uint32(t), Priority: priority, Kind: uint8(kind)}
}

// Error returns the C worker's failure as an error.
func (w *Worker) Error(rc int) error {
	_, text := worker.Failure(w.C)
	return fmt.Errorf("worker %d: %d: %s", w.Rank, rc, text)
}

// Run starts operations and waits for all of them.
func (w *Worker) Run(timeout time.Duration, ops ...worker.Op) error {
	handles := make([]uint64, len(ops))
	if n := worker.Submit(w.C, ops, handles); n != len(ops) {
		return w.Error(n)
	}
	for _, h := range handles {
		if rc := worker.Wait(w.C, h, uint32(timeout.Milliseconds())); rc < 0 {
			return w.Error(rc)
		}
	}
	return nil
}

// CommitStart starts a commit without waiting for it.
func (w *Worker) CommitStart(rec chunk.TensorRecord) (handle uint64, rc int) {
	hyper, flags := rec.Values(), rec.Flags
	rc = worker.Commit(w.C, &hyper, flags&chunk.RecordSkip != 0, flags&chunk.RecordSkipNonFinite != 0, &handle)
	return handle, rc
}

// Answer returns the answer to a finished commit.
func (w *Worker) Answer() (worker.Answer, error) {
	a, rc := worker.AnswerOf(w.C)
	if rc < 0 {
		return a, w.Error(rc)
	}
	return a, nil
}

// Close closes the rack, but not an engine of another rack.
func (r *Rack) Close() error {
	var errs []error
	for _, w := range r.Workers {
		errs = append(errs, w.close())
	}
	if r.Job != nil {
		errs = append(errs, r.Job.Close())
	}
	if r.Engine != nil && r.Config.Engine == nil {
		errs = append(errs, r.Engine.Close())
	}
	for _, a := range r.others {
		if a.job != nil {
			errs = append(errs, a.job.Close())
		}
		errs = append(errs, a.engine.Close())
	}
	return errors.Join(errs...)
}

func (w *Worker) close() error {
	var errs []error
	if w.Session != nil {
		errs = append(errs, w.Session.Close())
	}
	for _, a := range w.arenas {
		errs = append(errs, a.Close())
	}
	return errors.Join(errs...)
}
