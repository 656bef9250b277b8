package ablate

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"
	"unsafe"

	"github.com/rackweave/rackweave/aggregate/optim"
	"github.com/rackweave/rackweave/bench"
	"github.com/rackweave/rackweave/bench/report"
	"github.com/rackweave/rackweave/cgo/kernel"
	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/numa"
)

// workload is an aggregator's memory of a model: the workers' gradients, parameters, momentum, and a sum for the alternatives that
// keep one. Addresses are those of f32 arrays of the same size.
type workload struct {
	arena     *numa.Arena
	isa       kernel.ISA
	threads   int
	bytes     uint64 // of each array
	grads     []uint64
	w, m, sum uint64
	scalars   optim.Scalars
}

const (
	// Arrays are beyond any cache, within bounds.
	leastArray = 64 << 20
	mostArray  = 256 << 20
	quickArray = 1 << 20
	// Arrays a power of two apart would compete for the same sets of a cache.
	stagger = 4096 + 192
)

func newWorkload(workers int, bytes uint64) (*workload, error) {
	isa, err := kernel.Default()
	if err != nil {
		return nil, err
	}
	stride := bytes + stagger
	arena, err := numa.NewArena(numa.ArenaConfig{Name: "ablation", Bytes: int64(workers+3) * int64(stride), Node: numa.AnyNode})
	if err != nil {
		return nil, err
	}
	h := optim.SGDMXNet.Defaults()
	h.LR, h.Momentum, h.Scale = 0.1, 0.9, 1/float64(workers)
	l := &workload{arena: arena, isa: isa, threads: runtime.GOMAXPROCS(0), bytes: bytes, scalars: optim.Derive(optim.SGDMXNet, h, 1)}
	at := uint64(uintptr(arena.Addr()))
	for rank := range workers {
		l.grads = append(l.grads, at)
		bench.Gradient(l.array(at), 1, rank, 0, 0)
		at += stride
	}
	l.w, l.m, l.sum = at, at+stride, at+2*stride
	l.reset()
	return l, nil
}

// reset restores the initial parameters.
func (l *workload) reset() {
	bench.Gradient(l.array(l.w), 1, 0, 0, bench.InitialStep)
	clear(l.array(l.m))
}

// array returns the array at an address of the arena.
func (l *workload) array(at uint64) []float32 {
	offset := at - uint64(uintptr(l.arena.Addr()))
	return unsafe.Slice((*float32)(unsafe.Add(l.arena.Addr(), offset)), l.bytes/4)
}

func (l *workload) close() error { return l.arena.Close() }

// arrayBytes returns twice the last-level cache, within bounds, in whole windows of chunks.
func (cfg *Config) arrayBytes() uint64 {
	if cfg.quick {
		return quickArray
	}
	largest := uint64(0)
	for _, c := range report.ThisMachine().Caches {
		largest = max(largest, c.Bytes)
	}
	return min(max(2*largest, leastArray), mostArray) &^ (arrivalWindow*usualChunk - 1)
}

// setting describes what the kernels' studies work on.
func (l *workload) setting() string {
	return fmt.Sprintf("%s a gradient, %s with momentum, %v kernels on %d threads", report.Size(l.bytes), optim.SGDMXNet, l.isa,
		l.threads)
}

// lane is one thread's means to work on chunks.
type lane struct {
	*workload
	update kernel.Update
	src    []uint64
}

func (l *workload) lane() *lane { return &lane{workload: l, src: make([]uint64, 0, len(l.grads))} }

// step sums the bytes from offset on of all sources and updates parameters and momentum, in one pass.
func (l *lane) step(sources []uint64, offset, bytes uint64) error {
	l.src = l.src[:0]
	for _, s := range sources {
		l.src = append(l.src, s+offset)
	}
	l.update = kernel.Update{
		W: l.w + offset, State: [3]uint64{l.m + offset}, N: bytes / 4, SrcType: kernel.F32, Rule: uint8(optim.SGDMXNet),
		Scalar: l.scalars,
	}
	return l.update.Run(l.isa, l.src, nil)
}

// add sums sources into to, on top of what to holds if accumulate is set.
func (l *lane) add(to uint64, sources []uint64, offset, bytes uint64, accumulate bool) {
	l.src = l.src[:0]
	for _, s := range sources {
		l.src = append(l.src, s+offset)
	}
	kernel.Sum{Dst: []uint64{to}, DstType: kernel.F32, Src: l.src, SrcType: kernel.F32, N: bytes / 4,
		Accumulate: accumulate}.Run(l.isa)
}

// together runs do on every operating-system thread at once and waits for all.
func (l *workload) together(do func(l *lane, thread uint64) error) error {
	errs := make([]error, l.threads)
	var all sync.WaitGroup
	for t := range l.threads {
		all.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			errs[t] = do(l.lane(), uint64(t))
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// chunks calls do on every thread with the offset of each chunk of its share.
func (l *workload) chunks(size uint64, do func(l *lane, offset uint64) error) error {
	n, threads := l.bytes/size, uint64(l.threads)
	return l.together(func(l *lane, t uint64) error {
		for c := n * t / threads; c < n*(t+1)/threads; c++ {
			if err := do(l, c*size); err != nil {
				return err
			}
		}
		return nil
	})
}

// rate times work on the gradients and returns GB/s of them.
func (l *workload) rate(workers int, work func() error) (float64, error) {
	start := time.Now()
	err := work()
	return float64(uint64(workers)*l.bytes) / float64(max(time.Since(start), 1)), err
}

const usualChunk = chunk.DefaultChunkBytes
