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

// exchange is a lane's all-gather of norms, ahead of each of the job's barriers in the commit of a two-phase step. The lanes of one
// number send each other the norms of the chunks that their racks own, so that every rack adds the norms of all chunks, in the
// plan's order.
type exchange struct {
	u     *Uplink
	peers []normPeer // by rack

	op     Op // of the exchange under way, if active
	active bool
	began  int64                   // ns, the time at which the exchange began
	begun  uint64                  // number of exchanges that this rack has begun
	record [chunk.RecordBytes]byte // of this rack's commit
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
	// done is the number of exchanges whose norms have all been received: at most one more than this rack has begun, because the
	// next one needs this rack's norms.
	done uint64
	// records holds what the peer's workers sent with the commit, by the parity of the exchange, because a peer may be one ahead.
	// All racks' workers must commit with the same learning rate, scale and bound of the norm.
	records [2][chunk.RecordBytes]byte
}

// pending reports whether there may be something to send. A peer that is ahead may need an acknowledgement before this rack begins.
func (e *exchange) pending() bool {
	if e.active {
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
func (e *exchange) since() int64 {
	if e.active {
		return e.began
	}
	return math.MaxInt64
}

// awaited adds 1 to the counts of the racks whose norms are missing.
func (e *exchange) awaited(counts []int) {
	for rack := range e.peers {
		if e.active && e.peers[rack].done < e.begun {
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

// normsOf returns the norms of a chunk that an exchange carries, normSize bytes of them. Only gradients' have two places: a peer
// sends other norms of a commit once it has this rack's gradients' norms of the same commit, so it is not ahead.
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
	e := &u.exchange
	e.op = OpNorms
	if u.cfg.Machine.CommitPhase() == reduce.AwaitTrust {
		e.op = OpTrust
	}
	e.active, e.began = true, u.cfg.Lane.Stamp
	e.begun++
	u.cfg.Machine.CommitRecord().Encode(e.record[:])
	for rack := range e.peers {
		e.peers[rack].sent, e.peers[rack].all = 0, false
	}
	own := &e.peers[u.cfg.Place.Rack]
	own.all, own.done = true, e.begun
	e.advance()
}

// advance sends the norms for which it has room. Once all racks have exchanged all norms it announces the lane at the lanes'
// barrier. It reports whether it did anything.
func (e *exchange) advance() (worked bool) {
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
		all = all && p.all && p.done >= e.begun
	}
	if !all {
		return worked
	}
	e.active = false
	own := u.cfg.Place.Rack
	for rack := range e.peers {
		if rack != own && !bytes.Equal(e.peers[rack].records[e.begun&1][:], e.record[:]) {
			u.cfg.Fail.Fail(failure.NoRank, fmt.Errorf("%w: the workers of %s commit with other values than those of %s: all must commit with the same",
				reduce.ErrProtocol, u.Links.name(rack), u.Links.name(own)))
			return true
		}
	}
	u.cfg.Shard.ReachBarrier()
	return true
}

// send sends a rack as many norms as fit into a message.
func (e *exchange) send(rack int, p *normPeer) {
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
		verbs.SendWR{LAddr: at, Length: uint32(n), RAddr: to.sumAddr + uint64(u.peerWindow)*u.buffers.slotBytes, RKey: to.sumRKey})
}

// acknowledged records that a rack has read the last norms that it received.
func (e *exchange) acknowledged(rack int) {
	e.peers[rack].full = false
	e.advance()
}

// receive reads another rack's norms.
func (e *exchange) receive(rack int, op Op, epoch uint8, from, length uint32) {
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
	b := store.Bytes(u.Links.peers[rack].slots.Addr()+uint64(u.peerWindow)*u.buffers.slotBytes, int(length))
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
	e.advance()
}
