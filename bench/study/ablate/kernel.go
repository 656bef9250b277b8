package ablate

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/rackweave/rackweave/cgo/kernel"
)

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

func fusedAndTwoPasses(l *workload) (*study, error) {
	return &study{
		Ablation: Ablation{
			Title: "Sum and optimizer in one pass, or in two", Setting: l.setting(),
			Series: []Series{{Label: "one pass"}, {Label: "sum, then update"}, {Label: "memory probe"}},
		},
		works: func(workers int) []func() error {
			probe := kernel.Probe{Read: l.grads[:workers], Update: []uint64{l.w, l.m}, Bytes: l.bytes}
			return []func() error{
				func() error { return l.onePass(workers) },
				func() error { return l.twoPasses(workers) },
				func() error { probe.Run(l.isa, l.threads); return nil },
			}
		},
		find: func(a *Ablation) {
			for i, workers := range a.Workers {
				one := a.Series[0].Values[i]
				a.finding("%d workers: one pass has %.2f times the rate of two, and %.0f%% of the memory probe's", workers,
					one/a.Series[1].Values[i], 100*one/a.Series[2].Values[i])
			}
		},
	}, nil
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
	first := slices.Clone(l.array(l.w))
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

func rankAndArrivalOrder(l *workload) (*study, error) {
	most := len(l.grads)
	inOrder, err := l.changed(most, false)
	if err != nil {
		return nil, err
	}
	onArrival, err := l.changed(most, true)
	if err != nil {
		return nil, err
	}
	seed := uint64(0)
	aggregate := func(workers int, onArrival bool) func() error {
		return func() error {
			seed++
			return l.aggregate(workers, seed, onArrival)
		}
	}
	return &study{
		Ablation: Ablation{
			Title:   "Gradients summed at once, or on arrival",
			Series:  []Series{{Label: "at once, in rank order"}, {Label: "added on arrival"}},
			Setting: fmt.Sprintf("%s; arrivals shuffled in windows of %d chunks", l.setting(), arrivalWindow),
		},
		works: func(workers int) []func() error {
			return []func() error{aggregate(workers, false), aggregate(workers, true)}
		},
		find: func(a *Ablation) {
			for i, workers := range a.Workers {
				a.finding("%d workers: at once has %.2f times the rate of adding on arrival", workers,
					a.Series[0].Values[i]/a.Series[1].Values[i])
			}
			a.finding("another order of arrival changes the bits of %d of %d parameters when gradients are added on arrival, of %d in "+
				"rank order", onArrival, l.bytes/4, inOrder)
		},
	}, nil
}
