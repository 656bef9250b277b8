package hierarchy

import "slices"

// queue is a first-in, first-out queue with room for as many elements as its capacity. It is short, so taking the oldest is cheap.
type queue[T comparable] []T

func (q *queue[T]) put(v T) {
	if len(*q) == cap(*q) {
		panic("hierarchy: a queue holds more than can wait")
	}
	*q = append(*q, v)
}

// take removes the oldest element.
func (q *queue[T]) take() T {
	v := (*q)[0]
	*q = slices.Delete(*q, 0, 1)
	return v
}

// advance moves an element before all others.
func (q *queue[T]) advance(v T) *queue[T] {
	i := slices.Index(*q, v)
	copy((*q)[1:i+1], *q)
	(*q)[0] = v
	return q
}
