package uplink

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"

	"github.com/rackweave/rackweave/aggregate/failure"
	"github.com/rackweave/rackweave/aggregate/reduce"
	"github.com/rackweave/rackweave/aggregate/store"
	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/verbs"
)

// commit is a lane's end of the commit of a two-phase step over several racks. Ahead of each of the job's barriers the lanes of
// one number exchange the norms of the chunks that they own, so that every rack adds the norms of all chunks, in the plan's order.
// After the update the owners of the chunks broadcast their parameters, through the reducer.
type commit struct {
	u     *Uplink
	peers []normPeer // by rack

	op     Op // of the exchange under way, if active
	active bool
	began  int64                   // ns, the time at which the exchange began
	round  uint64                  // number of exchanges begun
	record [chunk.RecordBytes]byte // of this rack's commit

	refreshing bool
	skip       bool   // the commit changed no parameters
	next       uint32 // index of the next chunk to broadcast
	under      int    // chunks whose parameters are in flight, at most window, so that every message finds a slot and nothing stalls
}

// normPeer is the progress of an exchange of norms with another rack.
type normPeer struct {
	sent   int  // number of norms sent
	all    bool // all norms were sent
	full   bool // the message sent last was not acknowledged
	ackDue bool // the message received last was not acknowledged

	op       Op // of the exchange that the peer has reached
	epoch    uint8
	open     bool // the peer has more to send
	received int  // number of norms received
	done     uint64
	// records holds what the peer's workers sent with the commit, by the parity of the exchange, because a peer may be one ahead.
	// All racks' workers must commit with the same learning rate, scale and bound of the norm.
	records [2][chunk.RecordBytes]byte
}

// pending reports whether there may be something to send.
func (e *commit) pending() bool {
	if e.active || e.refreshing {
		return true
	}
	for i := range e.peers {
		if e.peers[i].ackDue {
			return true
		}
	}
	return false
}

// since returns the time at which the racks began to wait for each other's norms, or the end of time if they do not wait.
func (e *commit) since() int64 {
	if e.active {
		return e.began
	}
	return math.MaxInt64
}

// awaited adds 1 to the counts of the racks whose norms are missing.
func (e *commit) awaited(counts []int) {
	for rack := range e.peers {
		if e.active && e.peers[rack].done < e.round {
			counts[rack]++
		}
	}
}

func normSize(op Op) int {
	if op == OpTrust {
		return 16
	}
	return 8
}

// normsOf returns the norms of a chunk that an exchange carries, normSize bytes of them.
func normsOf(n *store.Norms, op Op, parity uint8) [2]*float64 {
	if op == OpTrust {
		return [2]*float64{&n.Param, &n.Step}
	}
	return [2]*float64{&n.Gradient[parity]}
}

// expects reports whether a message continues the peer's exchange, or begins the next one.
func (p *normPeer) expects(op Op, epoch uint8, from uint32) bool {
	switch {
	case p.open:
		return op == p.op && epoch == p.epoch && int(from) == p.received
	case op == OpTrust:
		return from == 0 && p.op == OpNorms && epoch == p.epoch
	}
	return from == 0 && epoch == (p.epoch+1)&chunk.EpochMask
}

// Exchange begins to exchange the norms for which a barrier of the lanes waits.
func (u *Uplink) Exchange() {
	e := &u.commit
	e.op = OpNorms
	if u.cfg.Machine.CommitPhase() == reduce.AwaitTrust {
		e.op = OpTrust
	}
	e.active, e.began = true, u.cfg.Lane.Stamp
	e.round++
	u.cfg.Machine.CommitRecord().Encode(e.record[:])
	for rack := range e.peers {
		e.peers[rack].sent, e.peers[rack].all = 0, false
	}
	own := &e.peers[u.cfg.Place.Rack]
	own.all, own.done = true, e.round
	e.exchange()
}

// exchange sends the norms for which it has room. Once all racks have exchanged all norms it reports its arrival at the lanes'
// barrier. It reports whether it did anything.
func (e *commit) exchange() (worked bool) {
	u := e.u
	all := e.active
	for rack := range e.peers {
		p := &e.peers[rack]
		if p.ackDue && u.reducer.TakeSend(rack) {
			p.ackDue, worked = false, true
			u.Links.notify(rack, NoticeRead, 0)
		}
		if e.active && !p.all && !p.full && u.reducer.TakeSend(rack) {
			worked = true
			e.send(rack, p)
		}
		all = all && p.all && p.done >= e.round
	}
	if !all {
		return worked
	}
	e.active = false
	own := u.cfg.Place.Rack
	for rack := range e.peers {
		if rack != own && !bytes.Equal(e.peers[rack].records[e.round&1][:], e.record[:]) {
			u.cfg.Fail.Fail(failure.NoRank, fmt.Errorf("%w: the workers of %s commit with other values than those of %s: all must commit with the same",
				reduce.ErrProtocol, u.Links.name(rack), u.Links.name(own)))
			return true
		}
	}
	u.cfg.Shard.ReachBarrier()
	return true
}

// send sends a rack as many norms as fit into a message.
func (e *commit) send(rack int, p *normPeer) {
	u := e.u
	epoch, at, size := u.cfg.Machine.CommitEpoch(), u.buffers.norms(rack), normSize(e.op)
	ours := u.Links.peers[u.cfg.Place.Rack].owned
	b := store.Bytes(at, normBytes)
	n := copy(b, e.record[:])
	from := p.sent
	for ; p.sent < len(ours) && n+size <= len(b); p.sent++ {
		norms := normsOf(u.cfg.Store.Chunks[ours[p.sent]].Norms, e.op, epoch&1)
		for _, x := range norms[:size/8] {
			binary.LittleEndian.PutUint64(b[n:], math.Float64bits(*x))
			n += 8
		}
	}
	p.full, p.all = true, p.sent == len(ours)
	to := &u.Links.peers[rack]
	u.Links.send(rack, pack(e.op, epoch, uint32(from)), store.NoBuffer,
		verbs.SendWR{LAddr: at, Length: uint32(n), RAddr: to.sumAddr + uint64(u.window)*u.slotBytes, RKey: to.sumRKey})
}

// acknowledged records that a rack has read the last norms that it received.
func (e *commit) acknowledged(rack int) {
	e.peers[rack].full = false
	e.exchange()
}

// receive reads another rack's norms.
func (e *commit) receive(rack int, op Op, epoch uint8, from, length uint32) {
	u := e.u
	p, theirs, size, at := &e.peers[rack], u.Links.peers[rack].owned, normSize(op), u.cfg.Lane.Index
	n := (int(length) - chunk.RecordBytes) / size
	switch _, two := u.cfg.Reduction.(*TwoPhaseReduction); {
	case !two:
		u.Links.violates(rack, "sent norms in a mode that commits nothing")
		return
	case !p.expects(op, epoch, from) || p.ackDue:
		u.Links.violates(rack, "sent norms %d of commit %d by operation %d in lane %d, after %d of commit %d", from, epoch, op, at, p.received, p.epoch)
		return
	case int(length) != chunk.RecordBytes+n*size || length > normBytes || int(from)+n > len(theirs) ||
		n < 0 || n == 0 && len(theirs) > 0:
		u.Links.violates(rack, "sent %d bytes of norms from %d on in lane %d, where it has %d chunks", length, from, at, len(theirs))
		return
	}
	b := store.Bytes(u.Links.peers[rack].slots.Addr()+uint64(u.window)*u.slotBytes, int(length))
	copy(p.records[(p.done+1)&1][:], b)
	b = b[chunk.RecordBytes:]
	for _, index := range theirs[from : int(from)+n] {
		norms := normsOf(u.cfg.Store.Chunks[index].Norms, op, epoch&1)
		for _, x := range norms[:size/8] {
			*x = math.Float64frombits(binary.LittleEndian.Uint64(b))
			b = b[8:]
		}
	}
	p.op, p.epoch, p.received, p.ackDue = op, epoch, int(from)+n, true
	if p.open = p.received < len(theirs); !p.open {
		p.done++
	}
	e.exchange()
}

// Refresh broadcasts the parameters that a commit changed from their owners to the other racks. If skip is true, the commit changed
// none.
func (u *Uplink) Refresh(skip bool) {
	e := &u.commit
	e.refreshing, e.skip, e.next = true, skip, 0
	e.advanceRefresh()
}

// advanceRefresh applies the parameters that other racks have broadcast, and broadcasts more chunks. It reports whether it did
// anything.
func (e *commit) advanceRefresh() (worked bool) {
	u, st := e.u, e.u.cfg.Store
	for _, index := range u.returned {
		c := &st.Chunks[index]
		if int(c.Owner) != u.cfg.Place.Rack {
			u.cfg.Arithmetic.Replace(st, c, u.buffers.result(u.chunks[index].sum), uint8(st.Tensors[c.Tensor].Result))
		}
		u.release(index)
		e.under--
		worked = true
	}
	u.returned = u.returned[:0]
	for e.under < u.window && u.buffers.Free() > 0 && int(e.next) < len(st.Chunks) {
		index := e.next
		e.next++
		c := &st.Chunks[index]
		changed := c.Stale && !e.skip
		c.Stale = false
		if !changed {
			continue
		}
		worked = true
		e.under++
		b := u.buffers.take(u.cfg.Lane.Stamp)
		u.chunks[index].sum = b
		n := note{resultAddr: u.buffers.result(b)}
		n.write(u.buffers.sum(b) + u.sumBytes(c, true))
		u.reducer.Ready(index, true)
		u.carryOut()
	}
	// Results that still wait to be sent have the length of a refresh.
	if e.under > 0 || int(e.next) < len(st.Chunks) || u.reducer.Owing() {
		return worked
	}
	e.refreshing = false
	u.cfg.Machine.Refreshed(u.cfg.Lane.Stamp)
	return true
}
