// Package failure records why a job ended, and which worker caused it.
//
// Death is noticed on the data path: a shared-memory connection's socket, a TCP connection, an RDMA queue pair's retries each end
// in a completion in error at the peer, within about a second. The first failure that a [Latch] records is the job's; what follows
// is its consequence. Where a worker may have closed its connections because another aggregator told it to, the loss waits for a
// better explanation.
//
// A worker that is stopped keeps its connections. A few seconds are ridden out; after ten without heartbeats the control plane ends
// the job, and names the worker.
package failure

import (
	"sync/atomic"
	"time"
)

// NoRank stands for a failure that no worker caused.
const NoRank = -1

// Failure is the reason for the end of a job: the rank of the worker that caused it, or [NoRank], and the error.
type Failure struct {
	Rank int
	Err  error
}

// Latch holds a job's first failure. Any goroutine may use it.
type Latch struct {
	first  atomic.Pointer[Failure]
	failed chan struct{}
	notify func()
	// grace is the time for which the loss of a worker waits for a better explanation. A worker that has received the job's failure
	// from another aggregator closes its connections here, and is not to blame.
	grace time.Duration
	// Spare reports whether the job continues without a lost worker. If nil, it does not. It is set before the latch is used.
	Spare func(rank int, err error) bool
}

// NewLatch returns a latch that calls notify after the first failure. A lost worker counts as a failure after grace.
func NewLatch(notify func(), grace time.Duration) *Latch {
	return &Latch{failed: make(chan struct{}), notify: notify, grace: grace}
}

// Failure returns why the job failed, or nil.
func (l *Latch) Failure() *Failure { return l.first.Load() }

// Has reports whether the job has failed.
func (l *Latch) Has() bool { return l.first.Load() != nil }

// Failed returns a channel that is closed when the job fails.
func (l *Latch) Failed() <-chan struct{} { return l.failed }

// Fail ends the job, unless it has failed before. If rank is negative, no worker is to blame.
func (l *Latch) Fail(rank int, err error) {
	if l.first.CompareAndSwap(nil, &Failure{rank, err}) {
		close(l.failed)
		l.notify()
	}
}

// Lose takes out a lost worker, and reports whether the job continues without it. Otherwise the job has failed.
func (l *Latch) Lose(rank int, err error) (continues bool) {
	if l.Spare != nil && l.Spare(rank, err) {
		return true
	}
	l.Fail(rank, err)
	return false
}

// Lost is Lose for a worker whose connection is lost.
func (l *Latch) Lost(rank int, err error) {
	if l.grace == 0 {
		l.Lose(rank, err)
		return
	}
	time.AfterFunc(l.grace, func() { l.Lose(rank, err) })
}
