package aggregate

import "sync/atomic"

// Failure is why a job ended: the worker that caused it, or -1, and the error.
type Failure struct {
	Rank int
	Err  error
}

// fate is whether a job has failed. Any goroutine may use it.
type fate struct {
	failure atomic.Pointer[Failure]
	failed  chan struct{}
	notify  func() // makes every lane of the job look
}

// fail ends the job with its first failure.
func (f *fate) fail(rank int, err error) {
	if f.failure.CompareAndSwap(nil, &Failure{rank, err}) {
		close(f.failed)
		f.notify()
	}
}
