// Package pqueue is a priority queue for simulations. It is container/heap with a type parameter instead of five methods for each
// user.
package pqueue

import "container/heap"

// Queue holds items, the least of them first.
type Queue[T any] struct{ items items[T] }

// New returns an empty queue ordered by less. Equal items come out in no particular order.
func New[T any](less func(a, b T) bool) *Queue[T] { return &Queue[T]{items[T]{less: less}} }

// Len returns the number of items.
func (q *Queue[T]) Len() int { return q.items.Len() }

// Push adds an item.
func (q *Queue[T]) Push(x T) { heap.Push(&q.items, x) }

// Pop removes and returns the least item. The queue must not be empty.
func (q *Queue[T]) Pop() T { return heap.Pop(&q.items).(T) }

type items[T any] struct {
	all  []T
	less func(a, b T) bool
}

func (s *items[T]) Len() int           { return len(s.all) }
func (s *items[T]) Less(i, j int) bool { return s.less(s.all[i], s.all[j]) }
func (s *items[T]) Swap(i, j int)      { s.all[i], s.all[j] = s.all[j], s.all[i] }
func (s *items[T]) Push(x any)         { s.all = append(s.all, x.(T)) }
func (s *items[T]) Pop() any {
	last := len(s.all) - 1
	x := s.all[last]
	s.all = s.all[:last]
	return x
}
