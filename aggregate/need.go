package aggregate

// Need is what a job is about to take from the machine: memory, and connections and regions of its provider.
type Need struct {
	Bytes       int64
	Connections int // of each lane
	Regions     int
}

// What the heap holds beside the arenas, roughly: of a connection its queues and windows, of a lane's share its machine, of a chunk
// its entries in plan, store and machine, and one for each worker.
const (
	connectionHeap = 96 << 10
	shareHeap      = 256 << 10
	chunkHeap      = 1400
	planHeap       = 128 // of chunkHeap, where the chunk is another aggregator's
	chunkOfWorker  = 8
	tensorHeap     = 512 // and its name
	mostBytes      = 1 << 56
)

// JobNeed returns what a job takes whose workers all connect.
func (e *Engine) JobNeed(c JobConfig) Need {
	workers, chunkBytes := c.Workers, c.ChunkBytes
	ofRacks := c.Above.need(e.cfg.Window, chunkBytes)
	n := Need{Connections: workers + ofRacks.Connections, Regions: len(e.lanes) * (1 + workers + ofRacks.Regions)}
	if len(c.Part.Racks) > 1 {
		n.Regions += len(e.lanes)
	}
	for _, l := range e.lanes {
		slots := int64(0)
		if !l.lazySlots() {
			slots = int64(e.cfg.Window * chunkBytes)
		}
		n.Bytes += int64(workers)*(slots+connectionHeap) + int64(n.Connections)*int64(l.attr.QPBytes) +
			(resultBuffers+scratchBuffers)*int64(chunkBytes) + shareHeap + ofRacks.Bytes + c.Part.need(chunkBytes)
	}
	return n
}

// need is what one lane takes for the other racks: their sums and its own.
func (a *Above) need(window, chunkBytes int) Need {
	if a == nil {
		return Need{}
	}
	others := a.Racks - 1
	return Need{
		Bytes:       sumsBytes(window, chunkBytes, a.Racks, a.Buddies) + int64(others)*(peerBytes(window, chunkBytes)+connectionHeap),
		Connections: others, Regions: 1 + others,
	}
}

// MaxConns returns how many workers the engine can connect.
func (e *Engine) MaxConns() int {
	n := DefaultMaxConns
	for _, l := range e.lanes {
		n = min(n, l.depths.MaxConns)
	}
	return n
}

// TensorsNeed returns what tensors of so many elements take in a job.
func (e *Engine) TensorsNeed(c JobConfig, elems []uint64) Need {
	most := store{above: c.Above, mode: c.Mode, rule: c.Rule, sets: true, states: c.Rule.States(c.Hyper), outer: newOuter(&c)}
	arrays := most.arrays(true)
	n, planned, parameters := Need{}, int64(0), int64(0)
	perChunk := uint64(c.ChunkBytes / 4)
	for _, m := range elems {
		if parameters > mostBytes {
			break // no machine has as much
		}
		chunks := (m + perChunk - 1) / perChunk
		parameters += int64(m) * 4
		n.Bytes += int64(chunks) * (64*int64(arrays) + chunkHeap + chunkOfWorker*int64(c.Workers))
		n.Bytes += tensorHeap * int64(min(uint64(len(e.lanes)), chunks)+1)
		planned += tensorHeap + int64(chunks)*planHeap
	}
	if a := c.Above; a != nil && a.Buddies && arrays > 0 {
		n.Bytes += a.needed(parameters, arrays, len(e.lanes), c.ChunkBytes)
	} else {
		n.Bytes += parameters * int64(arrays)
	}
	if c.Part.Several() {
		// The plan is of all parts. Lanes differ by a chunk at most.
		n.Bytes = planned + (n.Bytes-planned)/int64(c.Part.Of) + int64(len(e.lanes)*arrays)*2*int64(c.ChunkBytes)
	}
	if arrays > 0 {
		n.Regions = len(e.lanes)
	}
	return n
}
