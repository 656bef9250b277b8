package kernel

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rackweave/rackweave/aggregate/optim"
)

// mapped returns zeroed memory outside the Go heap that starts at a huge page, and is made of huge ones if it can be.
func mapped(t testing.TB, size uint64) []byte {
	const hugePage = 2 << 20
	mem, err := unix.Mmap(-1, 0, int(size)+hugePage, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		t.Fatalf("map %d bytes: %v", size, err)
	}
	t.Cleanup(func() { unix.Munmap(mem) })
	skip := -address(mem) % hugePage
	mem = mem[skip : skip+size]
	if err := unix.Madvise(mem, unix.MADV_HUGEPAGE); err != nil {
		t.Logf("no transparent huge pages: %v", err)
	}
	return mem
}

// workload is N gradients, weights and a momentum, all in memory and no cache, on huge pages.
type workload struct {
	isa     ISA
	grads   []uint64
	w, m, s uint64 // s is where two passes keep the sum between them
	n       uint64
	scalar  optim.Scalars
	still   bool // each chunk is the first one
}

func newWorkload(t testing.TB, sources int, arrayBytes uint64) *workload {
	array := func() uint64 {
		mem := mapped(t, arrayBytes)
		for i := 0; i < len(mem); i += 4096 {
			mem[i+3] = 0x3f // 0.5, and zeros between
		}
		return address(mem)
	}
	wl := &workload{
		isa: Best(), w: array(), m: array(), s: array(), n: arrayBytes / 4,
		scalar: optim.Derive(optim.SGDMXNet, optim.Hyper{LR: 0.1, WD: 1e-4, Momentum: 0.9, Scale: 1}, 1),
	}
	for range sources {
		wl.grads = append(wl.grads, array())
	}
	return wl
}

// The aggregator cuts its work into chunks of 32 KiB.
const (
	chunkBytes = 32 << 10
	chunkElems = chunkBytes / 4
)

// stretch is a range of elements of every array.
type stretch struct{ from, to uint64 }

// eachChunk calls do with the offset in bytes of every chunk of a stretch, each thread on its share, with room for addresses.
func (wl *workload) eachChunk(s stretch, threads int, do func(at uint64, r *room)) {
	split(threads, (s.to-s.from)/chunkElems, func(from, to uint64) {
		var r room
		for c := from; c < to; c++ {
			at := (s.from + c*chunkElems) * 4
			if wl.still {
				at = 0
			}
			do(at, &r)
		}
	})
}

// room holds the addresses of a chunk's sources and outputs.
type room struct{ src, out [64]uint64 }

// moved writes addresses at an offset from those given.
func moved(to []uint64, addrs []uint64, at uint64) []uint64 {
	for i, a := range addrs {
		to[i] = a + at
	}
	return to[:len(addrs)]
}

// update updates a stretch from the sources chunk by chunk, as the aggregator does.
func (wl *workload) update(sources []uint64, s stretch, threads int) {
	wl.eachChunk(s, threads, func(at uint64, r *room) {
		u := Update{
			W: wl.w + at, State: [3]uint64{wl.m + at}, N: chunkElems, Rule: uint8(optim.SGDMXNet), Scalar: wl.scalar,
		}
		u.Run(wl.isa, From(moved(r.src[:], sources, at), F32), nil)
	})
}

// contender is one way to do the work of a stretch.
type contender func(s stretch, threads int)

// fused sums and updates in one pass.
func (wl *workload) fused(s stretch, threads int) { wl.update(wl.grads, s, threads) }

// probe touches the bytes fused touches.
func (wl *workload) probe(s stretch, threads int) {
	p := Probe{Update: []uint64{wl.w + s.from*4, wl.m + s.from*4}, Bytes: (s.to - s.from) * 4}
	for _, g := range wl.grads {
		p.Read = append(p.Read, g+s.from*4)
	}
	p.Run(wl.isa, threads)
}

// twoPass sums all sources in one pass over memory and updates in a second.
func (wl *workload) twoPass(s stretch, threads int) {
	wl.sum(s, threads, wl.grads, false)
	wl.update([]uint64{wl.s}, s, threads)
}

// perArrival adds each gradient to the sum in a pass of its own, as servers do that add a push when it arrives, and updates
// in a last one.
func (wl *workload) perArrival(s stretch, threads int) {
	for i := range wl.grads {
		wl.sum(s, threads, wl.grads[i:i+1], i > 0)
	}
	wl.update([]uint64{wl.s}, s, threads)
}

// shuffled takes gradients as they arrive from workers that are not in step: in random order within each window of chunks. It adds
// each to its chunk's sum and updates after the last one, or, if not add, sums and updates at once when the last one is there.
func (wl *workload) shuffled(add bool) contender {
	const window = 64 // chunks of a worker in flight
	order := rand.New(rand.NewPCG(1, 0)).Perm(window * len(wl.grads))
	return func(s stretch, threads int) {
		split(threads, (s.to-s.from)/(window*chunkElems), func(from, to uint64) {
			var r room
			u := Update{N: chunkElems, Rule: uint8(optim.SGDMXNet), Scalar: wl.scalar}
			for ; from < to; from++ {
				came := [window]int{}
				for _, next := range order {
					rank, c := next/window, next%window
					at := (s.from + (from*window+uint64(c))*chunkElems) * 4
					sources := wl.grads
					if add {
						sources = []uint64{wl.s}
						Sum{Dst: moved(r.out[:], sources, at), DstType: F32, Src: From(moved(r.src[:], wl.grads[rank:rank+1], at), F32),
							N: chunkElems, Accumulate: came[c] > 0}.Run(wl.isa)
					}
					if came[c]++; came[c] < len(wl.grads) {
						continue
					}
					u.W, u.State[0] = wl.w+at, wl.m+at
					u.Run(wl.isa, From(moved(r.src[:], sources, at), F32), nil)
				}
			}
		})
	}
}

// sum adds whole arrays to wl.s, each thread its share in one call.
func (wl *workload) sum(s stretch, threads int, sources []uint64, accumulate bool) {
	split(threads, s.to-s.from, func(from, to uint64) {
		src := make([]uint64, len(sources))
		for i, g := range sources {
			src[i] = g + (s.from+from)*4
		}
		Sum{Dst: []uint64{wl.s + (s.from+from)*4}, DstType: F32, Src: From(src, F32), N: to - from, Accumulate: accumulate}.Run(wl.isa)
	})
}

// race runs the contenders in turn, each on the next stretch of elems elements, so that it finds nothing of its own in a
// cache. Every round begins with another, because what one leaves dirty in the cache is written while the next runs. It
// returns the median speed of the first contender in elements per second, and of each the median ratio of its time to the
// first one's of the same round.
func (wl *workload) race(rounds, threads int, elems uint64, contenders ...contender) (speed float64, ratios []float64) {
	at := uint64(0)
	speeds, all := []float64{}, make([][]float64, len(contenders))
	took := make([]time.Duration, len(contenders))
	for round := range rounds {
		for i := range contenders {
			i = (i + round) % len(contenders)
			s := stretch{at, at + elems}
			at = s.to % wl.n
			start := time.Now()
			contenders[i](s, threads)
			took[i] = time.Since(start)
		}
		speeds = append(speeds, float64(elems)/took[0].Seconds())
		for i, t := range took {
			all[i] = append(all[i], float64(t)/float64(took[0]))
		}
	}
	for _, r := range all {
		ratios = append(ratios, median(r))
	}
	return median(speeds), ratios
}

// short is a stretch that is done between two interruptions of a busy machine, mostly. Ways that keep a sum in memory between
// passes need all of it: a short one would stay in the cache.
const short = 128 * chunkElems

func median(x []float64) float64 {
	slices.Sort(x)
	return x[len(x)/2]
}

// BenchmarkFusedUpdate measures the fused sum and momentum update with everything in memory: its share of the probe's speed,
// and how many times faster it is than two passes and than a pass per arrival. What the last two can be is a matter of bytes:
// with N sources fused moves N+4 arrays, two passes N+7, a pass per arrival 3N+5. Where gradients arrive shuffled, it is the time
// of adding each on arrival over that of summing them at once in rank order.
func BenchmarkFusedUpdate(b *testing.B) {
	for _, sources := range []int{4, 8} {
		wl := newWorkload(b, sources, 64<<20)
		for threads := 1; threads <= min(2, runtime.NumCPU()); threads++ {
			b.Run(fmt.Sprintf("sources=%d/threads=%d", sources, threads), func(b *testing.B) {
				var speed float64
				var probe, passes, shuffled []float64
				for b.Loop() {
					speed, probe = wl.race(200, threads, short, wl.fused, wl.probe)
					_, passes = wl.race(9, threads, wl.n, wl.fused, wl.twoPass, wl.perArrival)
					_, shuffled = wl.race(9, threads, wl.n, wl.shuffled(false), wl.shuffled(true))
				}
				b.ReportMetric(speed*4*float64(sources+4)/1e9, "GB/s")
				b.ReportMetric(probe[1], "of-probe")
				b.ReportMetric(passes[1], "x-two-pass")
				b.ReportMetric(passes[2], "x-per-arrival")
				b.ReportMetric(shuffled[1], "x-shuffled")
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}

// exchange is a sum of N gradients that goes to N results, in one pass.
func (wl *workload) exchange(results []uint64, stream bool) contender {
	return func(s stretch, threads int) {
		wl.eachChunk(s, threads, func(at uint64, r *room) {
			Sum{Dst: moved(r.out[:], results, at), DstType: F32, Src: From(moved(r.src[:], wl.grads, at), F32),
				N: chunkElems, PastCache: stream}.Run(wl.isa)
		})
	}
}

// sumThenCopy sums each chunk into the cache and copies it to every result.
func (wl *workload) sumThenCopy(results []uint64) contender {
	return func(s stretch, threads int) {
		wl.eachChunk(s, threads, func(at uint64, r *room) {
			sum := wl.s + at>>21&1<<20 + at&(1<<20-1) // 32 buffers for each of two threads
			Sum{Dst: []uint64{sum}, DstType: F32, Src: From(moved(r.src[:], wl.grads, at), F32), N: chunkElems}.Run(wl.isa)
			for _, to := range results {
				Convert(wl.isa, to+at, F32, sum, F32, chunkElems, true)
			}
		})
	}
}

// BenchmarkExchange measures an exchange of N gradients in one pass: its share of a probe's speed, and how many times faster
// it is than a sum with a copy for each result, and than one that writes through the cache.
func BenchmarkExchange(b *testing.B) {
	for _, workers := range []int{4, 8, 16, 32} {
		wl := newWorkload(b, workers, 32<<20)
		results := newWorkload(b, workers, 32<<20).grads
		for _, isa := range isas[1:] {
			if !Supported(isa) {
				continue
			}
			wl.isa = isa
			for threads := 1; threads <= min(2, runtime.NumCPU()); threads++ {
				b.Run(fmt.Sprintf("%v/workers=%d/threads=%d", isa, workers, threads), func(b *testing.B) {
					probe := func(s stretch, threads int) {
						var r room
						at := s.from * 4
						Probe{
							Read: moved(r.src[:], wl.grads, at), Write: moved(r.out[:], results, at), Bytes: (s.to - s.from) * 4,
						}.Run(isa, threads)
					}
					var speed float64
					var ratios []float64
					for b.Loop() {
						speed, ratios = wl.race(100, threads, short, wl.exchange(results, true), probe, wl.sumThenCopy(results),
							wl.exchange(results, false))
					}
					b.ReportMetric(speed*4*float64(2*workers)/1e9, "GB/s")
					b.ReportMetric(ratios[1], "of-probe")
					b.ReportMetric(ratios[2], "x-sum-then-copy")
					b.ReportMetric(ratios[3], "x-cached")
					b.ReportMetric(0, "ns/op")
				})
			}
		}
	}
}

// BenchmarkChunk measures one 32 KiB chunk, its data in the second-level cache.
func BenchmarkChunk(b *testing.B) {
	for _, isa := range isas {
		if !Supported(isa) {
			continue
		}
		wl := newWorkload(b, 8, chunkBytes)
		wl.isa = isa
		for _, sources := range []int{1, 4, 8} {
			b.Run(fmt.Sprintf("%v/sum+momentum/sources=%d", isa, sources), func(b *testing.B) {
				b.SetBytes(chunkBytes * int64(sources))
				for b.Loop() {
					wl.update(wl.grads[:sources], stretch{0, chunkElems}, 1)
				}
			})
		}
		for _, rule := range optim.Rules() {
			h := rule.Defaults()
			u := Update{
				W: wl.w, State: [3]uint64{wl.m, wl.s}, OutType: F32, N: chunkElems,
				Rule: uint8(rule), Scalar: optim.Derive(rule, h, 1),
			}
			b.Run(fmt.Sprintf("%v/%v/sources=4", isa, rule), func(b *testing.B) {
				b.SetBytes(chunkElems * 4 * 4)
				for b.Loop() {
					u.Run(isa, From(wl.grads[:4], F32), wl.grads[7:])
				}
			})
		}
		for _, streaming := range []bool{false, true} {
			b.Run(fmt.Sprintf("%v/f32tobf16/streaming=%v", isa, streaming), func(b *testing.B) {
				b.SetBytes(chunkElems * 4)
				for b.Loop() {
					Convert(isa, wl.s, BF16, wl.w, F32, chunkElems, streaming)
				}
			})
		}
		b.Run(fmt.Sprintf("%v/sumsq", isa), func(b *testing.B) {
			b.SetBytes(chunkElems * 4)
			for b.Loop() {
				SumSq(isa, wl.w, chunkElems)
			}
		})
	}
}
