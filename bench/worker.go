package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"syscall"
	"time"
	"unsafe"

	"github.com/rackweave/rackweave/bench/report"
	"github.com/rackweave/rackweave/client"
	"github.com/rackweave/rackweave/codec"
)

// order is the orders of a worker process. Its spec has the worker's own aggregator and the job's name.
type order struct {
	Spec Spec
	Rank int
}

// ending follows the orders when a worker must end.
type ending struct{ Why string }

// workerReport is a line of a worker process's report: after each exchange its number, in the end the rest.
type workerReport struct {
	Step     int            `json:"step,omitempty"`
	Done     bool           `json:"done,omitempty"`
	TimesUS  []float64      `json:"times_us,omitempty"` // of the measured exchanges
	Digests  []uint64       `json:"digests,omitempty"`  // of the final results, by tensor
	Trace    *trace         `json:"trace,omitempty"`    // of a replay
	Provider string         `json:"provider,omitempty"`
	Lanes    int            `json:"lanes,omitempty"`
	Racks    []int          `json:"racks,omitempty"` // workers by rack, where there are several aggregators
	Pods     int            `json:"pods,omitempty"`
	Outer    string         `json:"outer,omitempty"`
	Core     string         `json:"core,omitempty"` // the type or the codecs of sums between racks
	Crossing *crossing      `json:"crossing,omitempty"`
	Codecs   *report.Codecs `json:"codecs,omitempty"`
	Recodes  []recode       `json:"recodes,omitempty"`

	Sent, Received uint64   // bytes of all exchanges
	RowsByLane     []uint64 `json:",omitempty"` // rows that are pushed in [rows.Steps] exchanges
}

// WorkerMain is a worker process of the benchmark. It ends when it is told to, or its standard input ends: then the benchmark has.
func WorkerMain(ctx context.Context, in io.Reader, out io.Writer) error {
	var o order
	dec := json.NewDecoder(in)
	if err := dec.Decode(&o); err != nil {
		return fmt.Errorf("read the worker's orders: %w", err)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	go func() {
		end := ending{Why: "the benchmark has ended"}
		_ = dec.Decode(&end) // nothing comes from a benchmark that was killed
		cancel(errors.New(end.Why))
	}()
	enc := json.NewEncoder(out)
	return runWorker(ctx, &o, func(r workerReport) error { return enc.Encode(r) })
}

// buffers are a worker's gradients and results, with the tensors one after another.
type buffers struct {
	src, dst []byte
	offsets  []int
	ordinary bool // of no arena
}

func (b *buffers) f32(of []byte, t int) []float32 { return f32(of[b.offsets[t]:b.offsets[t+1]]) }

func f32(b []byte) []float32 {
	return unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/4)
}

// op exchanges a tensor. The next step needs the first layers first.
func (b *buffers) op(kind client.Kind, t int) client.Op {
	return client.Op{Kind: kind, Tensor: t, Src: b.src[b.offsets[t]:b.offsets[t+1]], Dst: b.dst[b.offsets[t]:b.offsets[t+1]],
		Priority: int32(-t)}
}

func (b *buffers) allocate(w *client.Worker, s *Spec) error {
	b.offsets = make([]int, len(s.Model.Tensors)+1)
	for t := range s.Model.Tensors {
		b.offsets[t+1] = b.offsets[t] + int(s.Model.Tensors[t].Elems())*4
	}
	total := b.offsets[len(s.Model.Tensors)]
	b.ordinary = !s.Arena
	rows := 2 * 4 * s.Rows.Touch * s.Rows.Width // gradients and pulled rows, packed
	for p, size := range map[*[]byte]int{&b.src: max(total, rows), &b.dst: total} {
		var err error
		if s.Arena {
			*p, err = w.Alloc(size)
		} else { // as an allocator would
			*p, err = syscall.Mmap(-1, 0, size, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_PRIVATE|syscall.MAP_ANONYMOUS)
		}
		if err != nil {
			return fmt.Errorf("allocate %d bytes: %w", size, err)
		}
	}
	return nil
}

// unmap frees ordinary memory. The worker is closed by then.
func (b *buffers) unmap() error {
	var errs []error
	for _, mem := range [][]byte{b.src, b.dst} {
		if b.ordinary && mem != nil {
			errs = append(errs, syscall.Munmap(mem))
		}
	}
	return errors.Join(errs...)
}

// runWorker runs a worker from joining to leaving.
func runWorker(ctx context.Context, o *order, say func(workerReport) error) error {
	s := &o.Spec
	cfg := client.Config{
		Server: s.Server, CA: s.CA, Job: s.Job, Token: s.Token, Insecure: s.Insecure, Rank: o.Rank, Workers: s.Workers,
		Provider: s.Provider, ProviderOptions: s.ProviderOptions, Devices: s.NICs, WireType: s.DType, ChunkBytes: s.ChunkBytes,
		Hyper: s.Hyper, Outer: s.Outer, Compress: s.Compress,
	}
	if s.Optimizer != "sum" {
		cfg.Optimizer, cfg.Policy = s.Optimizer, s.Policy
	}
	w, err := client.Join(ctx, cfg)
	if err != nil {
		return err
	}
	var b buffers
	err = exchangeAll(ctx, w, o, &b, say)
	if racks, _ := w.Racks(); err == nil && len(racks) > 1 {
		err = w.Barrier(ctx, "done") // a rack that leaves first takes with it what others still wait for
	}
	if closeErr := w.Close(); err == nil {
		err = closeErr
	}
	return errors.Join(err, b.unmap())
}

// traffic exchanges whole tensors or rows. Only its steps are on the clock.
type traffic interface {
	fill(step int) // makes the gradients of a step
	step(ctx context.Context, step int) error
	ended(step int) error // records a step's results
	results(to *workerReport)
}

// exchanger is a worker at work.
type exchanger struct {
	w       *client.Worker
	s       *Spec
	b       *buffers
	rank    int
	rng     *rand.Rand
	ops     []client.Op
	handles []client.Handle
	coded   []codec.Spec // by tensor: of the last gradient
	recodes []recode
}

func exchangeAll(ctx context.Context, w *client.Worker, o *order, b *buffers, say func(workerReport) error) (err error) {
	s := &o.Spec
	if err := w.Register(ctx, declared(s)); err != nil {
		return err
	}
	if err := b.allocate(w, s); err != nil {
		return err
	}
	x := &exchanger{w: w, s: s, b: b, rank: o.Rank, rng: rand.New(rand.NewPCG(s.Seed, uint64(o.Rank))),
		ops: make([]client.Op, len(s.Model.Tensors))}
	x.fill(InitialStep)
	if err := x.run(ctx, client.Broadcast); err != nil {
		return err
	}
	work := traffic(x)
	if s.Sparse() {
		work = newRowsWorker(x)
	}
	work.fill(0)
	done := workerReport{Done: true, Provider: w.Provider(), Lanes: w.Lanes()}
	done.Racks, done.Pods = w.Racks()
	done.Outer, done.Core = w.Outer(), w.Core()
	before, err := w.Stats()
	if err != nil {
		return err
	}
	if s.Replay {
		r := replayer{exchanger: x, say: say}
		if done.Trace, err = r.run(ctx); err != nil {
			return err
		}
		done.TimesUS = done.Trace.times(s.Warmup)
	} else if done.TimesUS, err = s.measure(ctx, say, work); err != nil {
		return err
	}
	if done.Codecs, err = x.codecs(ctx, before); err != nil {
		return err
	}
	if done.Recodes = x.recodes; s.Verify {
		if done.Crossing, err = x.crossing(ctx); err != nil {
			return err
		}
	}
	after, err := w.Stats()
	if err != nil {
		return err
	}
	done.Sent, done.Received = after.SentBytes-before.SentBytes, after.ReceivedBytes-before.ReceivedBytes
	work.results(&done)
	return say(done)
}

// declared returns the model's tensors as a worker registers them.
func declared(s *Spec) []client.Tensor {
	tensors := make([]client.Tensor, len(s.Model.Tensors))
	for i, t := range s.Model.Tensors {
		shape := make([]uint64, len(t.Shape))
		for k, d := range t.Shape {
			shape[k] = uint64(d)
		}
		tensors[i] = client.Tensor{Name: t.Name, Shape: shape, Sparse: s.Sparse()}
		if s.Rows.Placed {
			tensors[i].Frequencies = s.Rows.Frequencies(s.Seed)
		}
	}
	return tensors
}

// fill makes the gradients of a step.
func (x *exchanger) fill(step int) {
	for t := range x.ops {
		Gradient(x.b.f32(x.b.src, t), x.s.Seed, x.rank, t, step)
	}
}

// run runs an operation on every tensor. A training step produces gradients from the last layer to the first.
func (x *exchanger) run(ctx context.Context, kind client.Kind) error {
	for i := range x.ops {
		x.ops[i] = x.b.op(kind, len(x.ops)-1-i)
	}
	if x.s.Jitter > 0 {
		inOwnOrder(x.ops, x.rng)
	}
	return x.submit(ctx)
}

func (x *exchanger) submit(ctx context.Context) (err error) {
	if x.handles, err = x.w.SubmitTo(x.handles[:0], x.ops); err != nil {
		return err
	}
	return x.w.WaitAll(ctx, x.handles)
}

// step exchanges the gradients and, in mode stream, ends the worker's step.
func (x *exchanger) step(ctx context.Context, _ int) error {
	if err := x.run(ctx, client.PushPull); err != nil || !x.w.Stream() {
		return err
	}
	end, err := x.w.EndStep(ctx)
	if err != nil || !end.Pull {
		return err
	}
	return x.run(ctx, client.Pull)
}

func (x *exchanger) ended(step int) (err error) {
	for t := 0; t < len(x.ops) && err == nil; t++ {
		err = x.took(step, t)
	}
	return err
}

func (x *exchanger) results(to *workerReport) {
	for t := range x.ops {
		to.Digests = append(to.Digests, digest(x.b.f32(x.b.dst, t)))
	}
}

// measure makes all steps, and returns the times of the measured ones in microseconds.
func (s *Spec) measure(ctx context.Context, say func(workerReport) error, work traffic) (us []float64, err error) {
	for i := range s.Steps() {
		if s.Verify && i > 0 {
			work.fill(i)
		}
		if s.Jitter > 0 {
			select {
			case <-time.After(rand.N(s.Jitter)):
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			}
		}
		start := time.Now()
		if err := work.step(ctx, i); err != nil {
			return nil, err
		}
		took := time.Since(start)
		if err := work.ended(i); err != nil {
			return nil, err
		}
		if i >= s.Warmup {
			us = append(us, float64(took.Nanoseconds())/1e3)
		}
		if err := say(workerReport{Step: i + 1}); err != nil {
			return nil, err
		}
	}
	return us, nil
}

// inOwnOrder shuffles operations and clears their priorities, which would undo that.
func inOwnOrder(ops []client.Op, rng *rand.Rand) {
	rng.Shuffle(len(ops), func(i, k int) { ops[i], ops[k] = ops[k], ops[i] })
	for i := range ops {
		ops[i].Priority = 0
	}
}
