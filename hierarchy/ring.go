package hierarchy

// ring is a bounded first-in, first-out queue.
type ring[T comparable] struct {
	all  []T
	head int
	n    int
}

func newRing[T comparable](size int) ring[T] { return ring[T]{all: make([]T, size)} }

// fullRing returns a ring of the numbers from 0 to size-1.
func fullRing(size int) ring[uint16] {
	r := newRing[uint16](size)
	for i := range size {
		r.put(uint16(i))
	}
	return r
}

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

func (r *ring[T]) drop() {
	r.head = (r.head + 1) % len(r.all)
	r.n--
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
