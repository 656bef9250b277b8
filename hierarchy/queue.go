package hierarchy

// ring is a bounded first-in, first-out queue.
type ring[T comparable] struct {
	all     []T
	head, n int
}

func newRing[T comparable](size int) ring[T] { return ring[T]{all: make([]T, size)} }

func (r *ring[T]) len() int { return r.n }

// at returns the i-th oldest element.
func (r *ring[T]) at(i int) *T { return &r.all[(r.head+i)%len(r.all)] }

func (r *ring[T]) put(v T) {
	if r.n == len(r.all) {
		panic("hierarchy: a ring holds more than can wait")
	}
	r.n++
	*r.at(r.n - 1) = v
}

// take removes the oldest element.
func (r *ring[T]) take() T {
	v := *r.at(0)
	r.head = (r.head + 1) % len(r.all)
	r.n--
	return v
}

// advance moves an element of the ring before all others.
func (r *ring[T]) advance(v T) {
	for i := range r.n {
		if *r.at(i) != v {
			continue
		}
		for ; i > 0; i-- {
			*r.at(i) = *r.at(i - 1)
		}
		*r.at(0) = v
		return
	}
}
