package aggregate

import (
	"context"
	"fmt"
	"time"

	"github.com/rackweave/rackweave/aggregate/shard"
	"github.com/rackweave/rackweave/aggregate/store"
	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/verbs"
)

// Attach connects a worker to every lane. It makes the queue pairs and slots, posts the receives and waits passively for the worker
// to connect. Each rank attaches once.
func (j *Job) Attach(ctx context.Context, rank int, lanes []chunk.WorkerLane) ([]chunk.AggregatorLane, error) {
	if rank < 0 || rank >= j.shared.Workers || len(lanes) != len(j.shards) {
		return nil, fmt.Errorf("job %q: attach worker %d over %d lanes: the job has %d workers, the aggregator %d lanes", j.shared.Name, rank,
			len(lanes), j.shared.Workers, len(j.shards))
	}
	if err := j.open(); err != nil {
		return nil, err
	}
	out := make([]chunk.AggregatorLane, len(lanes))
	for i, l := range j.site.lanes {
		slots, err := j.memory.Allocate(store.Slots, i, l.Config.Node, int64(j.site.window*j.shared.ChunkBytes),
			verbs.AccessLocalWrite|verbs.AccessRemoteWrite|verbs.AccessForPeer(shard.PeerOf(rank)), lazySlots(l))
		if err != nil {
			return nil, err
		}
		s := j.shards[i]
		err = s.Flow.Do(ctx, func() (err error) {
			out[i], err = s.Workers.Attach(rank, slots, j.memory.PDs, &lanes[i])
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("job %q: %w", j.shared.Name, err)
		}
	}
	return out, nil
}

// lazySlots reports whether a lane's slots take no memory because payloads are read in place.
func lazySlots(l *Lane) bool { return l.Attr.Has(verbs.DevByReference) }

const (
	drainLimit = 500 * time.Millisecond
	drainPause = time.Millisecond
)

// Resume gives a worker's connection to a lane a new queue pair, which waits for the worker. Both ends take the old pair out of
// service, exchange the number of messages that they have received, and continue over the new pair (package session).
func (j *Job) Resume(ctx context.Context, rank int, r chunk.Resume) (out chunk.Resumed, err error) {
	pds := j.memory.PDs
	if rank < 0 || rank >= j.shared.Workers || r.Lane < 0 || r.Lane >= len(j.shards) || r.NIC < 0 || r.NIC >= len(pds) {
		return out, fmt.Errorf("job %q: resume lane %d of worker %d over NIC %d: the job has %d lanes and %d workers, the aggregator %d NICs",
			j.shared.Name, r.Lane, rank, r.NIC, len(j.shards), j.shared.Workers, len(pds))
	}
	s := j.shards[r.Lane]
	defer func() {
		if err != nil {
			err = fmt.Errorf("job %q: %w", j.shared.Name, err)
		}
	}()
	if err := s.Flow.Do(ctx, func() error { return s.Workers.TakeOut(rank, &r) }); err != nil {
		return out, err
	}
	drained := false
	for end := time.Now().Add(drainLimit); !drained && time.Now().Before(end); {
		if err := s.Flow.Do(ctx, func() (err error) { drained, err = s.Workers.Drain(rank, &r); return err }); err != nil {
			return out, err
		}
		if !drained {
			time.Sleep(drainPause)
		}
	}
	err = s.Flow.Do(ctx, func() (err error) { out, err = s.Workers.Reconnect(rank, &r, j.memory); return err })
	return out, err
}
