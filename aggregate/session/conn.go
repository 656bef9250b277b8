package session

import (
	"errors"
	"time"

	"github.com/rackweave/rackweave/verbs"
)

// State is the state of a connection.
type State uint8

const (
	Up       State = iota // its queue pair carries messages, or waits for the worker's first connect
	Broken                // its queue pair failed, and messages wait in the ring until the worker resumes
	Resuming              // a new queue pair waits for the worker
	Closed                // ended: nothing is sent any longer
)

func (s State) String() string { return [...]string{"up", "broken", "resuming", "closed"}[s] }

// These constants encode work request ids. A send's top bit is set, and its low 32 bits count the messages that it completes.
// Between them are the connection's generation (15 bits) and its number in the lane (16 bits).
const (
	sendTag     = 1 << 63
	numberShift = 32
	// NumberMask bounds a connection's number in its lane.
	NumberMask = 0xffff
	genShift   = 48
	// GenMask bounds a connection's generation.
	GenMask = 0x7fff
)

// ID identifies a connection in work request ids, so that completions of closed connections can be told apart.
type ID struct{ Number, Gen int }

func (id ID) wrID() uint64 { return uint64(id.Gen)<<genShift | uint64(id.Number)<<numberShift }

// Owner returns the id of the connection of a completion.
func Owner(wrID uint64) ID {
	return ID{Number: int(wrID >> numberShift & NumberMask), Gen: int(wrID >> genShift & GenMask)}
}

// IsSend returns the number of messages sent that a completion is for, and whether it is for messages sent.
func IsSend(wrID uint64) (n int, send bool) { return int(uint32(wrID)), wrID&sendTag != 0 }

// Config describes a connection.
type Config struct {
	ID                     ID
	SendDepth, RecvDepth   int
	MaxInline              int  // bytes of a payload that the device copies at the post ([verbs.DevCopiesAtPost]); 0 if it does not
	Peer                   int  // the peer's number in the verbs
	ByReference            bool // payloads are delivered in the worker's own memory
	Resumable              bool // the worker can resume, and the link can fail
	Timeout                time.Duration
	AckTimeout             time.Duration // time for which an unacknowledged message is retried; if 0, the contract's default
	RNRTimeout             time.Duration // time for which a message waits for a receive of the peer; if 0, the contract's default
	MaxBatch               int           // largest number of messages per doorbell
	InlineCompletionPeriod int           // inline: number of messages from one completion to the next
}

// Path is the aggregator's end of a path, on which queue pairs are made.
type Path struct {
	NIC int // index of the engine's
	PD  *verbs.PD
	CQ  *verbs.CQ
}

// Conn is the aggregator's end of a connection. Only the lane's goroutine uses it.
type Conn struct {
	Stream
	Config
	State State
	QP    *verbs.QP // nil without a queue pair
	nic   int

	Receives   int  // posted to the queue pair and not completed
	consumed   int  // number of receives to post again
	unsignaled int  // messages posted since the last one with a completion
	confirm    bool // the next post requests a completion

	fruitless int    // breaks since the last progress for which the device may blame this end
	progress  uint64 // messages in both directions at the last such break

	Doorbells uint64 // number of doorbells rung since the connection was made
}

// maxFruitless is the number of breaks without progress that a connection survives when they may be this end's own fault. Such an
// error occurs again on every queue pair.
const maxFruitless = 8

// New makes a connection without a queue pair.
func New(cfg Config) *Conn { return &Conn{Stream: NewStream(cfg.SendDepth), Config: cfg} }

// NIC returns the NIC of the queue pair, or -1 without a queue pair.
func (c *Conn) NIC() int {
	if c.QP == nil {
		return -1
	}
	return c.nic
}

// CopiesAtPost reports whether the device has read a message's payload when the post returns.
func (c *Conn) CopiesAtPost() bool { return c.MaxInline > 0 }

// Open makes a queue pair and returns its endpoint.
func (c *Conn) Open(p Path) (endpoint []byte, err error) {
	c.QP, err = p.PD.CreateQP(verbs.QPConfig{
		CQ: p.CQ, MaxSendWR: c.SendDepth, MaxRecvWR: c.RecvDepth, MaxInline: c.MaxInline,
		ByReference: c.ByReference, ImmOnly: true, Peer: c.Peer,
	})
	if err != nil {
		return nil, err
	}
	c.nic = p.NIC
	if endpoint, err = c.QP.Endpoint(); err != nil {
		return nil, errors.Join(err, c.Disconnect())
	}
	return endpoint, nil
}

// Join connects the queue pair to its peer's if active is true. Otherwise it lets the queue pair wait for the peer. After an error
// the connection has no queue pair.
func (c *Conn) Join(peer []byte, active bool) error {
	err := c.QP.Connect(peer, verbs.ConnectConfig{
		Active: active, Timeout: c.Timeout, AckTimeout: c.AckTimeout, RNRTimeout: c.RNRTimeout,
	})
	if err == nil {
		err = c.QP.PostRecv(c.ID.wrID(), c.RecvDepth)
	}
	c.Receives, c.consumed = c.RecvDepth, 0
	if err != nil {
		return errors.Join(err, c.Disconnect())
	}
	if c.State == Broken {
		c.State = Resuming
	}
	return nil
}

// Disconnect destroys the queue pair.
func (c *Conn) Disconnect() error {
	if c.QP == nil {
		return nil
	}
	err := c.QP.Close()
	c.QP = nil
	return err
}

// Close ends the connection. Nothing is sent afterwards. The queue pair stays until [Conn.Disconnect].
func (c *Conn) Close() { c.State = Closed }

// Put appends a write with immediate for the caller to fill in. [Conn.Delivered] returns the token.
func (c *Conn) Put(imm uint32, token int32) *verbs.SendWR {
	if c.Unposted >= c.MaxBatch {
		// An error recurs when the round is flushed.
		_ = c.Post()
	}
	wr := c.Stream.Put(token)
	*wr = verbs.SendWR{WRID: sendTag | c.ID.wrID(), Opcode: verbs.OpWriteWithImm, Imm: imm}
	return wr
}

// Confirm makes the messages that wait ask for a completion, so that Unconfirmed reports when they have arrived.
func (c *Conn) Confirm() { c.confirm = true }

// Post rings the doorbell for the waiting messages. At most the last message requests a completion, which also completes all
// messages since the one before. Messages sent inline need a completion only now and then.
func (c *Conn) Post() error {
	n := c.Unposted
	if n == 0 || c.State != Up {
		return nil
	}
	c.unsignaled += n
	if !c.CopiesAtPost() || c.confirm || c.unsignaled >= c.InlineCompletionPeriod {
		last := c.At(c.Unconfirmed - 1)
		last.Flags |= verbs.SendSignaled
		last.WRID += uint64(c.unsignaled)
		c.unsignaled, c.confirm = 0, false
	}
	for wrs := c.Next(); len(wrs) > 0; wrs = c.Next() {
		_, err := c.QP.PostSend(wrs)
		// The resumed connection posts the messages that the queue pair did not take. A connection that is not resumed needs none of
		// them.
		c.Posted(len(wrs))
		c.Doorbells++
		if err != nil {
			return err
		}
	}
	return nil
}

// Completed records a completed receive, with a message or in error.
func (c *Conn) Completed(message bool) {
	c.Receives--
	if message {
		c.consumed++
		c.Received++
	}
}

// Replenish posts receives for the ones that messages have consumed.
func (c *Conn) Replenish() error {
	n := c.consumed
	if n == 0 || c.State != Up {
		return nil
	}
	c.consumed = 0
	c.Receives += n
	return c.QP.PostRecv(c.ID.wrID(), n)
}

// Survives reports whether the connection survives a work completion in error, because another queue pair may succeed. Soft-RoCE
// calls a packet that finds no link an operation error, which for other devices is a work request that they do not understand. An
// error that is fatal to one NIC need not be fatal to another. An error that is this end's own fault recurs.
func (c *Conn) Survives(status verbs.Status) bool {
	switch {
	case !c.Resumable:
		return false
	case status != verbs.WCLocQPOpErr && status != verbs.WCFatalErr:
		return status == verbs.WCFlushErr || status == verbs.WCRetryExcErr
	}
	if p := c.Received + c.Done; p != c.progress {
		c.progress, c.fruitless = p, 0
	}
	c.fruitless++
	return c.fruitless <= maxFruitless
}

// SurvivesPost reports whether the connection survives an error of a post, because its queue pair has failed.
func (c *Conn) SurvivesPost() bool {
	return c.Resumable && c.QP != nil && c.QP.State() == verbs.StateErr
}

// Break marks the connection as broken, because its queue pair has failed.
func (c *Conn) Break() {
	if c.State != Closed {
		c.State = Broken
		c.Stream.Break()
	}
}

// TakeOut takes the queue pair out of service. Nothing arrives after it is destroyed, even where a dead device cannot fail it.
func (c *Conn) TakeOut() {
	c.Break()
	if c.QP != nil {
		_ = c.QP.Fail()
	}
}

// Recover posts the messages that the worker has not received, once the worker has connected to the new queue pair. It reports
// whether the worker has connected.
func (c *Conn) Recover() (bool, error) {
	if c.State != Resuming || c.QP == nil || c.QP.State() != verbs.StateRTS {
		return false, nil
	}
	c.State = Up
	c.Stream.Resume()
	for i := range c.Unconfirmed {
		wr := c.At(i)
		wr.Flags &^= verbs.SendSignaled
		wr.WRID = sendTag | c.ID.wrID()
	}
	c.unsignaled = 0
	return true, errors.Join(c.Post(), c.Replenish()) // messages can have arrived before the lane polled
}
