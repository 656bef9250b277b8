package shard

import (
	"fmt"

	"github.com/rackweave/rackweave/aggregate/lane"
	"github.com/rackweave/rackweave/aggregate/optim"
	"github.com/rackweave/rackweave/aggregate/store"
	"github.com/rackweave/rackweave/chunk"
)

// destination is the worker's memory for a tensor's answers. If rkey is 0, the worker has not named memory.
type destination struct {
	addr      uint64 // of the tensor's first element
	rkey      uint32
	pastCache bool
}

// link is a worker's connection to one lane, with the memory at both ends. State, queue pair and unconfirmed messages are those of
// its session.Conn.
type link struct {
	*lane.Conn
	slots *store.Region // window * chunk bytes; untouched when payloads come by reference

	// replyAddr is the address of the worker's staging buffers: one per slot, or fewer by reference, where an answer without a
	// destination overwrites the payload.
	replyAddr uint64
	replyRKey uint32
	staging   uint64        // bytes of all staging buffers
	dst       []destination // by tensor of the lane
	stream    streamLink

	attempt    uint64 // the worker's attempt that made the queue pair; 0 for the first queue pair
	unnotified bool   // the worker has not received the notice that the connection broke
	deadline   int64  // ns, the time at which the worker of a broken connection is lost
	counters   WorkerCounters
	gauge      gauge
}

type streamLink struct {
	hypers []optim.Hyper      // by tensor of the lane: the worker's own
	seen   []uint32           // by chunk of the lane: the chunk's updates when the worker last read it
	weight float64            // of the gradients of the worker's step in a set
	answer chunk.TensorRecord // the answer to the worker's commit
	lost   bool               // the job goes on without the worker, and handles no more of its messages
}

func (l *streamLink) fit(s *store.Store) {
	for i := len(l.hypers); i < len(s.Tensors); i++ {
		l.hypers = append(l.hypers, s.Tensors[i].Hyper)
	}
	l.seen = append(l.seen, make([]uint32, len(s.Chunks)-len(l.seen))...)
}

// staged reports whether a payload that came by reference lies in one of the worker's staging buffers.
func (k *link) staged(source uint64) bool { return source-k.replyAddr < k.staging }

// aim replaces all keys by the keys of other NICs: the aggregator's, and the NIC that the worker uses now.
func (k *link) aim(nic int, theirs []chunk.Region, ours *store.Memory) error {
	k.replyRKey, _ = keyOf(theirs, k.replyAddr, 1)
	for i := range k.dst {
		d := &k.dst[i]
		if key, ok := keyOf(theirs, d.addr, 1); d.rkey != 0 && ok {
			d.rkey = key
		} else {
			*d = destination{} // in memory that the worker has deregistered
		}
	}
	for i := range k.Unconfirmed {
		wr := k.At(i)
		if wr.Length == 0 {
			continue
		}
		key, ok := keyOf(theirs, wr.RAddr, uint64(wr.Length))
		if !ok {
			return fmt.Errorf("%d bytes at 0x%x", wr.Length, wr.RAddr)
		}
		wr.RKey, wr.LKey = key, ours.LKey(nic, wr.LAddr, uint64(wr.Length))
	}
	return nil
}

func keyOf(regions []chunk.Region, addr, bytes uint64) (uint32, bool) {
	for i := range regions {
		if r := &regions[i]; addr >= r.Addr && addr-r.Addr <= r.Length && bytes <= r.Length-(addr-r.Addr) {
			return r.RKey, true
		}
	}
	return 0, false
}

func (k *link) attached(endpoint []byte) chunk.AggregatorLane {
	return chunk.AggregatorLane{Endpoint: endpoint, SlotAddr: k.slots.Addr(), SlotRKey: k.slots.RKey(k.NIC())}
}
