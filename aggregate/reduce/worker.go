package reduce

// These constants limit the messages that the machine sends outside the windows.
const (
	// SendMargin is the number of entries of a worker's send queue that answers leave free, for NACKs, requests and the abort. The
	// worker posts as many receives beside its window.
	SendMargin = 32
	// requestsAtOnce bounds the requests sent to a worker since its last message, because they must find posted receives.
	requestsAtOnce = SendMargin / 2
	// chunksPerStep bounds the chunks that one step of a commit updates, so that other jobs' chunks do not wait.
	chunksPerStep = 32
)

// WorkerState is the state of a worker in the lane.
type WorkerState uint8

const (
	Absent   WorkerState = iota // has not attached yet
	Attached                    // is a member
	Gone                        // has left, or is lost
)

// Standing is the treatment of the gradients of a worker's step.
type Standing uint8

const (
	Alone     Standing = iota // each is applied by itself, when it arrives
	Undecided                 // they wait
	Member                    // they are in a set
	LeftOut                   // they are dropped
)

// WorkerStats holds the counters of one worker in the lane.
type WorkerStats struct {
	Chunks       uint64
	LastArrivals uint64 // chunks whose last gradient was this worker's
	LatenessNS   uint64 // sum over chunks of the time from the first gradient's arrival to this worker's
}

type worker struct {
	state WorkerState
	// slots holds the free slots, in the order in which they became free. The worker fills them in this order, from 0 at first, so
	// message k lies in the slot that was freed k-th, and no slot number travels (cgo/worker/worker.h).
	slots      Queue[uint16]
	staging    int           // staging buffers that it has
	staged     int           // held messages whose payloads lie in staging buffers
	kept       int           // slots and staging buffers that it keeps for the first messages of streams of rows
	sends      int           // free entries of its send queue
	buffers    int           // result buffers that messages on their way to it hold
	replies    Queue[Action] // answers to messages that belong to no fold, which wait for room, oldest first
	requested  set           // chunks that were requested from it and that it has not sent since
	hyperSum   []uint32
	epochs     []uint8  // stream: by chunk, the epoch of its last gradient
	stepEpoch  uint8    // stream: the epoch of its last commit
	ending     bool     // stream: the commit that is not answered
	standing   Standing // stream: of the step that it pushes
	pushed     set      // stream: chunks of that step, unless each is applied alone
	unanswered int      // requests sent since its last message
	silent     bool     // it has sent nothing since its last NACK
	stalled    bool     // by the tick under way
	need       int      // number of slots that it needs for the requests of the tick
	stats      WorkerStats
}

// held returns the number of slots that messages hold.
func (w *worker) held() int { return len(w.slots.ring) - w.slots.Len() }

// release frees the slot of a message that is answered now.
func (w *worker) release(h *Held) {
	if w.held() == 0 {
		panic("reduce: a slot freed that is not held")
	}
	w.sends--
	w.slots.Put(h.Slot)
	if h.Staged {
		w.staged--
	}
}

func (w *worker) canAnswer() bool { return w.sends > SendMargin }

// full reports whether the worker can send no more, except into the slot and the buffer that it reserves for requests.
func (w *worker) full() bool { return w.holdsAllBut(min(w.requested.len(), 1)) }

// stuck reports whether the worker cannot send even the requested chunks.
func (w *worker) stuck() bool { return w.holdsAllBut(0) }

func (w *worker) holdsAllBut(n int) bool {
	n += w.kept
	return w.slots.Len() <= n || w.staged > 0 && w.staged >= w.staging-n
}

// canRequest reports whether the worker can be sent a request. With too many in flight it may be out of receives.
func (w *worker) canRequest(most int) bool { return w.unanswered < most && w.canAnswer() }

// set is a set of small numbers that knows its size.
type set struct {
	bits []uint64
	n    int
}

func (s *set) grow(size int) {
	s.bits = append(s.bits, make([]uint64, max(0, (size+63)/64-len(s.bits)))...)
}

func (s *set) len() int { return s.n }

func (s *set) has(i int) bool { return s.bits[i/64]>>(i%64)&1 != 0 }

func (s *set) add(i int) bool {
	if s.has(i) {
		return false
	}
	s.bits[i/64] |= 1 << (i % 64)
	s.n++
	return true
}

func (s *set) clear() {
	clear(s.bits)
	s.n = 0
}

func (s *set) remove(i int) {
	if s.has(i) {
		s.bits[i/64] &^= 1 << (i % 64)
		s.n--
	}
}
