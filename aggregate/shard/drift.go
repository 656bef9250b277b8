package shard

import (
	"math"

	"github.com/rackweave/rackweave/aggregate/optim"
	"github.com/rackweave/rackweave/aggregate/store"
	"github.com/rackweave/rackweave/cgo/kernel"
)

// drift measures in mode stream how far the parameters move from the moment at which a worker reads them to its next gradient. It
// follows one worker's copy of one chunk at a time, and not more than one in followEvery that are read, so it costs little.
type drift struct {
	copied           uint64 // address of room for the worker's copy, in f32
	active           bool
	rank             int32
	chunk            uint32 // its number in the plan
	reads            int    // since the copy was made
	distance, length float64
}

const (
	followEvery = 256
	driftKept   = 0.9 // of the older distances, at each new one
)

var difference = optim.Derive(optim.SGDTorch, optim.Hyper{LR: 1, Scale: 1}, 1)

// read follows the copy of a chunk that a worker gets, if it is the turn of one. A copy that gets no gradient for long is dropped.
func (m *stream) read(rank int32, c *store.Chunk) {
	d := &m.drift
	again := d.active && d.rank == rank && d.chunk == c.Number
	least := followEvery
	if d.active {
		least = max(least, 4*len(m.Workers.links)*len(m.Store.Chunks))
	}
	if d.reads++; !again && d.reads < least {
		return
	}
	d.active, d.rank, d.chunk, d.reads = true, rank, c.Number, 0
	kernel.Convert(m.Scratch.ISA, d.copied, kernel.F32, c.Addr, kernel.F32, uint64(c.Elems), false)
}

// pushed measures the distance between a chunk's parameters and the copy of the worker whose gradient has come, if it is followed.
func (m *stream) pushed(rank int32, c *store.Chunk) {
	d := &m.drift
	if !d.active || d.rank != rank || d.chunk != c.Number {
		return
	}
	d.active = false
	k := m.Scratch
	// SGD with a rate of 1 subtracts the gradient, which here is the parameters.
	k.outs[0] = c.Addr
	k.RunOn(c, kernel.Update{W: d.copied, Rule: uint8(optim.SGDTorch), Scalar: difference}, kernel.From(k.outs[:1], kernel.F32), nil,
		kernel.F32)
	if sum := d.distance + d.length; math.IsNaN(sum) || math.IsInf(sum, 1) {
		d.distance, d.length = 0, 0
	}
	d.distance = driftKept*d.distance + kernel.SumSq(k.ISA, d.copied, uint64(c.Elems))
	d.length = driftKept*d.length + kernel.SumSq(k.ISA, c.Addr, uint64(c.Elems))
}

// DriftOf returns the mean of a shard's last squared distances between workers' parameters and the common ones, and of their
// squared lengths, both times one number. The shard is of a job in mode stream.
func DriftOf(s *Shard) (distance, length float64) {
	return s.stream.drift.distance, s.stream.drift.length
}
