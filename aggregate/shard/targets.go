package shard

import (
	"github.com/rackweave/rackweave/aggregate/reduce"
	"github.com/rackweave/rackweave/aggregate/session"
	"github.com/rackweave/rackweave/verbs"
)

// targets holds the places of answers in the workers' memory, which a pass writes to directly if all of them can be mapped.
type targets struct {
	n      int
	qps    [MaxWorkers]*verbs.QP
	rkeys  [MaxWorkers]uint32
	raddrs [MaxWorkers]uint64
	outs   [MaxWorkers]uint64
}

// add adds the place of the answer to a message, and reports false if it cannot be mapped now.
func (t *targets) add(k *link, h *reduce.Held, d *destination, offset uint64, chunkBytes int) bool {
	if k.State != session.Up || k.Unposted > 0 {
		return false
	}
	t.qps[t.n] = k.QP
	t.raddrs[t.n], t.rkeys[t.n] = k.target(h, d, offset, chunkBytes)
	t.n++
	return true
}

// mapAll returns the addresses in this process of the places that were added, each of that many bytes, or nil if one cannot be
// mapped, or no place was added.
func (t *targets) mapAll(bytes int) []uint64 {
	n := t.n
	if n == 0 || !verbs.MapAll(t.qps[:n], t.rkeys[:n], t.raddrs[:n], uint32(bytes), t.outs[:n]) {
		return nil
	}
	return t.outs[:n]
}

// target returns the address for the answer to a message: in the destination of its tensor at this offset; else, by reference, over
// the message's own payload; else in the staging buffer of its slot.
func (k *link) target(h *reduce.Held, d *destination, offset uint64, chunkBytes int) (addr uint64, rkey uint32) {
	switch {
	case d != nil && d.rkey != 0:
		return d.addr + offset, d.rkey
	case h.SourceRKey != 0:
		return h.Source, h.SourceRKey
	}
	return k.replyAddr + uint64(h.Slot)*uint64(chunkBytes), k.replyRKey
}
