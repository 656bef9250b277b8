package aggregate

import (
	"fmt"

	"github.com/rackweave/rackweave/aggregate/optim"
	"github.com/rackweave/rackweave/aggregate/reduce"
	"github.com/rackweave/rackweave/aggregate/session"
	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/verbs"
)

// destination is where a worker wants a tensor's answers: the address of its first element, rkey 0 when it has not said so.
type destination struct {
	addr      uint64
	rkey      uint32
	streaming bool
}

// link is a worker's connection to one lane, with the memory at both ends.
type link struct {
	*session.Conn
	rank  int     // of the rack, if it is a peer's
	peer  bool    // it leads to another rack's aggregator
	slots *region // window * chunk bytes; untouched when payloads come by reference

	// Where answers go that have no destination of their own: the worker's staging buffer of the message's slot. A peer's slots.
	replyAddr  uint64
	replyRKey  uint32
	resultRKey uint32        // a peer's, of where it wants results
	staging    uint64        // bytes of all its staging buffers
	dst        []destination // by tensor of the lane
	stream     streamLink

	attempt  uint64 // the worker's, that made the queue pair; 0: the first
	untold   bool   // the worker has not been told that the connection broke
	deadline int64  // broken: when the worker is lost, ns
	dirty    bool   // on the core's list
	counters WorkerCounters
}

// streamLink is what stream mode keeps of a worker.
type streamLink struct {
	hypers []optim.Hyper      // by tensor of the lane: the worker's own
	seen   []uint32           // by chunk of the lane: its updates when the worker got it last
	weight float64            // of the gradients of its step in a set
	answer chunk.TensorRecord // to its commit
}

// fit makes room for the store's tensors and chunks.
func (l *streamLink) fit(s *store) {
	for i := len(l.hypers); i < len(s.tensors); i++ {
		l.hypers = append(l.hypers, s.tensors[i].hyper)
	}
	l.seen = append(l.seen, make([]uint32, len(s.chunks)-len(l.seen))...)
}

// staged tells whether a payload that came by reference lies in a staging buffer of the worker's.
func (k *link) staged(source uint64) bool { return source-k.replyAddr < k.staging }

// target says where the answer to a message goes: to the destination of its tensor, if it has one, at this offset.
func (k *link) target(h *reduce.Held, d *destination, offset uint64, chunkBytes int) (addr uint64, rkey uint32) {
	switch {
	case d != nil && d.rkey != 0:
		return d.addr + offset, d.rkey
	case h.SourceRKey != 0:
		return h.Source, h.SourceRKey
	}
	return k.replyAddr + uint64(h.Slot)*uint64(chunkBytes), k.replyRKey
}

// aim gives everything that was said about keys the ones of other NICs: of the aggregator's, and of the one that the worker uses
// now.
func (k *link) aim(nic int, theirs []verbs.MR, ours *memory) error {
	k.replyRKey, _ = keyOf(theirs, k.replyAddr, 1)
	for i := range k.dst {
		d := &k.dst[i]
		if key, ok := keyOf(theirs, d.addr, 1); d.rkey != 0 && ok {
			d.rkey = key
		} else {
			*d = destination{} // in memory that the worker has given up
		}
	}
	for i := range k.Held() {
		wr := k.At(i)
		if wr.Length == 0 {
			continue
		}
		key, ok := keyOf(theirs, wr.RAddr, uint64(wr.Length))
		if !ok {
			return fmt.Errorf("%d bytes at 0x%x", wr.Length, wr.RAddr)
		}
		wr.RKey, wr.LKey = key, ours.lkeyOf(nic, wr.LAddr, uint64(wr.Length))
	}
	return nil
}

func keyOf(regions []verbs.MR, addr, bytes uint64) (uint32, bool) {
	for i := range regions {
		if r := &regions[i]; addr >= r.Addr && addr-r.Addr <= r.Length && bytes <= r.Length-(addr-r.Addr) {
			return r.RKey, true
		}
	}
	return 0, false
}
