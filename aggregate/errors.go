package aggregate

import (
	"errors"
	"fmt"

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
	// ErrNoSnapshot is returned for a job whose state no [Snapshot] can hold.
	ErrNoSnapshot = errors.New("its state cannot be saved")
)

// FailedElsewhere is why a job fails that has failed in another rack.
type FailedElsewhere struct {
	Rack   string
	Worker int // that caused it, by its rank in the whole job; -1: none
}

func (e *FailedElsewhere) Error() string {
	if e.Worker < 0 {
		return fmt.Sprintf("the job failed in rack %q: see its aggregator", e.Rack)
	}
	return fmt.Sprintf("the job failed in rack %q: worker %d caused it", e.Rack, e.Worker)
}

const noRank = -1 // a failure that no worker caused
