package lane

import (
	"fmt"
	"slices"

	"github.com/rackweave/rackweave/aggregate/session"
	"github.com/rackweave/rackweave/verbs"
)

// Conn is a connection in a lane's table.
type Conn struct {
	*session.Conn
	Rank    int // of the worker, or of the rack, at the other end
	flow    *Flow
	handler Handler
	dirty   bool // on the lane's list of connections to flush
}

// table holds a lane's connections by the number in their work request ids.
type table struct {
	all  []*Conn // nil where a number is free
	gen  int     // of the connection that was opened last
	rung uint64  // doorbells of closed connections
}

// vacant returns the id of the next connection of a table for at most so many.
func (t *table) vacant(most int) (id session.ID, err error) {
	taken := 0
	id.Number = len(t.all)
	for i := len(t.all) - 1; i >= 0; i-- {
		if t.all[i] == nil {
			id.Number = i
		} else {
			taken++
		}
	}
	if taken == most {
		return id, fmt.Errorf("it serves %d connections, all its completion queue can hold: %w", taken, ErrFull)
	}
	t.gen++
	id.Gen = t.gen & session.GenMask
	return id, nil
}

func (t *table) has(c *Conn) bool {
	n := c.ID.Number
	return n < len(t.all) && t.all[n] == c
}

// find returns the connection of a completion, or nil if it was closed meanwhile.
func (t *table) find(wrID uint64) *Conn {
	id := session.Owner(wrID)
	if id.Number >= len(t.all) || t.all[id.Number] == nil || t.all[id.Number].ID != id {
		return nil
	}
	return t.all[id.Number]
}

func (t *table) of(f *Flow) (conns []*Conn) {
	for _, c := range t.all {
		if c != nil && c.flow == f {
			conns = append(conns, c)
		}
	}
	return conns
}

func (t *table) doorbells() uint64 {
	n := t.rung
	for _, c := range t.all {
		if c != nil && !c.flow.borrowed {
			n += c.Doorbells
		}
	}
	return n
}

// NewConn opens a connection of the flow's tenant, without a queue pair. The lane completes cfg's ID and MaxBatch. NewConn and the
// methods below run on the lane's goroutine.
func (f *Flow) NewConn(h Handler, rank int, cfg session.Config) (*Conn, error) {
	l := f.lane
	id, err := l.conns.vacant(l.Depths.MaxConns)
	if err != nil {
		return nil, fmt.Errorf("lane %d: %w", l.Index, err)
	}
	cfg.ID, cfg.MaxBatch = id, pollBatch
	c := &Conn{Conn: session.New(cfg), Rank: rank, flow: f, handler: h}
	if id.Number == len(l.conns.all) {
		l.conns.all = append(l.conns.all, nil)
	}
	l.conns.all[id.Number] = c
	return c, nil
}

// Path returns the lane's end of a path over a NIC, in the protection domain that a job has there.
func (l *Lane) Path(nic int, pds []*verbs.PD) (session.Path, error) {
	if l.queues.lost[nic] {
		return session.Path{}, fmt.Errorf("lane %d, NIC %d: %w: connect over another NIC, or start the aggregator anew", l.Index, nic,
			ErrQueueLost)
	}
	return session.Path{NIC: nic, PD: pds[nic], CQ: l.queues.cqs[nic]}, nil
}

// NIC returns the index of the lane's own NIC among the engine's.
func (l *Lane) NIC() int { return l.queues.primary }

// Recount counts the connections of every NIC after a connection has changed its NIC.
func (l *Lane) Recount() {
	clear(l.queues.on)
	for _, c := range l.conns.all {
		if c != nil && c.NIC() >= 0 {
			l.queues.on[c.NIC()]++
		}
	}
}

// Drop closes a connection.
func (l *Lane) Drop(c *Conn) error {
	if !l.conns.has(c) {
		return nil
	}
	c.Close()
	l.conns.rung += c.Doorbells
	l.conns.all[c.ID.Number] = nil
	l.dirty = slices.DeleteFunc(l.dirty, func(o *Conn) bool { return o == c })
	defer l.Recount()
	return c.Disconnect()
}

// drainBatches bounds the batches of completions that one call of Drain takes.
const drainBatches = 64

// Drain completes the messages that a connection's queue pair received before it was out of service, because the worker may know
// that they arrived. It reports whether none is left.
func (f *Flow) Drain(c *Conn) (bool, error) {
	l := f.lane
	f.Dispatch()
	defer l.flush() // the queue also holds completions of other tenants
	for range drainBatches {
		nic := c.NIC()
		if nic < 0 || c.Receives <= 0 || l.queues.lost[nic] {
			return true, nil
		}
		n, err := l.queues.take(nic, l.queues.wc[:])
		if err != nil || n == 0 {
			return false, err
		}
		l.Stamp = l.Now()
		for i := range l.queues.wc[:n] {
			l.flows.sort(&l.queues.wc[i])
		}
		f.Dispatch()
	}
	return false, nil
}

// Dispatch completes the completions in the flow's queue.
func (f *Flow) Dispatch() {
	for f.queue.Len() > 0 {
		f.lane.completeNext(f)
	}
}

// recover lets tenants resume their broken connections.
func (l *Lane) recover() {
	l.broken = false
	for _, f := range l.flows.all {
		if f.borrowed {
			l.broken = true
			continue
		}
		l.serving = f
		if f.tenant.Recover() {
			l.broken = true
		}
		f.Schedule()
	}
}
