package lane

import (
	"slices"
	"testing"
)

// The lanes of a job agree on the order of what they do because each runs its commands in the order in which they were queued.
func TestCommandsOfABorrowedFlowRunInOrder(t *testing.T) {
	l := &Lane{Options: Options{Manual: true}}
	q := &l.commands
	q.l, l.flows.l = l, l
	lent, other := &Flow{lane: l}, &Flow{lane: l}
	var ran, others []int
	queue := func(n int) { q.put(command{flow: lent, run: func() error { ran = append(ran, n); return nil }}) }

	lent.borrowed, l.flows.borrowed = true, 1
	queue(1)
	queue(2)
	q.put(command{flow: other, run: func() error { others = append(others, 1); return nil }})
	q.runAll()
	if len(ran) > 0 || len(others) != 1 {
		t.Fatalf("while the flow is borrowed: %v of it ran, and %v of another", ran, others)
	}
	queue(3)
	q.put(command{run: func() error { q.takeBack(lent, nil); return nil }})
	queue(4)
	q.runAll()
	queue(5)
	q.runAll()
	if want := []int{1, 2, 3, 4, 5}; !slices.Equal(ran, want) || l.flows.borrowed != 0 {
		t.Errorf("ran %v, want %v; %d flows are borrowed", ran, want, l.flows.borrowed)
	}
}
