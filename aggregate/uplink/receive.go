package uplink

import "github.com/rackweave/rackweave/aggregate/store"

// receiveChunk takes a sum or a result. A part of a broadcast without the root's values is a note alone.
func (u *Uplink) receiveChunk(rack int, op Op, epoch uint8, index, bytes uint32) {
	c := &u.cfg.Store.Chunks[index]
	broadcast := op == OpBroadcast || op == OpValues
	sum := op == OpSum || op == OpBroadcast
	expect := u.answerBytes(c, broadcast, u.keepsAsBuddy(c))
	if sum {
		expect = uint32(u.sumBytes(c, broadcast)) + noteBytes
	}
	short := coded(c, broadcast) && bytes < expect && bytes > u.cfg.Reduction.Behind()
	if bytes != expect && !short && (op != OpBroadcast || bytes != noteBytes) {
		u.Links.violates(rack, "sent %d bytes with operation %d of chunk %d of lane %d, expected %d", bytes, op, index, u.cfg.Lane.Index, expect)
		return
	}
	switch {
	case !coded(c, broadcast):
	case sum:
		u.coding.lengths[rack][index] = max(bytes, noteBytes) - noteBytes
	case u.chunks[index].sum != store.NoBuffer && !u.coding.takeResult(c, index, bytes):
		return
	}
	if sum {
		u.rows.look = u.rows.look || u.rows.of[c.Tensor] != nil
		u.reducer.Sum(rack, index, epoch, broadcast)
	} else {
		u.reducer.Result(rack, index, epoch, broadcast)
	}
	u.carryOut()
}

// notified takes a notice about a chunk. NoticeRead is about norms (links.go).
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
