package aggregate

import (
	"github.com/rackweave/rackweave/aggregate/store"
	"github.com/rackweave/rackweave/aggregate/uplink"
	"github.com/rackweave/rackweave/chunk"
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

// TensorsNeed returns the need of tensors in a job.
func (e *Engine) TensorsNeed(c JobConfig, tensors []chunk.Tensor) Need {
	arrays, kept := c.arrays()[1], 0
	// Of every chunk, although another rack may keep its state.
	if c.Compress.Down.ID != codec.Raw {
		kept++
	}
	if c.Place != nil && c.Place.Coded() {
		kept++
	}
	n, planned, parameters, uneven := Need{}, int64(0), int64(0), int64(0)
	for _, t := range tensors {
		if parameters > mostBytes {
			break // more than any machine has
		}
		perChunk := max(t.PerChunk(c.ChunkBytes), 1)
		chunks := (t.Elems + perChunk - 1) / perChunk
		parameters += int64(t.Elems) * 4
		coded := int64(kept)
		if t.Width > 0 {
			coded = 0
		}
		own := int64(chunks)*(64*(int64(arrays)+coded)+chunkHeap+chunkOfWorker*int64(c.Workers)) + int64(t.Elems)*4*coded
		n.Bytes += own
		if t.Touches != nil {
			uneven += own + int64(t.Elems)*4*int64(arrays)
		}
		n.Bytes += tensorHeap * int64(min(uint64(len(e.lanes)), chunks)+1)
		planned += tensorHeap + int64(chunks)*planHeap
	}
	if p := c.Place; p != nil && p.Buddies && arrays > 0 {
		n.Bytes += p.StateBytes(parameters, arrays, len(e.lanes), c.ChunkBytes)
	} else {
		n.Bytes += parameters * int64(arrays)
	}
	if c.Part.Several() {
		// The plan is of all parts. Lanes differ by at most one chunk, but have up to twice their share of chunks placed by touches.
		n.Bytes = planned + (n.Bytes-planned+uneven)/int64(c.Part.Of) + int64(len(e.lanes)*(arrays+kept))*2*int64(c.ChunkBytes)
	}
	if arrays+kept > 0 {
		n.Regions = len(e.lanes)
	}
	return n
}
