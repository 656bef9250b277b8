package bench

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"sync/atomic"
	"syscall"

	"github.com/rackweave/rackweave/bench/report"
	"github.com/rackweave/rackweave/cgo/kernel"
)

// workerCounts are the numbers of gradients in a chunk's sum.
var workerCounts = []int{2, 4, 8}

// barrier lets threads meet by spinning, which is the cheapest way.
type barrier struct {
	threads int32
	arrived atomic.Int32
	phase   atomic.Uint32
}

// spinsBeforeYield is some microseconds. A thread that does not run holds up all others. It may wait for this thread's place in the
// Go scheduler or in the kernel's.
const spinsBeforeYield = 4096

func (b *barrier) wait() {
	phase := b.phase.Load()
	if b.arrived.Add(1) == b.threads {
		b.arrived.Store(0)
		b.phase.Add(1)
		return
	}
	for spins := 1; b.phase.Load() == phase; spins++ {
		if spins%spinsBeforeYield == 0 {
			runtime.Gosched()
			syscall.RawSyscall(syscall.SYS_SCHED_YIELD, 0, 0, 0)
		}
	}
}

// tall has every thread aggregate chunks of its own.
func (l *workload) tall(size uint64) error {
	return l.chunks(size, func(l *lane, offset uint64) error { return l.step(l.grads, offset, size) })
}

// wide has all threads share every chunk, and meet after it.
func (l *workload) wide(size uint64) error {
	b := &barrier{threads: int32(l.threads)}
	lines, threads := size/64, uint64(l.threads)
	return l.together(func(l *lane, t uint64) error {
		from, to := lines*t/threads*64, lines*(t+1)/threads*64
		var failed error
		for offset := uint64(0); offset < l.bytes; offset += size {
			if err := l.step(l.grads, offset+from, to-from); err != nil {
				failed = err // the others still wait at the barrier
			}
			b.wait()
		}
		return failed
	})
}

func tallAndWide(_ *Runner, cfg *AblateConfig) (*study, error) {
	const workers = 4
	l, err := newWorkload(workers, max(cfg.arrayBytes(), mostChunk))
	if err != nil {
		return nil, err
	}
	s := &study{Ablation: Ablation{
		Title: "A chunk for one thread, or for all", Quantity: "chunk size", Measure: gradientRate,
		Series: series("tall", "wide"), Setting: fmt.Sprintf("%d workers, %s", workers, l.setting()), kind: report.Lines,
	}, close: l.close}
	for _, size := range powersOfTwo(leastChunk, mostChunk) {
		s.Categories = append(s.Categories, report.Size(uint64(size)))
		var row []measure
		for _, do := range []func(uint64) error{l.tall, l.wide} {
			row = append(row, func(context.Context) ([]float64, error) {
				return l.rate(workers, func() error { return do(uint64(size)) })
			})
		}
		s.rows = append(s.rows, row)
	}
	s.tell = func(a *Ablation) {
		for i, c := range a.Categories {
			if c == report.Size(leastChunk) || c == report.Size(usualChunk) || c == report.Size(mostChunk) {
				a.find("chunks of %s: tall has %.2f times the rate of wide", c, a.Series[0].Values[i]/a.Series[1].Values[i])
			}
		}
	}
	return s, nil
}

// onePass sums the gradients of a chunk and updates from there, chunk by chunk.
func (l *workload) onePass(workers int) error {
	return l.chunks(usualChunk, func(l *lane, offset uint64) error { return l.step(l.grads[:workers], offset, usualChunk) })
}

// twoPasses sums all gradients into memory and updates from there.
func (l *workload) twoPasses(workers int) error {
	err := l.chunks(usualChunk, func(l *lane, offset uint64) error {
		l.add(l.sum+offset, l.grads[:workers], offset, usualChunk, false)
		return nil
	})
	if err != nil {
		return err
	}
	return l.chunks(usualChunk, func(l *lane, offset uint64) error { return l.step([]uint64{l.sum}, offset, usualChunk) })
}

func fusedAndTwoPasses(_ *Runner, cfg *AblateConfig) (*study, error) {
	l, err := newWorkload(workerCounts[len(workerCounts)-1], cfg.arrayBytes())
	if err != nil {
		return nil, err
	}
	s := &study{Ablation: Ablation{
		Title: "Sum and optimizer in one pass, or in two", Quantity: "workers", Measure: gradientRate,
		Series: series("one pass", "sum, then update", "memory probe"), Setting: l.setting(), kind: report.Bars,
	}, close: l.close}
	for _, workers := range workerCounts {
		probe := kernel.Probe{Read: l.grads[:workers], Update: []uint64{l.w, l.m}, Bytes: l.bytes}
		works := []func() error{
			func() error { return l.onePass(workers) },
			func() error { return l.twoPasses(workers) },
			func() error { probe.Run(l.isa, l.threads); return nil },
		}
		var row []measure
		for _, work := range works {
			row = append(row, func(context.Context) ([]float64, error) { return l.rate(workers, work) })
		}
		s.Categories = append(s.Categories, fmt.Sprint(workers))
		s.rows = append(s.rows, row)
	}
	s.tell = func(a *Ablation) {
		for i, c := range a.Categories {
			one := a.Series[0].Values[i]
			a.find("%s workers: one pass has %.2f times the rate of two, and %.0f%% of the memory probe's", c,
				one/a.Series[1].Values[i], 100*one/a.Series[2].Values[i])
		}
	}
	return s, nil
}

// arrivals is the order in which the gradients of a window of chunks arrive: shuffled, as from workers that are not in step.
type arrivals struct {
	order []uint32 // rank and chunk of the window, in 16 bits each
	count []int    // the gradients that each chunk has
}

// arrivalWindow is a worker's window where slots cost memory.
const arrivalWindow = 64

func newArrivals(workers int, rng *rand.Rand) *arrivals {
	a := &arrivals{count: make([]int, arrivalWindow)}
	for rank := range uint32(workers) {
		for c := range uint32(arrivalWindow) {
			a.order = append(a.order, rank<<16|c)
		}
	}
	rng.Shuffle(len(a.order), func(i, k int) { a.order[i], a.order[k] = a.order[k], a.order[i] })
	return a
}

// aggregate takes the gradients in an order of arrival. It adds each one to a sum when it arrives, or sums all in rank order when
// the last has arrived.
func (l *workload) aggregate(workers int, seed uint64, onArrival bool) error {
	const window = arrivalWindow * usualChunk
	size := min(l.bytes, window)
	return l.chunks(size, func(l *lane, base uint64) error {
		in := newArrivals(workers, rand.New(rand.NewPCG(seed, base)))
		for _, next := range in.order {
			rank, c := next>>16, uint64(next&0xffff)
			offset := base + c*usualChunk
			if c*usualChunk >= size {
				continue
			}
			in.count[c]++
			if onArrival {
				l.add(l.sum+offset, l.grads[rank:rank+1], offset, usualChunk, in.count[c] > 1)
			}
			if in.count[c] < workers {
				continue
			}
			sources := l.grads[:workers]
			if onArrival {
				sources = []uint64{l.sum}
			}
			if err := l.step(sources, offset, usualChunk); err != nil {
				return err
			}
		}
		return nil
	})
}

// changed counts the parameters that differ in their bits after a step in one order of arrival and in another.
func (l *workload) changed(workers int, onArrival bool) (uint64, error) {
	l.reset()
	if err := l.aggregate(workers, 1, onArrival); err != nil {
		return 0, err
	}
	first := append([]float32(nil), l.array(l.w)...)
	l.reset()
	if err := l.aggregate(workers, 2, onArrival); err != nil {
		return 0, err
	}
	differ := uint64(0)
	for i, v := range l.array(l.w) {
		if math.Float32bits(v) != math.Float32bits(first[i]) {
			differ++
		}
	}
	return differ, nil
}

func rankAndArrivalOrder(_ *Runner, cfg *AblateConfig) (*study, error) {
	most := workerCounts[len(workerCounts)-1]
	l, err := newWorkload(most, cfg.arrayBytes())
	if err != nil {
		return nil, err
	}
	s := &study{Ablation: Ablation{
		Title: "Gradients summed at once, or on arrival", Quantity: "workers", Measure: gradientRate,
		Series: series("at once, in rank order", "added on arrival"), kind: report.Bars,
		Counts:  map[string]uint64{"parameters": l.bytes / 4},
		Setting: fmt.Sprintf("%s; arrivals shuffled in windows of %d chunks", l.setting(), arrivalWindow),
	}, close: l.close}
	for how, onArrival := range map[string]bool{"rank order": false, "arrival order": true} {
		if s.Counts["changed by another order of arrival, "+how], err = l.changed(most, onArrival); err != nil {
			return nil, errors.Join(err, l.close())
		}
	}
	seed := uint64(0)
	for _, workers := range workerCounts {
		var row []measure
		for _, onArrival := range []bool{false, true} {
			row = append(row, func(context.Context) ([]float64, error) {
				seed++
				return l.rate(workers, func() error { return l.aggregate(workers, seed, onArrival) })
			})
		}
		s.Categories = append(s.Categories, fmt.Sprint(workers))
		s.rows = append(s.rows, row)
	}
	s.tell = func(a *Ablation) {
		for i, c := range a.Categories {
			a.find("%s workers: at once has %.2f times the rate of adding on arrival", c, a.Series[0].Values[i]/a.Series[1].Values[i])
		}
		a.find("another order of arrival changes the bits of %d of %d parameters when gradients are added on arrival, of %d in rank order",
			a.Counts["changed by another order of arrival, arrival order"], a.Counts["parameters"],
			a.Counts["changed by another order of arrival, rank order"])
	}
	return s, nil
}
