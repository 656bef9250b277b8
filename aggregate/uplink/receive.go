package uplink

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/rackweave/rackweave/aggregate/failure"
	"github.com/rackweave/rackweave/chunk"
)

func (u *Uplink) receiveChunk(rack int, op Op, epoch uint8, index, bytes uint32) {
	c := &u.cfg.Store.Chunks[index]
	broadcast := op == OpBroadcast || op == OpValues
	sum := op == OpSum || op == OpBroadcast
	expect := u.answerBytes(c, broadcast, u.keepsAsBuddy(c))
	if sum {
		expect = uint32(u.sumBytes(c, broadcast)) + noteBytes
	}
	if bytes != expect && (op != OpBroadcast || bytes != noteBytes) {
		u.Links.violates(rack, "sent %d bytes with operation %d of chunk %d of lane %d, expected %d", bytes, op, index, u.cfg.Lane.Index, expect)
		return
	}
	if sum {
		u.reducer.Sum(rack, index, epoch, broadcast)
	} else {
		u.reducer.Result(rack, index, epoch, broadcast)
	}
	u.carryOut()
}

func (u *Uplink) notified(rack int, n Notice, index uint32) {
	switch n {
	case NoticeRequest:
		u.reducer.Requested(rack, index)
	case NoticeRecall:
		u.reducer.Recall(rack, index)
	case NoticeNACK:
		u.reducer.NACKed(rack, index)
	case NoticeTaken:
		u.reducer.Taken(rack, index)
	default:
		u.Links.violates(rack, "sent notice %d", n)
		return
	}
	u.carryOut()
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
