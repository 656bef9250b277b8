package session

import (
	"errors"
	"fmt"
	"time"

	"github.com/rackweave/rackweave/verbs"
)

// State is the state of a connection.
type State uint8

// The states of a connection.
const (
	Up       State = iota // its queue pair carries messages, or waits for the worker's first connect
	Broken                // its queue pair failed: messages wait in the ring until the worker resumes
	Resuming              // a new queue pair waits for the worker
	Closed                // given up: nothing is sent any more
)

func (s State) String() string { return [...]string{"up", "broken", "resuming", "closed"}[s] }

// Work request ids: a send's top bit is set and its low 32 bits count the messages that it completes; between them are the
// connection's generation (15 bits) and its number in the lane (16 bits).
const (
	sendTag     = 1 << 63
	numberShift = 32
	// NumberMask bounds a connection's number in its lane.
	NumberMask = 0xffff
	genShift   = 48
	// GenMask bounds a connection's generation.
	GenMask = 0x7fff
)

// ID names a connection in work request ids, so that completions of a closed one are told apart.
type ID struct{ Number, Gen int }

func (id ID) wrID() uint64 { return uint64(id.Gen)<<genShift | uint64(id.Number)<<numberShift }

// Owner returns the connection that a completion belongs to.
func Owner(wrID uint64) ID {
	return ID{Number: int(wrID >> numberShift & NumberMask), Gen: int(wrID >> genShift & GenMask)}
}

// IsSend reports whether a completion is of messages sent, and of how many.
func IsSend(wrID uint64) (n int, send bool) { return int(uint32(wrID)), wrID&sendTag != 0 }

// Config is what a connection is made of.
type Config struct {
	ID                     ID
	SendDepth, RecvDepth   int
	MaxInline              int  // bytes; 0: messages are not sent inline
	Peer                   int  // whom it is for, as the verbs know peers
	ByReference            bool // payloads are delivered where the worker holds them
	Resumable              bool // the worker can resume, and the link can fail
	Timeout                time.Duration
	AckTimeout             time.Duration // how long an unacknowledged message is retried; 0: the contract's default
	RNRTimeout             time.Duration // how long a message waits for a receive of the peer's; 0: the contract's default
	MaxBatch               int           // messages that wait for one doorbell
	InlineCompletionPeriod int           // inline: how many messages pass between two completions
}

// Path is the aggregator's end of a path: where a queue pair is made.
type Path struct {
	NIC int // of the engine
	PD  *verbs.PD
	CQ  *verbs.CQ
}

// Conn is the aggregator's end of a connection. The lane's goroutine uses it.
type Conn struct {
	Stream
	cfg   Config
	state State
	qp    *verbs.QP // nil: none now
	nic   int

	receives   int  // posted to the queue pair and not completed
	consumed   int  // receives to post again
	unsignaled int  // messages posted since the last that asked for a completion
	confirm    bool // the next post asks for one

	fruitless int    // breaks since the last progress for which the device may blame this end
	progress  uint64 // messages in both directions at the last such break

	Doorbells uint64 // rung since it was made
}

// maxFruitless is how many breaks without progress a connection survives when they may be this end's own fault: such an error
// comes again on every queue pair.
const maxFruitless = 8

// New makes a connection without a queue pair.
func New(cfg Config) *Conn { return &Conn{Stream: NewStream(cfg.SendDepth), cfg: cfg} }

// ID returns the connection's name in work request ids.
func (c *Conn) ID() ID { return c.cfg.ID }

// State returns the connection's state.
func (c *Conn) State() State { return c.state }

// NIC returns the NIC of the queue pair; -1: there is none.
func (c *Conn) NIC() int {
	if c.qp == nil {
		return -1
	}
	return c.nic
}

// QP returns the queue pair; nil: there is none.
func (c *Conn) QP() *verbs.QP { return c.qp }

// Inline reports whether the transport has read a message's payload once it is posted.
func (c *Conn) Inline() bool { return c.cfg.MaxInline > 0 }

// Resumable reports whether the worker can resume the connection.
func (c *Conn) Resumable() bool { return c.cfg.Resumable }

// Connect makes a queue pair, which waits for the worker, and returns its endpoint.
func (c *Conn) Connect(p Path, peer []byte) (endpoint []byte, err error) {
	if endpoint, err = c.Open(p); err != nil {
		return nil, err
	}
	return endpoint, c.Join(peer, false)
}

// Open makes a queue pair and returns its endpoint.
func (c *Conn) Open(p Path) (endpoint []byte, err error) {
	c.qp, err = p.PD.CreateQP(verbs.QPConfig{
		SendCQ: p.CQ, RecvCQ: p.CQ, MaxSendWR: c.cfg.SendDepth, MaxRecvWR: c.cfg.RecvDepth, MaxInline: c.cfg.MaxInline,
		ByReference: c.cfg.ByReference, Peer: c.cfg.Peer,
	})
	if err != nil {
		c.qp = nil
		return nil, err
	}
	c.nic = p.NIC
	if endpoint, err = c.qp.Endpoint(); err != nil {
		return nil, errors.Join(err, c.Disconnect())
	}
	return endpoint, nil
}

// Join connects the queue pair to its peer's, or, if it is not active, lets it wait for the peer. After an error there is no
// queue pair.
func (c *Conn) Join(peer []byte, active bool) error {
	err := c.qp.Connect(peer, verbs.ConnectConfig{
		Active: active, Timeout: c.cfg.Timeout, AckTimeout: c.cfg.AckTimeout, RNRTimeout: c.cfg.RNRTimeout,
	})
	if err == nil {
		err = c.qp.PostRecv(c.cfg.ID.wrID(), c.cfg.RecvDepth)
	}
	c.receives, c.consumed = c.cfg.RecvDepth, 0
	if err != nil {
		return errors.Join(err, c.Disconnect())
	}
	if c.state == Broken {
		c.state = Resuming
	}
	return nil
}

// Disconnect destroys the queue pair.
func (c *Conn) Disconnect() error {
	if c.qp == nil {
		return nil
	}
	err := c.qp.Close()
	c.qp = nil
	return err
}

// Close gives the connection up: nothing is sent any more. The queue pair stays until [Conn.Disconnect].
func (c *Conn) Close() { c.state = Closed }

// Put appends a write with immediate for the caller to complete. The token comes back from [Conn.Sent].
func (c *Conn) Put(imm uint32, token int32) *verbs.SendWR {
	if c.Unposted() >= c.cfg.MaxBatch {
		// An error here shows again when the round is flushed.
		_ = c.Post()
	}
	wr := c.Stream.Put(token)
	*wr = verbs.SendWR{WRID: sendTag | c.cfg.ID.wrID(), Opcode: verbs.OpWriteWithImm, Imm: imm}
	return wr
}

// Confirm has the messages that wait ask for a completion, so that Held says when they have arrived.
func (c *Conn) Confirm() { c.confirm = true }

// Post rings the doorbell for what waits. At most the last message asks for a completion, which then stands for all since the
// one before; messages sent inline need one only now and then.
func (c *Conn) Post() error {
	n := c.Unposted()
	if n == 0 || c.state != Up {
		return nil
	}
	c.unsignaled += n
	if !c.Inline() || c.confirm || c.unsignaled >= c.cfg.InlineCompletionPeriod {
		last := c.At(c.Held() - 1)
		last.Flags |= verbs.SendSignaled
		last.WRID += uint64(c.unsignaled)
		c.unsignaled, c.confirm = 0, false
	}
	for wrs := c.Next(); len(wrs) > 0; wrs = c.Next() {
		_, err := c.qp.PostSend(wrs)
		// What the queue pair did not take comes with the resumed connection; without one, nothing matters any more.
		c.Posted(len(wrs))
		c.Doorbells++
		if err != nil {
			return err
		}
	}
	return nil
}

// Completed takes note of a completed receive, with a message or in error.
func (c *Conn) Completed(message bool) {
	c.receives--
	if message {
		c.consumed++
		c.Receive(1)
	}
}

// Outstanding returns how many posted receives have not completed.
func (c *Conn) Outstanding() int { return c.receives }

// Replenish posts receives for those that messages have consumed.
func (c *Conn) Replenish() error {
	n := c.consumed
	if n == 0 || c.state != Up {
		return nil
	}
	c.consumed = 0
	c.receives += n
	return c.qp.PostRecv(c.cfg.ID.wrID(), n)
}

// Survives reports whether the connection outlives a work completion in error: another queue pair may do better. Soft-RoCE calls
// a packet that finds no link an operation error, which for other devices is a work request that they do not understand; and
// what is fatal to one NIC need not be to another. An error that is this end's own fault comes again and again.
func (c *Conn) Survives(status verbs.Status) bool {
	switch {
	case !c.cfg.Resumable:
		return false
	case status != verbs.WCLocQPOpErr && status != verbs.WCFatalErr:
		return status == verbs.WCFlushErr || status == verbs.WCRetryExcErr
	}
	if p := c.Received() + c.Done(); p != c.progress {
		c.progress, c.fruitless = p, 0
	}
	c.fruitless++
	return c.fruitless <= maxFruitless
}

// Refused reports whether the connection outlives an error of a post: its queue pair has failed under it.
func (c *Conn) Refused() bool {
	return c.cfg.Resumable && c.qp != nil && c.qp.State() == verbs.StateErr
}

// Break takes note that the queue pair has failed.
func (c *Conn) Break() {
	if c.state != Closed {
		c.state = Broken
		c.Stream.Break()
	}
}

// TakeOut takes the queue pair out of service: nothing lands once it is destroyed, also where a dead device cannot fail it.
func (c *Conn) TakeOut() {
	c.Break()
	if c.qp != nil {
		_ = c.qp.Fail()
	}
}

// SetAckTimeout sets how long an unacknowledged message is retried on the next queue pair.
func (c *Conn) SetAckTimeout(d time.Duration) { c.cfg.AckTimeout = d }

// Arrive checks the worker's count of received messages against what was sent.
func (c *Conn) Arrive(received uint64) (int, error) {
	n, err := c.Arrived(received)
	if err != nil {
		return 0, fmt.Errorf("a count of %w", err)
	}
	return n, nil
}

// Recover posts what the worker has not received, once the worker has connected to the new queue pair. It reports whether that
// has happened.
func (c *Conn) Recover() (bool, error) {
	if c.state != Resuming || c.qp == nil || c.qp.State() != verbs.StateRTS {
		return false, nil
	}
	c.state = Up
	c.Stream.Resume()
	for i := range c.Held() {
		wr := c.At(i)
		wr.Flags &^= verbs.SendSignaled
		wr.WRID = sendTag | c.cfg.ID.wrID()
	}
	c.unsignaled = 0
	return true, errors.Join(c.Post(), c.Replenish()) // messages can have come before the lane looked
}
