package aggregate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/rackweave/rackweave/aggregate/shard"
	"github.com/rackweave/rackweave/aggregate/store"
	"github.com/rackweave/rackweave/aggregate/uplink"
	"github.com/rackweave/rackweave/hierarchy"
	"github.com/rackweave/rackweave/verbs"
)

// PeerLane is one rack's end of a lane's connection to another rack's aggregator.
type PeerLane = uplink.PeerLane

// RackCounters returns the counters of each rack, summed over the lanes, or nil if the rack is alone.
func (j *Job) RackCounters() []RackCounters {
	if j.place == nil {
		return nil
	}
	out := make([]RackCounters, j.place.Racks)
	for _, u := range j.uplinks {
		u.Counters(out)
	}
	return out
}

// Drift describes how far parameters are from the common ones. Racks that train apart are measured before the last round of each
// chunk, if their rounds follow the drift. A worker of mode stream is measured when its gradient comes, by the parameters it read.
type Drift struct {
	Share       float64 // the root mean square of the distances over that of the common parameters' lengths
	Least, Most uint32  // steps from a chunk's last round to its next; 0 in mode stream
	Mean        float64
}

// Drift returns the drift of racks that train apart or, from a sample, of mode stream. It reports whether there is one yet.
func (j *Job) Drift(ctx context.Context) (d Drift, ok bool, err error) {
	var chunks, steps, distance, length float64
	switch {
	case j.Gate != nil:
		for _, s := range j.shards {
			err := s.Flow.Borrow(ctx, func() error {
				far, long := shard.DriftOf(s)
				distance, length = distance+far, length+long
				return nil
			})
			if err != nil {
				return d, false, err
			}
		}
		if distance > 0 {
			d.Share = math.Sqrt(distance / length)
		}
		return d, length > 0, nil
	case j.config.Outer.Drift == 0:
		return d, false, nil
	}
	err = (&Snapshot{job: j}).eachChunk(ctx, func(_ *shard.Shard, c *store.Chunk) error {
		if r := &c.Round; r.Interval > 0 {
			chunks, steps = chunks+1, steps+float64(r.Interval)
			distance, length = distance+float64(r.Distance), length+float64(r.Length)
			d.Least, d.Most = min(cmp.Or(d.Least, r.Interval), r.Interval), max(d.Most, r.Interval)
		}
		return nil
	})
	if d.Mean = steps / max(chunks, 1); distance > 0 {
		d.Share = math.Sqrt(distance / length)
	}
	return d, chunks > 0, err
}

// OpenPeer makes this rack's end of every lane's connection to another rack's aggregator. [Job.JoinPeer] connects it.
func (j *Job) OpenPeer(ctx context.Context, rack int) ([]PeerLane, error) {
	if err := j.open(); err != nil {
		return nil, err
	}
	out := make([]PeerLane, len(j.site.lanes))
	for i, l := range j.site.lanes {
		slots, err := j.memory.Allocate(store.Slots, i, l.Config.Node, uplink.SlotsBytes(j.site.window, j.shared.ChunkBytes),
			verbs.AccessLocalWrite|verbs.AccessRemoteWrite, false)
		if err != nil {
			return nil, err
		}
		f := j.shards[i].Flow
		err = f.Do(ctx, func() (err error) {
			out[i], err = j.uplinks[i].Links.Open(f, rack, slots, j.memory.PDs, j.shared.Timeouts.Peer, j.shared.Timeouts.Link)
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("job %q: lane %d to rack %q: %w", j.shared.Name, i, j.place.Names[rack], err)
		}
	}
	return out, nil
}

// JoinPeer connects the lanes to the other rack's ends. The active side calls it after the passive side waits.
func (j *Job) JoinPeer(ctx context.Context, rack int, theirs []PeerLane, active bool) error {
	if len(theirs) != len(j.site.lanes) {
		return fmt.Errorf("job %q: rack %q has %d lanes, rack %q %d: give both the same number of cores", j.shared.Name, j.place.Names[rack],
			len(theirs), j.place.Names[j.place.Rack], len(j.site.lanes))
	}
	for i, s := range j.shards {
		if err := s.Flow.Do(ctx, func() error { return j.uplinks[i].Links.Join(rack, theirs[i], active) }); err != nil {
			return fmt.Errorf("job %q: lane %d to rack %q: %w", j.shared.Name, i, j.place.Names[rack], err)
		}
	}
	return nil
}

// PeersUp waits until every lane is connected to every other rack's aggregator.
func (j *Job) PeersUp(ctx context.Context) error {
	for i, l := range j.site.lanes {
		for {
			missing := noRank
			if err := l.Do(ctx, func() { missing = j.uplinks[i].Links.Missing() }); err != nil {
				return err
			}
			if missing < 0 {
				break
			}
			select {
			case <-ctx.Done():
				return fmt.Errorf("job %q: lane %d: rack %q does not connect: %w", j.shared.Name, i, j.place.Names[missing], ctx.Err())
			case <-time.After(time.Millisecond):
			}
		}
	}
	return nil
}

// SetShape changes the shape of the reduction among racks. Every rack must make the same change before the job's first tensors,
// because the owner of a chunk depends on the shape.
func (j *Job) SetShape(ctx context.Context, shape hierarchy.Shape) error {
	if err := j.open(); err != nil {
		return err
	}
	if j.place == nil {
		return fmt.Errorf("job %q: shape %v: it has no other racks", j.shared.Name, shape)
	}
	to := *j.place
	to.Shape = shape
	if err := to.CheckPlace(); err != nil {
		return fmt.Errorf("job %q: %w", j.shared.Name, err)
	}
	for i, l := range j.site.lanes {
		s := j.shards[i]
		err := s.Flow.Borrow(ctx, func() error {
			if len(s.Store.Chunks) > 0 {
				return errors.New("it has tensors, and their owners stay")
			}
			j.uplinks[i].SetShape(shape)
			s.Store.NextOwner = to.NextOwner(l.Index)
			return nil
		})
		if err != nil {
			return fmt.Errorf("job %q: shape %v: %w", j.shared.Name, shape, err)
		}
	}
	j.place.Shape = shape
	return nil
}
