package aggregate

import (
	"sync/atomic"
	"time"
)

// Failure is why a job ended: the worker that caused it, or -1, and the error.
type Failure struct {
	Rank int
	Err  error
}

// lossPatience is the patience of a job that is spread over several aggregators.
const lossPatience = time.Second

// fate is whether a job has failed. Any goroutine may use it.
type fate struct {
	failure atomic.Pointer[Failure]
	failed  chan struct{}
	notify  func() // makes every lane of the job look
	// patience is how long the loss of a worker waits for a better explanation. A worker that has heard of the job's failure at
	// another aggregator lets go of its connections here, and is not to blame.
	patience time.Duration
}

// fail ends the job with its first failure.
func (f *fate) fail(rank int, err error) {
	if f.failure.CompareAndSwap(nil, &Failure{rank, err}) {
		close(f.failed)
		f.notify()
	}
}

// lost ends the job because of a worker whose connection is lost.
func (f *fate) lost(rank int, err error) {
	if f.patience == 0 {
		f.fail(rank, err)
		return
	}
	time.AfterFunc(f.patience, func() { f.fail(rank, err) })
}
