package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"syscall"
	"time"
	"unsafe"

	"github.com/rackweave/rackweave/client"
)

// order is the orders of a worker process.
type order struct {
	Spec   Spec
	Rank   int
	Server string
	Job    string
}

// workerReport is a line of a worker process's report: after each exchange its number, in the end the rest.
type workerReport struct {
	Step     int       `json:"step,omitempty"`
	Done     bool      `json:"done,omitempty"`
	TimesUS  []float64 `json:"times_us,omitempty"` // of the measured exchanges
	Checksum uint64    `json:"checksum,omitempty"` // of the final results
	Trace    *trace    `json:"trace,omitempty"`    // of a replay
	Provider string    `json:"provider,omitempty"`
	Lanes    int       `json:"lanes,omitempty"`
	Racks    []int     `json:"racks,omitempty"` // workers by rack, where there are several aggregators
	Pods     int       `json:"pods,omitempty"`
}

// resultsFD is the descriptor of the file to which a worker process writes its final results for verification: the first of
// exec.Cmd.ExtraFiles.
const resultsFD = 3

// WorkerMain is a worker process of the benchmark. It ends when its standard input does: then the benchmark has ended.
func WorkerMain(ctx context.Context, in io.Reader, out io.Writer) error {
	var o order
	if err := json.NewDecoder(in).Decode(&o); err != nil {
		return fmt.Errorf("read the worker's orders: %w", err)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	go func() {
		io.Copy(io.Discard, in)
		cancel(errors.New("the benchmark has ended"))
	}()
	var results *os.File
	if o.Spec.Verify {
		results = os.NewFile(resultsFD, "results")
	}
	enc := json.NewEncoder(out)
	return runWorker(ctx, &o, results, func(r workerReport) error { return enc.Encode(r) })
}

// buffers are a worker's gradients and results, with the tensors one after another.
type buffers struct {
	src, dst []byte
	offsets  []int
	mapped   [][]byte // the ordinary memory among them
}

func (b *buffers) f32(of []byte, t int) []float32 {
	part := of[b.offsets[t]:b.offsets[t+1]]
	return unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(part))), len(part)/4)
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
	var err error
	for _, p := range []*[]byte{&b.src, &b.dst} {
		if s.Arena {
			*p, err = w.Alloc(total)
		} else {
			*p, err = b.ordinary(total)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// ordinary allocates memory as an allocator would.
func (b *buffers) ordinary(n int) ([]byte, error) {
	mem, err := syscall.Mmap(-1, 0, n, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_PRIVATE|syscall.MAP_ANONYMOUS)
	if err != nil {
		return nil, fmt.Errorf("map %d bytes: %w", n, err)
	}
	b.mapped = append(b.mapped, mem)
	return mem, nil
}

// unmap frees ordinary memory. The worker is closed by then.
func (b *buffers) unmap() error {
	var errs []error
	for _, mem := range b.mapped {
		errs = append(errs, syscall.Munmap(mem))
	}
	return errors.Join(errs...)
}

// runWorker runs a worker from joining to leaving. It writes the final results if results is not nil.
func runWorker(ctx context.Context, o *order, results *os.File, say func(workerReport) error) error {
	s := &o.Spec
	cfg := client.Config{
		Server: o.Server, CA: s.CA, Job: o.Job, Token: s.Token, Rank: o.Rank, Workers: s.Workers, Provider: s.Provider,
		ProviderOptions: s.ProviderOptions, Devices: s.NICs, WireType: s.DType, ChunkBytes: s.ChunkBytes, Hyper: s.Hyper, Spin: s.Spin,
	}
	if s.Optimizer != "sum" {
		cfg.Optimizer, cfg.Policy = s.Optimizer, s.Policy
	}
	w, err := client.Join(ctx, cfg)
	if err != nil {
		return err
	}
	var b buffers
	err = exchangeAll(ctx, w, o, &b, results, say)
	if racks, _ := w.Racks(); err == nil && len(racks) > 1 {
		err = w.Barrier(ctx, "done") // a rack that leaves first takes with it what others still wait for
	}
	if closeErr := w.Close(); err == nil {
		err = closeErr
	}
	return errors.Join(err, b.unmap())
}

func exchangeAll(ctx context.Context, w *client.Worker, o *order, b *buffers, results *os.File,
	say func(workerReport) error) error {
	s := &o.Spec
	tensors := make([]client.Tensor, len(s.Model.Tensors))
	for i, t := range s.Model.Tensors {
		shape := make([]uint64, len(t.Shape))
		for k, d := range t.Shape {
			shape[k] = uint64(d)
		}
		tensors[i] = client.Tensor{Name: t.Name, Shape: shape}
	}
	if err := w.Register(ctx, tensors); err != nil {
		return err
	}
	if err := b.allocate(w, s); err != nil {
		return err
	}
	rng := rand.New(rand.NewPCG(s.Seed, uint64(o.Rank)))
	fill := func(step int) {
		for t := range tensors {
			Gradient(b.f32(b.src, t), s.Seed, o.Rank, t, step)
		}
	}
	ops, handles := make([]client.Op, len(tensors)), make([]client.Handle, 0, len(tensors))
	run := func(kind client.Kind) error {
		// A training step produces gradients from the last layer to the first.
		for i := range ops {
			t := len(ops) - 1 - i
			ops[i] = b.op(kind, t)
		}
		if s.Jitter > 0 {
			inOwnOrder(ops, rng)
		}
		var err error
		if handles, err = w.SubmitTo(handles[:0], ops); err != nil {
			return err
		}
		return w.WaitAll(ctx, handles)
	}
	fill(initialStep)
	if err := run(client.Broadcast); err != nil {
		return err
	}
	step := func() error { return run(client.PushPull) }
	if w.Stream() {
		step = func() error {
			if err := run(client.PushPull); err != nil {
				return err
			}
			end, err := w.EndStep(ctx)
			if err != nil || !end.Pull {
				return err
			}
			return run(client.Pull)
		}
	}
	fill(0)
	done := workerReport{Done: true, Provider: w.Provider(), Lanes: w.Lanes()}
	done.Racks, done.Pods = w.Racks()
	if s.Replay {
		r := replayer{w: w, s: s, b: b, fill: fill, say: say}
		var err error
		if done.Trace, err = r.run(ctx); err != nil {
			return err
		}
		done.TimesUS = done.Trace.times(s.Warmup)
		return finish(b, len(tensors), done, results, say)
	}
	for i := range s.Steps() {
		if s.Verify && i > 0 {
			fill(i)
		}
		if s.Jitter > 0 {
			select {
			case <-time.After(rand.N(s.Jitter)):
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		start := time.Now()
		if err := step(); err != nil {
			return err
		}
		if i >= s.Warmup {
			done.TimesUS = append(done.TimesUS, float64(time.Since(start).Nanoseconds())/1e3)
		}
		if err := say(workerReport{Step: i + 1}); err != nil {
			return err
		}
	}
	return finish(b, len(tensors), done, results, say)
}

// finish writes the final results if there is a file for them, and makes the worker's last report.
func finish(b *buffers, tensors int, done workerReport, results *os.File, say func(workerReport) error) error {
	done.Checksum = digestStart
	for t := range tensors {
		done.Checksum = digest(done.Checksum, b.f32(b.dst, t))
	}
	if results != nil {
		if _, err := results.Write(b.dst); err != nil {
			return fmt.Errorf("write the final results for comparison: %w", err)
		}
	}
	return say(done)
}

// inOwnOrder shuffles operations and clears their priorities, which would undo that.
func inOwnOrder(ops []client.Op, rng *rand.Rand) {
	rng.Shuffle(len(ops), func(i, k int) { ops[i], ops[k] = ops[k], ops[i] })
	for i := range ops {
		ops[i].Priority = 0
	}
}
