package reduce

// Queue is a first-in, first-out queue. It allocates only until it has reached its largest size.
type Queue[T any] struct {
	ring []T
	head int
	n    int
}

// Len returns the number of elements.
func (q *Queue[T]) Len() int { return q.n }

func (q *Queue[T]) grow(size int) {
	if size <= len(q.ring) {
		return
	}
	ring := make([]T, size)
	for i := range q.n {
		ring[i] = *q.at(i)
	}
	q.ring, q.head = ring, 0
}

func (q *Queue[T]) at(i int) *T { return &q.ring[(q.head+i)%len(q.ring)] }

// Put appends an element.
func (q *Queue[T]) Put(v T) {
	if q.n == len(q.ring) {
		q.grow(max(64, 2*q.n))
	}
	q.n++
	*q.at(q.n - 1) = v
}

// Take removes the oldest element.
func (q *Queue[T]) Take() T {
	v := q.ring[q.head]
	q.head = (q.head + 1) % len(q.ring)
	q.n--
	return v
}
