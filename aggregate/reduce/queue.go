package reduce

// queue is a bounded first-in, first-out queue.
type queue[T any] struct {
	ring []T
	head int
	n    int
}

func (q *queue[T]) len() int { return q.n }

// grow makes room for at least size elements.
func (q *queue[T]) grow(size int) {
	if size <= len(q.ring) {
		return
	}
	ring := make([]T, size)
	for i := range q.n {
		ring[i] = *q.at(i)
	}
	q.ring, q.head = ring, 0
}

// at returns the i-th oldest element.
func (q *queue[T]) at(i int) *T { return &q.ring[(q.head+i)%len(q.ring)] }

func (q *queue[T]) put(v T) {
	if q.n == len(q.ring) {
		panic("reduce: a queue holds more than can wait")
	}
	q.n++
	*q.at(q.n - 1) = v
}

func (q *queue[T]) drop() {
	q.head = (q.head + 1) % len(q.ring)
	q.n--
}
