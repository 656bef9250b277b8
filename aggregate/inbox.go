package aggregate

import "github.com/rackweave/rackweave/verbs"

// inbox holds a share's completions, oldest first, until its turn comes. What it can hold is bounded by the work requests of the
// share's queue pairs; it allocates until it has seen as many.
type inbox struct {
	ring []verbs.WC
	head int
	n    int
}

func (b *inbox) put(wc *verbs.WC) {
	if b.n == len(b.ring) {
		ring := make([]verbs.WC, max(64, 2*len(b.ring)))
		for i := range b.n {
			ring[i] = b.ring[(b.head+i)%len(b.ring)]
		}
		b.ring, b.head = ring, 0
	}
	b.ring[(b.head+b.n)%len(b.ring)] = *wc
	b.n++
}

// take removes the oldest.
func (b *inbox) take() verbs.WC {
	wc := b.ring[b.head]
	b.head = (b.head + 1) % len(b.ring)
	b.n--
	return wc
}
