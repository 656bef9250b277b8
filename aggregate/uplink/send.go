package uplink

import (
	"github.com/rackweave/rackweave/aggregate/store"
	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/hierarchy"
	"github.com/rackweave/rackweave/verbs"
)

// sumBytes returns the length of a rack's sum of a chunk, or of the values of a broadcast.
func (u *Uplink) sumBytes(c *store.Chunk, broadcast bool) uint64 {
	if broadcast {
		return uint64(u.cfg.Store.WireBytes(c))
	}
	return uint64(c.Elems) * uint64(u.cfg.Place.CoreType().Size())
}

// answerBytes returns the length of the answer to a rack's sum of a chunk. The answer is the result, or the sum of all racks for
// the owner's buddy. A broadcast's values cross in the wire's type.
func (u *Uplink) answerBytes(c *store.Chunk, broadcast, toBuddy bool) uint32 {
	switch {
	case broadcast && u.refresh.active:
		return c.Elems * uint32(u.cfg.Store.Tensors[c.Tensor].Result.Size())
	case broadcast:
		return uint32(u.cfg.Store.WireBytes(c))
	case toBuddy:
		return c.Elems * uint32(chunk.F32.Size())
	}
	return u.cfg.Reduction.ResultBytes(c)
}

// keepsAsBuddy reports whether this rack keeps a chunk's state as the owner's buddy. Only chunks that it keeps have a history.
func (u *Uplink) keepsAsBuddy(c *store.Chunk) bool {
	return c.History != nil && int(c.Owner) != u.cfg.Place.Rack
}

func (u *Uplink) sendSum(a *hierarchy.Action) {
	c := &u.cfg.Store.Chunks[a.Index]
	op := OpSum
	if a.Broadcast {
		op = OpBroadcast
	}
	p, b, bytes := &u.Links.peers[a.Peer], u.chunks[a.Index].sum, u.sumBytes(c, a.Broadcast)
	wr := verbs.SendWR{
		LAddr: u.buffers.sum(b), Length: uint32(bytes) + noteBytes,
		RAddr: p.sumAddr + uint64(a.Slot)*u.buffers.slotBytes, RKey: p.sumRKey,
	}
	if a.Broadcast && readNote(wr.LAddr+bytes).flags&noteValues == 0 {
		wr.LAddr, wr.RAddr, wr.Length = wr.LAddr+bytes, wr.RAddr+bytes, noteBytes
	}
	if coded(c, a.Broadcast) {
		wr.LAddr, wr.Length = u.coding.encodeSum(c, b)
		wr.Length += noteBytes
	}
	u.Links.send(a.Peer, pack(op, a.Epoch, a.Index), store.NoBuffer, wr)
}

// sendResult sends a chunk's result to a rack whose sum is in it. The reducer returns a result to this rack before it sends it on,
// so the chunk's result buffer is known. Only the owner answers a buddy, because shapes that forward results have no buddies.
func (u *Uplink) sendResult(a *hierarchy.Action) {
	c, b := &u.cfg.Store.Chunks[a.Index], u.chunks[a.Index].result
	op := OpResult
	if a.Broadcast {
		op = OpValues
	}
	toBuddy := u.cfg.Place.Buddies && a.Peer == u.cfg.Place.Buddy(u.cfg.Place.Rack)
	wr := verbs.SendWR{
		LAddr: u.buffers.result(b), Length: u.answerBytes(c, a.Broadcast, toBuddy), RAddr: u.resultAddrs[b][a.Peer],
		RKey: u.Links.peers[a.Peer].resultRKey,
	}
	switch {
	case coded(c, a.Broadcast):
		wr.LAddr, wr.Length = u.buffers.answer(b), u.chunks[a.Index].length+u.cfg.Reduction.Behind()
	case toBuddy && !a.Broadcast:
		wr.LAddr = u.buffers.total(b)
	}
	u.Links.send(a.Peer, pack(op, a.Epoch, a.Index), b, wr)
}
