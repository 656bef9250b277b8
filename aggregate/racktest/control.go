package racktest

import (
	"context"
	"time"

	"github.com/rackweave/rackweave/aggregate"
	"github.com/rackweave/rackweave/client/lanes"
)

// reconnectTimeout bounds the connecting of a lane that is resumed. In a simulation it passes at once if the peer does not wait.
const reconnectTimeout = 10 * time.Millisecond

// control connects a worker's session to the job, in process.
type control struct {
	jobs  []*aggregate.Job // by aggregator
	lanes int              // number of each aggregator's lanes
	nics  int
	rank  int
}

// Attach implements [lanes.Control].
func (c control) Attach(ctx context.Context, ends []lanes.WorkerLane) ([]lanes.AggregatorLane, error) {
	theirs := make([]aggregate.WorkerLane, len(ends))
	for i, e := range ends {
		theirs[i] = aggregate.WorkerLane(e)
	}
	var out []lanes.AggregatorLane
	for i, job := range c.jobs {
		answer, err := job.Attach(ctx, c.rank, theirs[i*c.lanes:(i+1)*c.lanes])
		if err != nil {
			return nil, err
		}
		for _, l := range answer {
			out = append(out, lanes.AggregatorLane(l))
		}
	}
	return out, nil
}

// Resume implements [lanes.Control].
func (c control) Resume(ctx context.Context, r lanes.Resume) (lanes.Resumed, error) {
	at := r.Lane / c.lanes
	r.NIC -= at * c.nics
	r.Lane %= c.lanes
	answer, err := c.jobs[at].Resume(ctx, c.rank, aggregate.Resume(r))
	return lanes.Resumed{AggregatorLane: lanes.AggregatorLane(answer.Attached), Received: answer.Received}, err
}
