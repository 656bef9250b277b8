package uplink

import (
	"errors"
	"fmt"
	"time"

	"github.com/rackweave/rackweave/aggregate/failure"
	"github.com/rackweave/rackweave/aggregate/lane"
	"github.com/rackweave/rackweave/aggregate/session"
	"github.com/rackweave/rackweave/aggregate/store"
	"github.com/rackweave/rackweave/hierarchy"
	"github.com/rackweave/rackweave/verbs"
)

type peer struct {
	*lane.Conn               // nil at this rack's place, and until Open
	slots      *store.Region // slots for the peer's sums
	sumAddr    uint64        // address of the slots there for this rack's sums
	sumRKey    uint32
	resultRKey uint32   // key of the memory for the peer's results
	ended      bool     // the job has ended there, because its workers have left or it has failed
	owned      []uint32 // chunks whose optimizer it runs
	ownedBytes uint64
	recv, sent uint64 // bytes
}

// Links holds the connections between one lane and the lanes of the same number in other racks. It implements lane.Handler.
type Links struct {
	u         *Uplink
	peers     []peer // by rack
	left      int64  // ns, the time at which the first rack's workers were known to have left in peace, or 0
	announced bool   // the other racks are sent the job's ending here
}

// PeerLane is one rack's end of a lane's connection to another rack's aggregator.
type PeerLane struct {
	Endpoint   []byte
	SlotAddr   uint64 // address of the slots for the other rack's sums, with their key
	SlotRKey   uint32
	ResultRKey uint32 // key of the memory for results; each sum's note holds the address
}

// leastRetry is the time for which a message to another rack is retried at least, so that a core link that is down for less loses
// nothing.
const leastRetry = 30 * time.Second

// Open makes this end of the connection to another rack. slots has [SlotsBytes]. The peer must connect within peerTime, and a link
// may be down for linkTime, or longer. Open and the methods below are called on the lane's goroutine.
func (l *Links) Open(f *lane.Flow, rack int, slots *store.Region, pds []*verbs.PD, peerTime, linkTime time.Duration) (PeerLane,
	error) {
	p, at := &l.peers[rack], l.u.cfg.Lane
	if p.Conn != nil {
		return PeerLane{}, errors.New("it is connected already")
	}
	c, err := f.NewConn(l, rack, session.Config{
		SendDepth: at.Depths.PeerSend, RecvDepth: at.Depths.PeerRecv, Timeout: peerTime,
		// An aggregator that stalls posts no receives. Its peers wait for it as long as for a core link that is down.
		AckTimeout: max(linkTime, leastRetry), RNRTimeout: max(linkTime, leastRetry),
	})
	if err != nil {
		return PeerLane{}, err
	}
	path, err := at.Path(at.NIC(), pds)
	var endpoint []byte
	if err == nil {
		endpoint, err = c.Open(path)
		at.Recount()
	}
	if err != nil {
		return PeerLane{}, errors.Join(err, at.Drop(c))
	}
	p.Conn, p.slots = c, slots
	return PeerLane{
		Endpoint: endpoint, SlotAddr: slots.Addr(), SlotRKey: slots.RKey(at.NIC()), ResultRKey: l.u.buffers.Region.RKey(at.NIC()),
	}, nil
}

// Join connects to the other rack's end. One side is active, and the other waits for it.
func (l *Links) Join(rack int, theirs PeerLane, active bool) error {
	p := &l.peers[rack]
	if p.Conn == nil {
		return errors.New("it was not opened")
	}
	p.sumAddr, p.sumRKey, p.resultRKey = theirs.SlotAddr, theirs.SlotRKey, theirs.ResultRKey
	defer l.u.cfg.Lane.Recount()
	return p.Conn.Join(theirs.Endpoint, active)
}

func (p *peer) up() bool { return p.Conn != nil && p.QP != nil && p.QP.State() == verbs.StateRTS }

// Missing returns a rack that is not connected, or -1.
func (l *Links) Missing() int {
	for rack := range l.peers {
		if rack != l.u.cfg.Place.Rack && !l.peers[rack].up() {
			return rack
		}
	}
	return -1
}

func (l *Links) name(rack int) string { return fmt.Sprintf("rack %q", l.u.cfg.Place.Names[rack]) }

// Receive handles a message of another rack's aggregator.
func (l *Links) Receive(c *lane.Conn, wc *verbs.WC) {
	if l.u.cfg.Fail.Has() {
		return
	}
	p := &l.peers[c.Rank]
	op, epoch, index := unpack(wc.Imm)
	p.recv += uint64(wc.ByteLen)
	l.u.cfg.Lane.Count.AboveRecvBytes += uint64(wc.ByteLen)
	switch {
	case op == OpEnd:
		l.u.ended(c.Rank, Ending(epoch), index)
	case op == OpNorms || op == OpTrust:
		l.u.exchange.receive(c.Rank, op, epoch, index, wc.ByteLen)
	case op == OpNotice && Notice(epoch) == NoticeRead:
		l.u.exchange.acknowledged(c.Rank)
	case int(index) >= len(l.u.cfg.Store.Chunks):
		l.violates(c.Rank, "sent chunk %d of lane %d, which has %d", index, l.u.cfg.Lane.Index, len(l.u.cfg.Store.Chunks))
	case op == OpNotice && Notice(epoch) == NoticeRows, op <= OpResult && l.u.rows.of[l.u.cfg.Store.Chunks[index].Tensor] != nil:
		l.u.rows.receive(c.Rank, op, index, wc.ByteLen)
	case op == OpNotice:
		l.u.notified(c.Rank, Notice(epoch), index)
	default:
		l.u.receiveChunk(c.Rank, op, epoch, index, wc.ByteLen)
	}
}

// Delivered records that n messages have arrived at another rack.
func (l *Links) Delivered(c *lane.Conn, n int) {
	for range n {
		if b := c.Conn.Delivered(); b != store.NoBuffer {
			l.u.buffers.release(b)
		}
	}
	if l.announced {
		return // the reducer does not count the message about the end
	}
	l.u.reducer.Delivered(c.Rank, n)
	l.u.carryOut()
}

func (l *Links) violates(rack int, format string, args ...any) {
	l.u.cfg.Lane.Count.Dropped++
	l.u.cfg.Fail.Fail(failure.NoRank, fmt.Errorf("%w: %s %w", hierarchy.ErrProtocol, l.name(rack), fmt.Errorf(format, args...)))
}

// Failed handles the failure of a queue pair. The other rack's aggregator is lost, because nobody resumes such connections.
func (l *Links) Failed(c *lane.Conn, _ bool, err error) {
	c.Close()
	if !l.peers[c.Rank].ended {
		l.u.cfg.Fail.Fail(failure.NoRank, fmt.Errorf("%w: %s, by %s: %w", ErrPeerLost, l.name(c.Rank), l.name(l.u.cfg.Place.Rack), err))
	}
}

// QueueLost fails the job.
func (l *Links) QueueLost(c *lane.Conn, err error) {
	l.u.cfg.Fail.Fail(failure.NoRank, fmt.Errorf("lane %d: %w", l.u.cfg.Lane.Index, err))
}

// send sends a message whose payload lies among the buffers. The message holds buffer until it has arrived.
func (l *Links) send(rack int, imm uint32, buffer int32, what verbs.SendWR) {
	p, wr := &l.peers[rack], l.put(rack, imm, buffer)
	wr.LAddr, wr.LKey = what.LAddr, l.u.buffers.Region.LKey(max(p.NIC(), 0))
	wr.RAddr, wr.RKey, wr.Length = what.RAddr, what.RKey, what.Length
	p.sent += uint64(wr.Length)
	l.u.cfg.Lane.Count.AboveSentBytes += uint64(wr.Length)
}

func (l *Links) notify(rack int, n Notice, index uint32) {
	l.put(rack, pack(OpNotice, uint8(n), index), store.NoBuffer)
}

// put appends a message without a payload.
func (l *Links) put(rack int, imm uint32, buffer int32) *verbs.SendWR {
	l.u.cfg.Lane.Touch(l.peers[rack].Conn)
	return l.peers[rack].Put(imm, buffer)
}
