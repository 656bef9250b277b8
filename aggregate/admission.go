package aggregate

import (
	"github.com/rackweave/rackweave/aggregate/store"
	"github.com/rackweave/rackweave/aggregate/uplink"
	"github.com/rackweave/rackweave/codec"
)

// Need is the memory, the connections and the regions that a job is about to take.
type Need struct {
	Bytes       int64
	Connections int // of each lane
	Regions     int
}

// Estimated heap bytes per connection, shard, chunk, worker of a chunk, and tensor.
const (
	connectionHeap = 96 << 10
	shardHeap      = 256 << 10
	chunkHeap      = 1400
	planHeap       = 128 // of chunkHeap, if the chunk is another aggregator's
	chunkOfWorker  = 8
	tensorHeap     = 512 // and its name
	mostBytes      = 1 << 56
)

// JobNeed returns the need of a job with all its workers connected.
func (e *Engine) JobNeed(c JobConfig) Need {
	workers, chunkBytes := c.Workers, c.ChunkBytes
	ofRacks := racksNeed(c.Place, e.cfg.Window, chunkBytes)
	n := Need{Connections: workers + ofRacks.Connections, Regions: len(e.lanes) * (1 + workers + ofRacks.Regions)}
	if len(c.Part.RackWorkers) > 1 {
		n.Regions += len(e.lanes)
	}
	for _, l := range e.lanes {
		if c.Mode == Stream {
			n.Bytes += store.CopyBuffers * int64(chunkBytes)
		}
		slots := int64(0)
		if !lazySlots(l) {
			slots = int64(e.cfg.Window * chunkBytes)
		}
		n.Bytes += int64(workers)*(slots+connectionHeap) +
			(store.NumBuffers+store.ScaledBuffers)*int64(chunkBytes) + shardHeap + ofRacks.Bytes + c.Part.sumBytes(chunkBytes)
	}
	return n
}

// racksNeed returns the need of one lane for the other racks: the buffers of their parts and of its own.
func racksNeed(p *Place, window, chunkBytes int) Need {
	if p == nil {
		return Need{}
	}
	others := p.Racks - 1
	return Need{
		Bytes: uplink.BuffersBytes(window, chunkBytes, p) +
			int64(others)*(uplink.SlotsBytes(window, chunkBytes)+connectionHeap),
		Connections: others, Regions: 1 + others,
	}
}

// MaxConns returns the number of workers that the engine can connect.
func (e *Engine) MaxConns() int {
	n := DefaultMaxConns
	for _, l := range e.lanes {
		n = min(n, l.Depths.MaxConns)
	}
	return n
}

// TensorsNeed returns the need of tensors of so many elements in a job.
func (e *Engine) TensorsNeed(c JobConfig, elems []uint64) Need {
	arrays, kept := c.arrays()[1], 0
	// Of every chunk, although another rack may keep its state.
	if c.Compress.Down.ID != codec.Raw {
		kept++
	}
	if c.Place != nil && c.Place.Coded() {
		kept++
	}
	n, planned, parameters := Need{}, int64(0), int64(0)
	perChunk := uint64(c.ChunkBytes / 4)
	for _, m := range elems {
		if parameters > mostBytes {
			break // more than any machine has
		}
		chunks := (m + perChunk - 1) / perChunk
		parameters += int64(m) * 4
		n.Bytes += int64(chunks) * (64*int64(arrays+kept) + chunkHeap + chunkOfWorker*int64(c.Workers))
		n.Bytes += tensorHeap * int64(min(uint64(len(e.lanes)), chunks)+1)
		planned += tensorHeap + int64(chunks)*planHeap
	}
	if p := c.Place; p != nil && p.Buddies && arrays > 0 {
		n.Bytes += p.StateBytes(parameters, arrays, len(e.lanes), c.ChunkBytes)
	} else {
		n.Bytes += parameters * int64(arrays)
	}
	n.Bytes += parameters * int64(kept)
	if c.Part.Several() {
		// The plan is of all parts. Lanes differ by at most one chunk.
		n.Bytes = planned + (n.Bytes-planned)/int64(c.Part.Of) + int64(len(e.lanes)*(arrays+kept))*2*int64(c.ChunkBytes)
	}
	if arrays+kept > 0 {
		n.Regions = len(e.lanes)
	}
	return n
}
