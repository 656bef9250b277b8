package racktest

import (
	"context"
	"time"

	"github.com/rackweave/rackweave/aggregate"
	"github.com/rackweave/rackweave/chunk"
)

// reconnectTimeout bounds the connecting of a lane that is resumed. In a simulation it passes at once if the peer does not wait.
const reconnectTimeout = 10 * time.Millisecond

// control connects a worker's session to the job, in process.
type control struct {
	jobs  []*aggregate.Job // by aggregator
	lanes int              // number of each aggregator's lanes
	nics  int
	rank  int
	to    *[]uint64 // the addresses of the worker's staging buffers, by lane
}

// Attach implements the lanes.Control of package client/lanes.
func (c control) Attach(ctx context.Context, ends []chunk.WorkerLane) ([]chunk.AggregatorLane, error) {
	var out []chunk.AggregatorLane
	for _, end := range ends {
		*c.to = append(*c.to, end.ReplyAddr)
	}
	for i, job := range c.jobs {
		answer, err := job.Attach(ctx, c.rank, ends[i*c.lanes:(i+1)*c.lanes])
		if err != nil {
			return nil, err
		}
		out = append(out, answer...)
	}
	return out, nil
}

// Resume implements the lanes.Control of package client/lanes.
func (c control) Resume(ctx context.Context, r chunk.Resume) (chunk.Resumed, error) {
	at := r.Lane / c.lanes
	r.NIC -= at * c.nics
	r.Lane %= c.lanes
	return c.jobs[at].Resume(ctx, c.rank, r)
}
