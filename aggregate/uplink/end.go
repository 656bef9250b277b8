package uplink

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/rackweave/rackweave/aggregate/failure"
	"github.com/rackweave/rackweave/aggregate/store"
	"github.com/rackweave/rackweave/chunk"
)

// ErrPeerLost is wrapped by the loss of another rack's aggregator.
var ErrPeerLost = errors.New("aggregator lost")

// FailedElsewhere is the failure of a job in another rack.
type FailedElsewhere struct {
	Rack   string
	Worker int // the worker that caused it, by its rank in the whole job, or -1
}

func (e *FailedElsewhere) Error() string {
	if e.Worker < 0 {
		return fmt.Sprintf("the job failed in rack %q: see its aggregator", e.Rack)
	}
	return fmt.Sprintf("the job failed in rack %q: worker %d caused it", e.Rack, e.Worker)
}

// Leave announces to the other racks that this rack's workers have left in peace. The caller waits until [Links.Flushed] holds,
// first without the announcement and then with it.
func (l *Links) Leave() { l.announce(Left, 0) }

// End announces to the other racks, once, that the job has failed here. rank is the worker of this rack to blame, or negative if
// none is.
func (u *Uplink) End(rank int) {
	if u.Links.announced {
		return
	}
	blame := uint32(chunk.IndexMask)
	if rank >= 0 {
		blame = uint32(u.cfg.Place.First(u.cfg.Place.Rack) + rank)
	}
	u.Links.announce(Failed, blame)
}

// announce sends the message about the end.
func (l *Links) announce(how Ending, blame uint32) {
	l.announced = true
	for rack := range l.peers {
		if p := &l.peers[rack]; p.up() && p.Unconfirmed < p.SendDepth && !p.ended {
			l.put(rack, pack(OpEnd, uint8(how), blame), store.NoBuffer)
		}
	}
}

// Flushed reports whether all messages to other racks have arrived or cannot arrive. If told is true, the message about the end
// must be among them. After that message the reducer sends no answers, so none is waited for.
func (l *Links) Flushed(told bool) bool {
	if told && !l.announced {
		return false
	}
	for rack := range l.peers {
		if p := &l.peers[rack]; p.up() && (p.Unconfirmed > 0 || !l.announced && (l.u.reducer.Owes(rack) || !l.u.rows.idle())) {
			return false
		}
	}
	return true
}

// ended records that the job has ended in another rack.
func (u *Uplink) ended(rack int, how Ending, blame uint32) {
	u.Links.peers[rack].ended = true
	if how == Left {
		u.Links.left = cmp.Or(u.Links.left, u.cfg.Lane.Stamp)
		return
	}
	err := &FailedElsewhere{Rack: u.cfg.Place.Names[rack], Worker: failure.NoRank}
	if blame != chunk.IndexMask {
		err.Worker = int(blame)
	}
	u.cfg.Fail.Fail(failure.NoRank, err)
}

// leftGrace is the time for which a chunk may wait for its result after the workers of another rack have left. A result may come
// from a third rack, and later than the notice that they have left.
const leftGrace = time.Second

// missLeft fails the job if a chunk waits for racks whose workers have left.
func (u *Uplink) missLeft() {
	l, waits := &u.Links, min(u.buffers.oldest(), u.exchange.since())
	if l.left == 0 || u.cfg.Fail.Has() || max(l.left, waits) >= u.cfg.Lane.Stamp-int64(leftGrace) {
		return
	}
	var names []string
	for rack := range l.peers {
		if l.peers[rack].ended {
			names = append(names, l.name(rack))
		}
	}
	u.cfg.Fail.Fail(failure.NoRank, fmt.Errorf("the workers of %s have left the job, and others wait for their gradients", strings.Join(names, ", ")))
}
