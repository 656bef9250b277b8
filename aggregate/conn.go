package aggregate

import (
	"errors"
	"fmt"

	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/verbs"
)

// destination is where a worker wants a tensor's answers: the address of its first element, rkey 0 when it has not said so.
type destination struct {
	addr      uint64
	rkey      uint32
	streaming bool
}

// conn is the connection of one worker to one lane.
type conn struct {
	share  *share
	lane   *Lane
	rank   int
	qp     *verbs.QP // nil: none now (resume.go)
	nic    int       // of the engine, that the queue pair is on
	number int       // in lane.conns
	gen    uint64    // so that completions of a closed connection are told apart

	slots    region   // window * chunk bytes; untouched when payloads come by reference
	free     []uint16 // slots in the order the worker fills them, a ring (cgo/worker/worker.h)
	freeHead int

	// Where answers go that have no destination of their own: the worker's staging buffer of the message's slot.
	replyAddr uint64
	replyRKey uint32
	staging   int           // how many of them there are
	dst       []destination // by lane tensor
	hyperSum  []uint32      // by lane tensor: checksum of the hyper-parameters this worker sent last; 0: none

	held     int    // messages not answered
	folded   int    // of those, in folds
	staged   int    // of those, by reference in staging buffers
	asked    []bool // by chunk: it was sent a want, and has not sent the chunk since (stall.go)
	wants    int    // how many of them
	unheard  int    // wants sent since its last message
	owing    bool   // it was given something back since
	stalled  bool   // found so by this look (stall.go)
	room     int    // that it needs for what this look asked of it
	consumed int    // receives to post again
	dirty    bool

	ring sendRing
	// On devices that copy at post, answers go inline: a result buffer is free again on return, still hot, and a completion is
	// needed only now and then.
	inline     bool
	unsignaled int

	dead     bool
	mend     mending
	counters WorkerCounters
}

const noResult = -1

// stages tells whether a payload that came by reference lies in a staging buffer of the worker's.
func (c *conn) stages(source uint64) bool {
	return source-c.replyAddr < uint64(c.staging)*uint64(c.share.job.chunkBytes)
}

// takeSlot returns the slot that the message just received lies in.
func (c *conn) takeSlot() uint16 {
	s := c.free[c.freeHead]
	c.freeHead = (c.freeHead + 1) % len(c.free)
	return s
}

// giveSlot notes that the message in this slot, from this source, is being answered. The ring is full of free slots minus those
// held, so the place behind the last free one is where the k-th held message was taken from.
func (c *conn) giveSlot(s uint16, source uint64) {
	c.free[(c.freeHead+len(c.free)-c.held)%len(c.free)] = s
	c.held--
	if c.stages(source) {
		c.staged--
	}
	c.lane.local.SlotsHeld--
}

// receive handles a message of the worker.
func (c *conn) receive(wc *verbs.WC) {
	s, l := c.share, c.lane
	c.consumed++
	c.mend.received++
	c.unheard, c.owing = 0, false
	c.touch()
	// A worker that broke the protocol no longer lies in the slots where the aggregator looks.
	if c.dead || s.ended || s.job.failure.Load() != nil {
		return
	}
	op, epoch, index := chunk.Unpack(wc.Imm)
	if c.held == s.job.window {
		c.violate("sent more than its window of %d messages", s.job.window)
		return
	}
	m := message{conn: c, op: op, epoch: epoch, index: int(index), bytes: int(wc.ByteLen), slot: c.takeSlot()}
	c.held++
	l.local.SlotsHeld++
	if wc.Addr != 0 {
		m.payload, m.source, m.sourceRKey = wc.Addr, wc.SrcAddr, wc.SrcRKey
	} else {
		m.payload = c.slots.addr() + uint64(m.slot)*uint64(s.job.chunkBytes)
	}
	if c.stages(m.source) {
		c.staged++
	}
	l.local.Messages++
	l.local.RecvBytes += uint64(wc.ByteLen)
	c.counters.RecvBytes += uint64(wc.ByteLen)
	switch op {
	case chunk.OpPush, chunk.OpPushPull, chunk.OpBroadcast:
		s.arrive(&m)
	case chunk.OpPull:
		s.pull(&m)
	case chunk.OpTensor:
		s.record(&m)
	case chunk.OpCommit:
		s.commitArrived(&m)
	default:
		c.violate("sent operation %v, which only the aggregator sends", op)
	}
}

// violate fails the job because of what this worker did.
func (c *conn) violate(format string, args ...any) {
	c.lane.local.Dropped++
	c.share.job.fail(c.rank, fmt.Errorf("%w: worker %d %s", ErrProtocol, c.rank, fmt.Sprintf(format, args...)))
}

// lost handles a completion in error: the way to the worker is broken, or the worker is gone, or did what its keys forbid.
func (c *conn) lost(status uint16) {
	if c.dead || c.mend.broken {
		return
	}
	if c.mendable(status) {
		c.breakOff()
		return
	}
	c.end(errors.New(verbs.StatusText(status)))
}

// end gives the worker up for lost.
func (c *conn) end(err error) {
	c.dead = true
	c.share.job.fail(c.rank, fmt.Errorf("%w: worker %d: %w", ErrWorkerLost, c.rank, err))
}

// touch puts the connection on the lane's list of those to flush at the end of the round.
func (c *conn) touch() {
	if !c.dirty {
		c.dirty = true
		c.lane.dirty = append(c.lane.dirty, c)
	}
}

// canAnswer reports whether one more answer fits the send queue. The margin is for gives-back, wants and the abort.
func (c *conn) canAnswer() bool { return c.ring.free() > recvMargin }

// answer posts the answer to m: bytes at addr, or nothing but the immediate. It gives the message's slot back. result is the
// result buffer that addr lies in, to be released when the transport has read it; noResult: addr are the chunk's parameters.
func (c *conn) answer(m *message, addr uint64, bytes int, result int32) {
	var lkey uint32
	switch {
	case bytes == 0:
	case result != noResult:
		lkey = c.share.results.lkey(c.nic)
	default:
		lkey = c.share.lkeys[c.nic][m.index]
	}
	if c.inline || planted == plantReleaseEarly {
		result = noResult
	}
	wr := c.next(chunk.Pack(m.op, m.epoch, uint32(m.index)), result)
	if bytes > 0 {
		wr.LAddr, wr.LKey, wr.Length = addr, lkey, uint32(bytes)
		if c.inline {
			wr.Flags |= verbs.SendInline
		}
		wr.RAddr, wr.RKey = c.target(m)
		if m.hasTensor() && c.dst[m.laneTensor].streaming {
			wr.Flags |= verbs.SendStreaming
		}
	}
	c.giveSlot(m.slot, m.source)
	c.lane.local.Answers++
	c.lane.local.SentBytes += uint64(bytes)
	c.counters.SentBytes += uint64(bytes)
	if c.inline {
		c.post()
	}
}

// target says where the answer to m goes.
func (c *conn) target(m *message) (addr uint64, rkey uint32) {
	if m.hasTensor() {
		if d := c.dst[m.laneTensor]; d.rkey != 0 {
			return d.addr + m.tensorOffset, d.rkey
		}
	}
	if m.sourceRKey != 0 {
		return m.source, m.sourceRKey
	}
	return c.replyAddr + uint64(m.slot)*uint64(c.share.job.chunkBytes), c.replyRKey
}

// control sends an immediate outside the window.
func (c *conn) control(imm uint32) {
	c.next(imm, noResult)
	c.post()
}

// next takes the next work request of the ring.
func (c *conn) next(imm uint32, result int32) *verbs.SendWR {
	if c.ring.unposted >= pollBatch {
		c.post()
	}
	wr := c.ring.put(result)
	*wr = verbs.SendWR{WRID: sendTag | c.wrID(), Opcode: verbs.OpWriteWithImm, Imm: imm}
	if result != noResult {
		c.share.results.hold(result)
	}
	c.touch()
	return wr
}

// post rings the doorbell for what is pending. At most the last asks for a completion, which then stands for all since the
// one before.
func (c *conn) post() {
	n := c.ring.unposted
	if n == 0 || c.mend.broken {
		return
	}
	c.unsignaled += n
	if !c.inline || c.unsignaled >= c.lane.depths.AggregatorSend/4 {
		last := c.ring.last()
		last.Flags |= verbs.SendSignaled
		last.WRID += uint64(c.unsignaled)
		c.unsignaled = 0
	}
	doorbells, err := c.ring.post(c.qp)
	c.lane.local.Doorbells += doorbells
	if err != nil {
		c.refused(err)
	}
}

// refused handles a queue pair that takes no work.
func (c *conn) refused(err error) {
	if c.dead {
		return
	}
	if c.mend.possible && c.qp.State() == verbs.StateErr {
		c.breakOff()
		return
	}
	c.end(err)
}

// sent handles the completion of n work requests.
func (c *conn) sent(n int) {
	for range n {
		if r := c.ring.take(); r != noResult {
			c.share.results.release(r)
		}
	}
	if c.share.waiting() {
		c.lane.list(c.share)
	}
}

// flush ends the connection's part of a round.
func (c *conn) flush() {
	c.dirty = false
	if c.dead || c.mend.broken {
		return
	}
	c.replenish()
	c.post()
}

// replenish posts receives for those that messages have consumed in this round.
func (c *conn) replenish() {
	n := c.consumed
	if n == 0 || c.mend.broken {
		return
	}
	c.consumed = 0
	c.mend.receives += n
	if err := c.qp.PostRecv(c.wrID(), n); err != nil {
		c.refused(err)
	}
}

func (c *conn) wrID() uint64 { return c.gen<<genShift | uint64(c.number)<<connShift }

// open registers the connection with its lane and makes its first queue pair; on the lane's goroutine.
func (c *conn) open(peer []byte) (endpoint []byte, err error) {
	l := c.lane
	if l.connCount == l.depths.MaxConns {
		return nil, fmt.Errorf("lane %d serves %d connections, all its completion queue can hold: %w", l.index, l.connCount, ErrFull)
	}
	c.inline = l.attr.Has(verbs.DevCopiesAtPost) && int(l.attr.MaxInline) >= c.share.job.chunkBytes
	for c.number = 0; c.number < len(l.conns) && l.conns[c.number] != nil; c.number++ {
	}
	if c.number == len(l.conns) {
		l.conns = append(l.conns, nil)
	}
	l.connGen++
	c.gen = l.connGen & genMask
	c.ring = newSendRing(l.depths.AggregatorSend)
	l.conns[c.number] = c
	l.connCount++
	return c.connect(l.home, peer)
}

// connect makes a queue pair on a NIC, which waits for the worker.
func (c *conn) connect(nic int, peer []byte) (endpoint []byte, err error) {
	l, maxInline := c.lane, 0
	if l.lost[nic] {
		return nil, fmt.Errorf("lane %d, %w on %s: connect over another NIC, or start the aggregator anew", l.index, ErrQueueLost, c.share.job.engine.devices[nic].Attr().Name)
	}
	if c.inline {
		maxInline = c.share.job.chunkBytes
	}
	c.qp, err = c.share.job.pds[nic].CreateQP(verbs.QPConfig{
		SendCQ: l.cqs[nic], RecvCQ: l.cqs[nic], MaxSendWR: l.depths.AggregatorSend, MaxRecvWR: l.depths.AggregatorRecv, MaxInline: maxInline,
		ByReference: l.attr.Has(verbs.DevByReference),
	})
	if err != nil {
		return nil, err
	}
	c.nic = nic
	l.guests[nic]++
	if endpoint, err = c.qp.Endpoint(); err == nil {
		err = c.qp.Connect(peer, verbs.ConnectConfig{Timeout: c.share.job.engine.cfg.PeerDeadline, AckTimeout: c.mend.ackTimeout})
	}
	if err == nil {
		err = c.qp.PostRecv(c.wrID(), l.depths.AggregatorRecv)
	}
	c.mend.receives, c.consumed = l.depths.AggregatorRecv, 0
	if err != nil {
		return nil, errors.Join(err, c.disconnect())
	}
	return endpoint, nil
}

// disconnect destroys the queue pair.
func (c *conn) disconnect() error {
	if c.qp == nil {
		return nil
	}
	err := c.qp.Close()
	c.qp = nil
	c.lane.guests[c.nic]--
	return err
}

// close takes the connection off its lane; on the lane's goroutine, or after it ended.
func (c *conn) close() error {
	l := c.lane
	if c.number >= len(l.conns) || l.conns[c.number] != c {
		return nil
	}
	err := c.disconnect()
	c.dead = true
	l.local.SlotsHeld -= uint64(c.held)
	l.conns[c.number] = nil
	l.connCount--
	for i, d := range l.dirty {
		if d == c {
			l.dirty = append(l.dirty[:i], l.dirty[i+1:]...)
			break
		}
	}
	return err
}

// Errors of jobs.
var (
	ErrProtocol   = errors.New("protocol violation")
	ErrWorkerLost = errors.New("worker lost")
	ErrFull       = errors.New("aggregator is full")
	ErrQueueLost  = errors.New("completion queue lost")
)
