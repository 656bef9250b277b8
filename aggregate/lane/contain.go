package lane

import (
	"fmt"
	"runtime/debug"
)

// PanicError is a panic in a lane. It fails the job whose input caused it, and the other jobs continue. Its text is for the job's
// workers, and Stack for the aggregator's log.
type PanicError struct {
	Value any
	Stack []byte
}

func (e *PanicError) Error() string {
	return fmt.Sprintf("panic in the aggregator: %v: report it, with the stack in the aggregator's log", e.Value)
}

// Unwrap returns the error that was the panic's value, if it was one.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}

// contain ends the job that the lane was serving when it panicked. If it served none, all its jobs fail, and the lane ends with the
// error. It is called in a deferred function.
func (l *Lane) contain(v any) error {
	err := l.panicError(v)
	if l.evict(err) {
		return nil
	}
	l.failAll(err)
	return err
}

// evict fails the job that the lane serves, if any, and takes it off the lane. Nothing of the tenant is used again.
func (l *Lane) evict(err error) bool {
	f := l.serving
	if f == nil {
		return false
	}
	l.serving = nil
	f.tenant.Fail(err)
	f.dead = true
	l.flows.forget(f)
	for _, c := range l.conns.of(f) {
		dropTorn(l, c)
	}
	return true
}

func (l *Lane) panicError(v any) error {
	return fmt.Errorf("lane %d: %w", l.Index, &PanicError{Value: v, Stack: debug.Stack()})
}

func (l *Lane) failAll(err error) {
	for _, f := range l.flows.all {
		f.tenant.Fail(err)
	}
}

// dropTorn drops a connection of a tenant that panicked. If that panics too, the queue pair stays until the end of the process, and
// its completions name a free number.
func dropTorn(l *Lane, c *Conn) {
	defer func() {
		if v := recover(); v != nil {
			l.conns.all[c.ID.Number] = nil
		}
	}()
	if err := l.Drop(c); err != nil {
		panic(err)
	}
}

// Audit returns an error that names the first invariant that does not hold between two rounds, for tests and the simulation. On the
// lane's goroutine.
func (l *Lane) Audit() error {
	for _, f := range l.flows.all {
		if err := f.tenant.Audit(); err != nil {
			return fmt.Errorf("lane %d: %w", l.Index, err)
		}
		if f.tenant.Pending() && !f.listed {
			return fmt.Errorf("lane %d: a tenant has something pending that the lane does not know of", l.Index)
		}
	}
	return nil
}
