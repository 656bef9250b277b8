package aggregate

import (
	"errors"

	"github.com/rackweave/rackweave/aggregate/reduce"
)

// Errors of engines and jobs.
var (
	// ErrClosed is returned for work on a closed lane, job or engine.
	ErrClosed = errors.New("closed")
	// ErrProtocol is what a worker's violation of the protocol wraps.
	ErrProtocol   = reduce.ErrProtocol
	ErrWorkerLost = errors.New("worker lost")
	// ErrPeerLost is what the loss of another rack's aggregator wraps.
	ErrPeerLost  = errors.New("aggregator lost")
	ErrFull      = errors.New("aggregator is full")
	ErrQueueLost = errors.New("completion queue lost")
	// ErrStale is returned for an attempt to resume that a later one has overtaken.
	ErrStale = errors.New("stale attempt")
	// ErrNotQuiet is what a [Snapshot] fails with when gradients are under way.
	ErrNotQuiet = errors.New("gradients are under way")
)

const noRank = -1 // a failure that no worker caused
