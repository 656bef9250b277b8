package ablate

import (
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
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
	seed      uint64 // of the next order of arrival
}

const (
	chunkBytes = chunk.DefaultChunkBytes
	// arrivalWindow is a worker's window, in chunks, where slots cost memory.
	arrivalWindow = 64
	// Arrays are beyond any cache, within bounds.
	leastArray = 64 << 20
	mostArray  = 256 << 20
	// Arrays a power of two apart would compete for the same sets of a cache.
	stagger = 4096 + 192
)

// arrayBytes returns twice the last-level cache, within bounds, in whole windows of chunks.
func arrayBytes() uint64 {
	largest := uint64(0)
	for _, c := range report.ThisMachine().Caches {
		largest = max(largest, c.Bytes)
	}
	return min(max(2*largest, leastArray), mostArray) &^ (arrivalWindow*chunkBytes - 1)
}

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

// chunks calls do on every thread with the offset of each part of its share, and waits for all.
func (l *workload) chunks(size uint64, do func(offset uint64)) {
	n, threads := l.bytes/size, uint64(l.threads)
	var all sync.WaitGroup
	for t := range threads {
		all.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			for c := n * t / threads; c < n*(t+1)/threads; c++ {
				do(c * size)
			}
		})
	}
	all.Wait()
}

// from returns the addresses at an offset into arrays.
func from(arrays []uint64, offset uint64) []uint64 {
	at := make([]uint64, len(arrays))
	for i, a := range arrays {
		at[i] = a + offset
	}
	return at
}

// step sums a chunk of all sources and updates parameters and momentum, in one pass.
func (l *workload) step(sources []uint64, offset uint64) {
	update := kernel.Update{
		W: l.w + offset, State: [3]uint64{l.m + offset}, N: chunkBytes / 4, SrcType: kernel.F32, Rule: uint8(optim.SGDMXNet),
		Scalar: l.scalars,
	}
	if err := update.Run(l.isa, from(sources, offset), nil); err != nil {
		panic(err) // the rule exists, and has the array that it needs
	}
}

// add sums a chunk of the sources, on top of the sum so far if accumulate is set.
func (l *workload) add(sources []uint64, offset uint64, accumulate bool) {
	kernel.Sum{Dst: []uint64{l.sum + offset}, DstType: kernel.F32, Src: from(sources, offset), SrcType: kernel.F32, N: chunkBytes / 4,
		Accumulate: accumulate}.Run(l.isa)
}

// onePass sums the gradients of a chunk and updates from there, chunk by chunk.
func (l *workload) onePass(workers int) {
	l.chunks(chunkBytes, func(offset uint64) { l.step(l.grads[:workers], offset) })
}

// twoPasses sums all gradients into memory and updates from there.
func (l *workload) twoPasses(workers int) {
	l.chunks(chunkBytes, func(offset uint64) { l.add(l.grads[:workers], offset, false) })
	l.chunks(chunkBytes, func(offset uint64) { l.step([]uint64{l.sum}, offset) })
}

// probe moves as many bytes as onePass, and computes nothing.
func (l *workload) probe(workers int) {
	kernel.Probe{Read: l.grads[:workers], Update: []uint64{l.w, l.m}, Bytes: l.bytes}.Run(l.isa, l.threads)
}

// inRankOrder sums the gradients of a chunk when the last has arrived.
func (l *workload) inRankOrder(workers int) { l.arrive(workers, false) }

// onArrival adds each gradient to a sum when it arrives.
func (l *workload) onArrival(workers int) { l.arrive(workers, true) }

// arrive takes the gradients as they arrive: shuffled in each window of chunks, as from workers that are not in step.
func (l *workload) arrive(workers int, add bool) {
	l.seed++
	size := min(l.bytes, arrivalWindow*chunkBytes)
	window := int(size / chunkBytes)
	l.chunks(size, func(base uint64) {
		came := make([]int, window) // gradients, by chunk
		for _, next := range rand.New(rand.NewPCG(l.seed, base)).Perm(workers * window) {
			rank, c := next/window, next%window
			offset := base + uint64(c)*chunkBytes
			came[c]++
			if add {
				l.add(l.grads[rank:rank+1], offset, came[c] > 1)
			}
			switch {
			case came[c] < workers:
			case add:
				l.step([]uint64{l.sum}, offset)
			default:
				l.step(l.grads[:workers], offset)
			}
		}
	})
}

// changed counts the parameters whose bits differ after a step of all workers in one order of arrival and in another.
func (l *workload) changed(step func(*workload, int)) (differ int) {
	l.reset()
	step(l, len(l.grads))
	first := slices.Clone(l.array(l.w))
	l.reset()
	step(l, len(l.grads))
	for i, v := range l.array(l.w) {
		if math.Float32bits(v) != math.Float32bits(first[i]) {
			differ++
		}
	}
	return differ
}
