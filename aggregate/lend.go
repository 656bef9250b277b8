package aggregate

import (
	"context"
	"sync/atomic"
)

// borrow runs f on the caller's goroutine while the lane leaves the share alone: however long f takes, other jobs are served
// meanwhile, and what arrives for the share waits. f may use the share, but nothing else of the lane's. A panic of f ends the job.
func (l *Lane) borrow(ctx context.Context, s *share, f func() error) (err error) {
	if l.manual {
		return l.try(ctx, s, f)
	}
	var claimed atomic.Bool // by the lane, which lends, or by a caller who waits no longer
	err = l.do(ctx, s, func() {
		if claimed.CompareAndSwap(false, true) {
			l.flush() // it posts what the share has left to post
			s.lent = true
			l.lent++
		}
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
		l.enqueue(command{run: func() { l.takeBack(s, failed) }})
	}()
	if err == nil {
		err = f()
	}
	return err
}

// takeBack ends a loan, and the job if the borrower panicked.
func (l *Lane) takeBack(s *share, failed error) {
	s.lent = false
	l.lent--
	if failed != nil {
		l.serving = s
		l.condemn(failed)
	}
	for _, c := range l.parked {
		l.enqueue(c)
	}
	l.parked = l.parked[:0]
}
