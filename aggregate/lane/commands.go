package lane

import (
	"context"
	"sync"
	"sync/atomic"
)

type command struct {
	flow *Flow
	run  func() error
	done chan<- error // receives run's error, or the panic that ended it; if nil, the caller does not wait
}

// commands holds the commands that other goroutines have queued, oldest first.
type commands struct {
	l      *Lane
	mu     sync.Mutex
	queued []command
	taken  []command // no longer queued, and not run yet; only the lane's goroutine uses it
	some   atomic.Bool
}

func (q *commands) put(c command) {
	q.mu.Lock()
	q.queued = append(q.queued, c)
	q.mu.Unlock()
}

func (q *commands) take() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.taken = append(q.taken, q.queued...)
	clear(q.queued)
	q.queued = q.queued[:0]
}

// Do runs f on the lane's goroutine, between rounds, and waits for it. It returns a panic of f as an error.
func (l *Lane) Do(ctx context.Context, f func()) error {
	return l.commands.do(ctx, nil, func() error { f(); return nil })
}

// Do runs f on the lane's goroutine, between rounds, and returns its error. A panic of f ends the tenant's job and is returned. If
// ctx ends first, the lane may still run f later, so the caller must not read anything that f sets. In a manual lane f runs at once
// and nothing is contained, so that tests and the simulation see every panic.
func (f *Flow) Do(ctx context.Context, run func() error) error {
	return f.lane.commands.do(ctx, f, run)
}

func (q *commands) do(ctx context.Context, f *Flow, run func() error) error {
	l := q.l
	if l.Manual {
		l.serving = f
		return run()
	}
	done := make(chan error, 1)
	q.enqueue(command{f, run, done})
	select {
	case err := <-done:
		return err
	case <-l.done:
		return ErrClosed
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Later runs f on the lane's goroutine, between rounds. Any goroutine may call it, the lane's too.
func (f *Flow) Later(run func()) {
	f.lane.commands.enqueue(command{flow: f, run: func() error { run(); return nil }})
}

func (q *commands) enqueue(c command) {
	q.put(c)
	q.l.Notify()
}

// Notify makes the lane run its commands, end failed jobs and go on with work that waits, instead of sleeping. Any goroutine may
// call it.
func (l *Lane) Notify() {
	l.commands.some.Store(true)
	l.queues.cqs[l.queues.primary].Wake()
}

// runAll runs the queued commands one by one, in order. Commands for a borrowed flow wait until it is returned. A panic is returned
// to the caller of its command.
func (q *commands) runAll() {
	for q.take(); len(q.taken) > 0; {
		c := q.taken[0]
		q.taken[0] = command{}
		q.taken = q.taken[1:]
		if c.flow != nil && c.flow.borrowed {
			c.flow.parked = append(c.flow.parked, c)
			continue
		}
		err := q.guard(c.flow, c.run)
		if c.done != nil {
			c.done <- err
		}
	}
}

// guard runs a command and returns its error, or the panic that ended it. A tenant that panicked runs no more commands.
func (q *commands) guard(f *Flow, run func() error) (err error) {
	l := q.l
	if f != nil && f.dead {
		return f.tenant.Failure()
	}
	l.serving = f
	if l.Watch != nil {
		run = l.Watch(run)
	}
	if !l.Manual {
		defer func() {
			if v := recover(); v != nil {
				err = l.panicError(v)
				l.evict(err)
			}
		}()
	}
	return run()
}

// Borrow runs f on the caller's goroutine while the lane leaves the tenant alone. However long f takes, the lane serves other
// tenants, and completions for this one wait. f may use the tenant, but nothing of the lane. A panic of f ends the job.
func (f *Flow) Borrow(ctx context.Context, run func() error) (err error) {
	l := f.lane
	if l.Manual {
		return f.Do(ctx, run)
	}
	var claimed atomic.Bool // by the lane, which parks the tenant, or by a caller that stops waiting
	err = f.Do(ctx, func() error {
		if claimed.CompareAndSwap(false, true) {
			l.flush()
			f.borrowed = true
			l.flows.borrowed++
		}
		return nil
	})
	if err != nil && claimed.CompareAndSwap(false, true) {
		return err
	}
	defer func() {
		var failed error
		if v := recover(); v != nil {
			failed = l.panicError(v)
			err = failed
		}
		l.commands.enqueue(command{run: func() error { l.commands.takeBack(f, failed); return nil }})
	}()
	if err == nil {
		err = run()
	}
	return err
}

// takeBack ends a loan, and the job if the borrower panicked. The flow's parked commands run next, because they are older than its
// others.
func (q *commands) takeBack(f *Flow, failed error) {
	l := q.l
	f.borrowed = false
	l.flows.borrowed--
	if failed != nil {
		l.serving = f
		l.evict(failed)
	}
	q.taken = append(f.parked, q.taken...)
	f.parked = nil
}
