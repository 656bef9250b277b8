package uplink

import (
	"github.com/rackweave/rackweave/aggregate/store"
	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/hierarchy"
	"github.com/rackweave/rackweave/verbs"
)

// partBytes returns the length of a rack's part of a chunk, or of the chunk's initial values.
func (u *Uplink) partBytes(c *store.Chunk, initial bool) uint64 {
	if initial {
		return uint64(u.cfg.Store.WireBytes(c))
	}
	return uint64(c.Elems) * uint64(u.cfg.Place.CoreType().Size())
}

// answerBytes returns the length of the answer to a rack's part of a chunk. The answer is the result, or the sum of all racks for
// the owner's buddy. Initial values cross in the wire's type.
func (u *Uplink) answerBytes(c *store.Chunk, initial, toBuddy bool) uint32 {
	switch {
	case initial && u.commit.refreshing:
		return c.Elems * uint32(u.cfg.Store.Tensors[c.Tensor].Result.Size())
	case initial:
		return uint32(u.cfg.Store.WireBytes(c))
	case toBuddy:
		return c.Elems * uint32(chunk.F32.Size())
	}
	return u.cfg.Reduction.ResultBytes(c)
}

// mirrors reports whether this rack keeps a chunk as the owner's buddy.
func (u *Uplink) mirrors(c *store.Chunk) bool {
	return c.History != nil && int(c.Owner) != u.cfg.Place.Rack
}

func (u *Uplink) sendPart(a *hierarchy.Action) {
	c := &u.cfg.Store.Chunks[a.Index]
	op := OpSum
	if a.Broadcast {
		op = OpBroadcast
	}
	p, bytes := &u.Links.peers[a.Peer], u.partBytes(c, a.Broadcast)
	wr := verbs.SendWR{
		LAddr: u.buffers.part(u.chunks[a.Index].part), Length: uint32(bytes) + noteBytes,
		RAddr: p.partAddr + uint64(a.Slot)*u.slotBytes, RKey: p.partRKey,
	}
	if a.Broadcast && readNote(wr.LAddr+bytes).flags&noteValues == 0 {
		wr.LAddr, wr.RAddr, wr.Length = wr.LAddr+bytes, wr.RAddr+bytes, noteBytes
	}
	u.Links.send(a.Peer, pack(op, a.Epoch, a.Index), store.NoBuffer, wr)
}

// sendResult sends a chunk's result to a rack whose part is in it.
func (u *Uplink) sendResult(a *hierarchy.Action) {
	c, b := &u.cfg.Store.Chunks[a.Index], u.chunks[a.Index].result
	op := OpResult
	if a.Broadcast {
		op = OpInitial
	}
	toBuddy := u.cfg.Place.Buddies && a.Peer == u.cfg.Place.Buddy(u.cfg.Place.Rack)
	wr := verbs.SendWR{
		LAddr: u.buffers.result(b), Length: u.answerBytes(c, a.Broadcast, toBuddy), RAddr: u.replies[b][a.Peer],
		RKey: u.Links.peers[a.Peer].resultRKey,
	}
	if toBuddy && !a.Broadcast {
		wr.LAddr = u.buffers.sum(b)
	}
	u.Links.send(a.Peer, pack(op, a.Epoch, a.Index), b, wr)
}
