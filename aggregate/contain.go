package aggregate

import (
	"fmt"
	"runtime/debug"
)

// PanicError is a panic in a lane. It fails the job whose input caused it; the others go on. Its text is for the job's workers,
// Stack for the aggregator's log.
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

// runCommands runs what other goroutines asked for, each by itself: a panic is returned to who asked.
func (l *Lane) runCommands() {
	for _, c := range l.takeCommands() {
		if c.share != nil && c.share.lent {
			l.parked = append(l.parked, c)
			continue
		}
		err := l.guard(c.share, c.run)
		if c.done != nil {
			c.done <- err
		}
	}
}

// guard runs a command of a share, or of none, and returns the panic that it ended with. A share that panicked takes no more
// commands.
func (l *Lane) guard(s *share, f func()) (err error) {
	if s != nil && s.dead {
		return s.fate.failure.Load().Err
	}
	l.serving = s
	if l.watch != nil {
		f = l.watch(f)
	}
	if !l.manual {
		defer func() {
			if v := recover(); v != nil {
				err = l.panicError(v)
				l.condemn(err)
			}
		}()
	}
	f()
	return nil
}

// contain ends the job that the lane was serving when it panicked. Where it served none, all its jobs fail, and it ends with the
// error. In a deferred function.
func (l *Lane) contain(v any) error {
	err := l.panicError(v)
	if l.condemn(err) {
		return nil
	}
	l.failAll(err)
	return err
}

// condemn fails the job that the lane serves, if it serves one, and takes it off the lane.
func (l *Lane) condemn(err error) bool {
	s := l.serving
	if s == nil {
		return false
	}
	l.serving = nil
	s.fate.fail(noRank, err)
	l.quarantine(s)
	return true
}

func (l *Lane) panicError(v any) error {
	return fmt.Errorf("lane %d: %w", l.index, &PanicError{Value: v, Stack: debug.Stack()})
}

// failAll fails every job of the lane.
func (l *Lane) failAll(err error) {
	for _, s := range l.shares {
		s.fate.fail(noRank, err)
	}
}

// quarantine takes a share off the lane whose state may be torn: nothing of it is used again but what closes its connections.
func (l *Lane) quarantine(s *share) {
	s.dead = true
	l.forget(s)
	for i := range l.seats {
		if l.seats[i].share == s {
			l.dropTorn(l.seats[i].link)
		}
	}
}

// dropTorn drops a connection of a share that panicked. If that panics too, the queue pair is left to the end of the process:
// its completions name a seat that is free.
func (l *Lane) dropTorn(k *link) {
	defer func() {
		if v := recover(); v != nil {
			l.seats[k.ID().Number] = seat{}
		}
	}()
	if err := l.drop(k); err != nil {
		panic(err)
	}
}
