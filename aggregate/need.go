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
	chunkOfWorker  = 8
	tensorHeap     = 512 // and its name
	mostBytes      = 1 << 56
)

// JobNeed returns what a job takes whose workers all connect.
func (e *Engine) JobNeed(workers, chunkBytes int) Need {
	n := Need{Connections: workers, Regions: len(e.lanes) * (1 + workers)}
	for _, l := range e.lanes {
		slots := int64(0)
		if !l.lazySlots() {
			slots = int64(e.cfg.Window * chunkBytes)
		}
		n.Bytes += int64(workers)*(slots+connectionHeap) + (resultBuffers+scratchBuffers)*int64(chunkBytes) + shareHeap
	}
	return n
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
	arrays := (&store{mode: c.Mode, rule: c.Rule, sets: true, states: c.Rule.States(c.Hyper)}).arrays(true) // at most
	n := Need{}
	perChunk := uint64(c.ChunkBytes / 4)
	for _, m := range elems {
		if n.Bytes > mostBytes {
			break // no machine has as much
		}
		chunks := (m + perChunk - 1) / perChunk
		n.Bytes += int64(m)*4*int64(arrays) + int64(chunks)*(64*int64(arrays)+chunkHeap+chunkOfWorker*int64(c.Workers))
		n.Bytes += tensorHeap * int64(min(uint64(len(e.lanes)), chunks)+1)
	}
	if arrays > 0 {
		n.Regions = len(e.lanes)
	}
	return n
}
