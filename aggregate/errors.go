package aggregate

import (
	"errors"

	"github.com/rackweave/rackweave/aggregate/failure"
	"github.com/rackweave/rackweave/aggregate/lane"
	"github.com/rackweave/rackweave/aggregate/reduce"
	"github.com/rackweave/rackweave/aggregate/shard"
	"github.com/rackweave/rackweave/aggregate/uplink"
)

var (
	// ErrClosed is returned for work on a closed lane, job or engine.
	ErrClosed = lane.ErrClosed
	// ErrProtocol is wrapped by a worker's violation of the protocol.
	ErrProtocol   = reduce.ErrProtocol
	ErrWorkerLost = reduce.ErrWorkerLost
	ErrFull       = lane.ErrFull
	ErrQueueLost  = lane.ErrQueueLost
	// ErrStale is returned for an attempt to resume after a later attempt.
	ErrStale = shard.ErrStale
	// ErrNotQuiet is returned by a [Snapshot] while gradients are under way.
	ErrNotQuiet = errors.New("gradients are under way")
	// ErrNoSnapshot is returned for a job whose state a [Snapshot] cannot hold.
	ErrNoSnapshot = errors.New("its state cannot be saved")
)

// These errors belong to the rooms below. Callers inspect them.
type (
	// PanicError is a panic in a lane.
	PanicError = lane.PanicError
	// FailedElsewhere is the failure of a job in another rack.
	FailedElsewhere = uplink.FailedElsewhere
)

const noRank = failure.NoRank
