package reduce

// Limits of what the machine sends outside the windows.
const (
	// SendMargin is how many entries of a worker's send queue answers leave free, for NACKs, requests and the abort. The worker
	// posts as many receives beside its window.
	SendMargin = 32
	// requestsAtOnce bounds the requests sent to a worker from which nothing has come since: they must find posted receives.
	requestsAtOnce = SendMargin / 2
	// chunksPerStep bounds the chunks that one step of a commit updates, so that other jobs' chunks are not kept waiting.
	chunksPerStep = 32
)

// WorkerState is the state of a worker in the lane.
type WorkerState uint8

// The states of a worker.
const (
	Absent   WorkerState = iota // has not attached yet
	Attached                    // is a member
	Gone                        // has left, or is lost
)

// WorkerStats is what one worker did in the lane.
type WorkerStats struct {
	Chunks       uint64
	LastArrivals uint64 // chunks for which this worker was the last
	LatenessNS   uint64 // how long after a chunk's first arrival this worker's came, summed
}

type worker struct {
	state     WorkerState
	slots     slots
	staging   int // staging buffers that it has
	staged    int // messages held whose payloads lie in them
	sends     int // free entries of its send queue
	requested set // chunks it was asked for and has not sent since
	hyperSum  []uint32
	epochs    []uint8  // stream: by chunk, of its last gradient
	stepEpoch uint8    // stream: of its last commit
	ending    bool     // stream: that is not answered
	standing  Standing // stream: of the step that it pushes
	pushed    set      // stream: chunks of that step, unless each is applied alone
	ended     bool     // stream: all of that step is applied, added or dropped
	unheard   int      // requests sent since its last message
	owing     bool     // it has sent nothing since it was sent a NACK
	stalled   bool     // found so by the tick under way
	need      int      // slots that it needs for what the tick asked of it
	stats     WorkerStats
}

// canAnswer reports whether one more answer fits a worker's send queue.
func (w *worker) canAnswer() bool { return w.sends > SendMargin }

// release gives a message's slot back with the answer that is sent now.
func (w *worker) release(h *Held) {
	w.sends--
	w.slots.free(h.Slot)
	if h.Staged {
		w.staged--
	}
}

// full reports whether the worker can send no more, except into the slot and the buffer that it keeps while it has requests.
func (w *worker) full() bool { return w.holdsAllBut(min(w.requested.len(), 1)) }

// stuck reports whether it cannot even send what was requested.
func (w *worker) stuck() bool { return w.holdsAllBut(0) }

func (w *worker) holdsAllBut(n int) bool {
	return w.slots.held >= len(w.slots.ring)-n || w.staged > 0 && w.staged >= w.staging-n
}

// hears reports whether the worker can be sent a request: with so many on their way it may be out of receives.
func (w *worker) hears(most int) bool { return w.unheard < most && w.canAnswer() }
