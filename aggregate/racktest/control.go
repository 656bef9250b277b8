package racktest

import (
	"context"
	"time"

	"github.com/rackweave/rackweave/aggregate"
	"github.com/rackweave/rackweave/client/lanes"
)

// reconnectTimeout bounds the connecting of a lane that is resumed. In a simulation it passes at once if the peer is not there.
const reconnectTimeout = 10 * time.Millisecond

// control lets a worker's session ask the job to connect, in process.
type control struct {
	job  *aggregate.Job
	rank int
}

// Attach implements [lanes.Control].
func (c control) Attach(ctx context.Context, ends []lanes.WorkerLane) ([]lanes.AggregatorLane, error) {
	theirs := make([]aggregate.WorkerLane, len(ends))
	for i, e := range ends {
		theirs[i] = aggregate.WorkerLane(e)
	}
	answer, err := c.job.Attach(ctx, c.rank, theirs)
	out := make([]lanes.AggregatorLane, len(answer))
	for i, l := range answer {
		out[i] = lanes.AggregatorLane(l)
	}
	return out, err
}

// Resume implements [lanes.Control].
func (c control) Resume(ctx context.Context, r lanes.Resume) (lanes.Resumed, error) {
	answer, err := c.job.Resume(ctx, c.rank, aggregate.Resume(r))
	return lanes.Resumed{AggregatorLane: lanes.AggregatorLane(answer.AggregatorLane), Received: answer.Received}, err
}
