package aggregate

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/rackweave/rackweave/aggregate/session"
	"github.com/rackweave/rackweave/verbs"
)

// PeerLane is one rack's end of a lane's connection to another rack's aggregator.
type PeerLane struct {
	Endpoint   []byte
	SlotAddr   uint64 // where the other may put its sums, and its key
	SlotRKey   uint32
	ResultRKey uint32 // of where results go, which each sum says itself
}

// peerPatience is how long a message to another rack may go unacknowledged: a core link that is down for less loses nothing.
const peerPatience = 30 * time.Second

// OpenPeer makes this end of every lane's connection to another rack's aggregator. [Job.JoinPeer] connects it.
func (j *Job) OpenPeer(ctx context.Context, rack int) ([]PeerLane, error) {
	if err := j.open(); err != nil {
		return nil, err
	}
	out := make([]PeerLane, len(j.lanes))
	for i, l := range j.lanes {
		bytes := peerBytes(j.window, j.chunkBytes)
		slots, err := j.memory.allocate(slotRegion, i, l.cfg.Node, bytes, verbs.AccessLocalWrite|verbs.AccessRemoteWrite, false)
		if err != nil {
			return nil, err
		}
		k := &link{rank: rack, peer: true, slots: slots}
		if err := l.try(ctx, j.shares[i], func() (err error) { out[i], err = j.openPeer(l, j.shares[i], k); return err }); err != nil {
			return nil, fmt.Errorf("job %q: lane %d to rack %q: %w", j.name, i, j.above.Names[rack], err)
		}
	}
	return out, nil
}

// openPeer makes a queue pair; on the lane's goroutine.
func (j *Job) openPeer(l *Lane, s *share, k *link) (PeerLane, error) {
	if s.above.links[k.rank] != nil {
		return PeerLane{}, errors.New("it is connected already")
	}
	id, err := l.vacant()
	if err != nil {
		return PeerLane{}, err
	}
	k.Conn = session.New(session.Config{
		ID: id, SendDepth: l.depths.PeerSend, RecvDepth: l.depths.PeerRecv, Timeout: j.timeouts.peer,
		// An aggregator that stalls posts no receives: its peers wait for it as long as for a core link that is down.
		AckTimeout: max(j.timeouts.link, peerPatience), RNRTimeout: peerPatience, MaxBatch: pollBatch,
	})
	l.seat(s, k)
	endpoint, err := k.Open(session.Path{NIC: l.primary, PD: j.memory.pds[l.primary], CQ: l.cqs[l.primary]})
	l.recount()
	if err != nil {
		return PeerLane{}, errors.Join(err, l.drop(k))
	}
	s.above.links[k.rank] = k
	return PeerLane{
		Endpoint: endpoint, SlotAddr: k.slots.addr(), SlotRKey: k.slots.mrs[l.primary].RKey,
		ResultRKey: s.above.sums.region.mrs[l.primary].RKey,
	}, nil
}

// JoinPeer connects the lanes to the other rack's ends. One side is active, once the other is not: it waits for its peer.
func (j *Job) JoinPeer(ctx context.Context, rack int, theirs []PeerLane, active bool) error {
	if len(theirs) != len(j.lanes) {
		return fmt.Errorf("job %q: rack %q has %d lanes, rack %q %d: give both the same number of cores", j.name, j.above.Names[rack],
			len(theirs), j.above.Names[j.above.Rack], len(j.lanes))
	}
	for i, l := range j.lanes {
		err := l.try(ctx, j.shares[i], func() error {
			k := j.shares[i].above.links[rack]
			if k == nil {
				return errors.New("it was not opened")
			}
			k.replyAddr, k.replyRKey, k.resultRKey = theirs[i].SlotAddr, theirs[i].SlotRKey, theirs[i].ResultRKey
			defer l.recount()
			return k.Join(theirs[i].Endpoint, active)
		})
		if err != nil {
			return fmt.Errorf("job %q: lane %d to rack %q: %w", j.name, i, j.above.Names[rack], err)
		}
	}
	return nil
}

// PeersUp waits until every lane is connected to every other rack's aggregator.
func (j *Job) PeersUp(ctx context.Context) error {
	for i, l := range j.lanes {
		for {
			missing := noRank
			err := l.Do(ctx, func() {
				for rack, k := range j.shares[i].above.links {
					if rack != j.above.Rack && (k == nil || k.QP() == nil || k.QP().State() != verbs.StateRTS) {
						missing = rack
					}
				}
			})
			if err != nil {
				return err
			}
			if missing < 0 {
				break
			}
			select {
			case <-ctx.Done():
				return fmt.Errorf("job %q: lane %d: rack %q does not connect: %w", j.name, i, j.above.Names[missing], ctx.Err())
			case <-time.After(time.Millisecond):
			}
		}
	}
	return nil
}
