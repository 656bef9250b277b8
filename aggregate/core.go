package aggregate

import (
	"github.com/rackweave/rackweave/aggregate/reduce"
	"github.com/rackweave/rackweave/verbs"
)

// core is what one lane's shares have in common: its clock, its arithmetic, its counters, and scratch memory. Only the lane's
// goroutine touches it.
type core struct {
	lane    int
	now     func() int64 // ns
	stamp   int64        // now, read once per round
	local   Counters
	dirty   []*link // with answers to post or receives to replenish
	updated uint64  // bytes of parameters that commits updated
	rung    uint64  // doorbells of connections that are gone
	broken  bool    // a connection may have broken since the lane last looked

	arithmetic
	reader  recordReader
	message reduce.Message
	src     [MaxWorkers]uint64
	outs    [MaxWorkers]uint64
	peers   struct { // of the destinations that a round asks to map
		qps    [MaxWorkers]*verbs.QP
		rkeys  [MaxWorkers]uint32
		raddrs [MaxWorkers]uint64
	}
	sample int
}

// MaxWorkers is the most workers a job can have.
const MaxWorkers = 1024

// touch puts a connection on the list of those to flush at the end of the round.
func (c *core) touch(k *link) {
	if !k.dirty {
		k.dirty = true
		c.dirty = append(c.dirty, k)
	}
}

// timed reports whether the chunk under way is one of those that are timed.
func (c *core) timed() bool {
	c.sample++
	if c.sample < SampleEvery {
		return c.sample == 1
	}
	c.sample = 0
	return false
}
