package client

import (
	"errors"

	"github.com/rackweave/rackweave/client/membership"
)

// Errors of this package wrap one of these.
var (
	// ErrAborted means that the job failed. A [*JobError] names the worker to blame.
	ErrAborted = membership.ErrAborted
	// ErrServerLost means that the aggregator cannot be reached.
	ErrServerLost = membership.ErrServerLost
	// ErrTimeout means that a deadline passed.
	ErrTimeout = membership.ErrTimeout
	// ErrClosed means that the worker was closed.
	ErrClosed = membership.ErrClosed
	// ErrRefused means that the aggregator refused the request. errors.As finds its code, in a *connect.Error.
	ErrRefused = membership.ErrRefused
	// ErrBusy means that the tensor has an operation in flight.
	ErrBusy = errors.New("busy")
)

// JobError is the failure of a job. It wraps [ErrAborted].
type JobError = membership.JobError
