package aggregate

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/rackweave/rackweave/verbs"
)

// WorkerLane is what a worker says of its end of a lane's connection.
type WorkerLane struct {
	Endpoint  []byte
	ReplyAddr uint64 // its staging buffers, of a chunk each; by reference answers go to where payloads lie instead
	ReplyRKey uint32
	Staging   uint32 // how many: the window, or fewer by reference
	// How long the box retries a message that is not acknowledged; 0: the contract's default.
	AckTimeout time.Duration
	// The worker can resume the connection over other NICs when its queue pair fails.
	Resumable bool
}

// AggregatorLane is what the worker needs of the aggregator's end.
type AggregatorLane struct {
	Endpoint []byte
	SlotAddr uint64
	SlotRKey uint32
}

// Attach connects a worker to every lane: it makes the queue pairs and slots, posts the receives and waits, passive, for the
// worker to connect. Each rank attaches once.
func (j *Job) Attach(ctx context.Context, rank int, lanes []WorkerLane) ([]AggregatorLane, error) {
	if rank < 0 || rank >= j.workers || len(lanes) != len(j.shares) {
		return nil, fmt.Errorf("job %q: attach worker %d over %d lanes: the job has %d workers, the aggregator %d lanes", j.name, rank, len(lanes), j.workers, len(j.shares))
	}
	if err := j.open(); err != nil {
		return nil, err
	}
	out := make([]AggregatorLane, len(lanes))
	for i, s := range j.shares {
		c, err := j.newConn(s, rank, lanes[i])
		if err != nil {
			return nil, err
		}
		if err := s.lane.try(ctx, func() (err error) { out[i], err = s.attach(c, lanes[i].Endpoint); return err }); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// newConn prepares a connection's memory, off the lane's goroutine.
func (j *Job) newConn(s *share, rank int, w WorkerLane) (*conn, error) {
	c := &conn{share: s, lane: s.lane, rank: rank, replyAddr: w.ReplyAddr, replyRKey: w.ReplyRKey, staging: int(w.Staging), free: make([]uint16, j.window)}
	c.mend = mending{possible: w.Resumable && s.lane.attr.Has(verbs.DevLink), ackTimeout: w.AckTimeout}
	for i := range c.free {
		c.free[i] = uint16(i)
	}
	var err error
	c.slots, err = j.allocate(slotRegion, s.lane, "slots", int64(j.window*j.chunkBytes), verbs.AccessLocalWrite|verbs.AccessRemoteWrite,
		s.lane.attr.Has(verbs.DevByReference))
	if err != nil {
		return nil, err
	}
	return c, nil
}

// attach opens the connection; on the lane's goroutine.
func (s *share) attach(c *conn, peer []byte) (AggregatorLane, error) {
	if s.conns[c.rank] != nil {
		return AggregatorLane{}, fmt.Errorf("job %q: worker %d is attached already", s.job.name, c.rank)
	}
	endpoint, err := c.open(peer)
	if err != nil {
		return AggregatorLane{}, errors.Join(err, c.close())
	}
	c.dst = make([]destination, len(s.tensors))
	c.hyperSum = make([]uint32, len(s.tensors))
	c.asked = make([]bool, len(s.chunks))
	s.conns[c.rank] = c
	return c.aggregatorLane(endpoint), nil
}

func (c *conn) aggregatorLane(endpoint []byte) AggregatorLane {
	return AggregatorLane{Endpoint: endpoint, SlotAddr: c.slots.addr(), SlotRKey: c.slots.mrs[c.nic].RKey}
}
