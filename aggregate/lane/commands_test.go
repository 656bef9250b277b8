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

// busyTenant always has pending work, and counts how often the lane continues it.
type busyTenant struct {
	Tenant
	advanced int
}

func (b *busyTenant) Advance() bool     { b.advanced++; return true }
func (b *busyTenant) Pending() bool     { return true }
func (b *busyTenant) Failure() error    { return nil }
func (b *busyTenant) Publish(*Counters) {}

// A round decides before its commands whether it serves a single flow, and one of these commands may lend that flow. From then on
// the borrower alone uses the tenant.
func TestAFlowThatIsLentInARoundDoesNotAdvanceInIt(t *testing.T) {
	l := &Lane{Options: Options{Manual: true, Now: func() int64 { return 0 }}}
	l.queues = queues{l: l, lost: []bool{true}, on: []int{0}} // no completions
	l.flows.l, l.commands.l = l, l
	tenant := &busyTenant{}
	f := l.Join(tenant, 1)
	f.Enter()
	f.Schedule()
	round := func(run func()) {
		t.Helper()
		if run != nil {
			l.commands.put(command{run: func() error { run(); return nil }})
			l.commands.some.Store(true)
		}
		if _, err := l.Step(); err != nil {
			t.Fatal(err)
		}
	}
	round(nil)
	if tenant.advanced != 1 {
		t.Fatalf("a flow with pending work advanced %d times in a round", tenant.advanced)
	}
	round(func() { f.borrowed = true; l.flows.borrowed++ })
	round(nil)
	if tenant.advanced != 1 {
		t.Errorf("a lent flow advanced %d times", tenant.advanced-1)
	}
	round(func() { l.commands.takeBack(f, nil) })
	if tenant.advanced != 2 {
		t.Errorf("a flow advanced %d times in the round in which it came back, want once", tenant.advanced-1)
	}
}
