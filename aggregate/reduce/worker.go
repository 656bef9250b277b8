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
	state      WorkerState
	slots      slots
	staging    int // staging buffers that it has
	staged     int // held messages whose payloads lie in staging buffers
	sends      int // free entries of its send queue
	requested  set // chunks that were requested from it and that it has not sent since
	hyperSum   []uint32
	epochs     []uint8  // stream: by chunk, the epoch of its last gradient
	stepEpoch  uint8    // stream: the epoch of its last commit
	ending     bool     // stream: the commit that is not answered
	standing   Standing // stream: of the step that it pushes
	pushed     set      // stream: chunks of that step, unless each is applied alone
	ended      bool     // stream: all gradients of that step were applied, added or dropped
	unanswered int      // requests sent since its last message
	silent     bool     // it has sent nothing since its last NACK
	stalled    bool     // by the tick under way
	need       int      // number of slots that it needs for the requests of the tick
	stats      WorkerStats
}

func (w *worker) canAnswer() bool { return w.sends > SendMargin }

// full reports whether the worker can send no more, except into the slot and the buffer that it reserves for requests.
func (w *worker) full() bool { return w.holdsAllBut(min(w.requested.len(), 1)) }

// stuck reports whether the worker cannot send even the requested chunks.
func (w *worker) stuck() bool { return w.holdsAllBut(0) }

func (w *worker) holdsAllBut(n int) bool {
	return w.slots.held >= len(w.slots.ring)-n || w.staged > 0 && w.staged >= w.staging-n
}

// canRequest reports whether the worker can be sent a request. With too many in flight it may be out of receives.
func (w *worker) canRequest(most int) bool { return w.unanswered < most && w.canAnswer() }

// slots is the order in which a worker fills its slots. Message k lies in the slot that was freed k-th, and the first messages lie
// in slots 0, 1, …. Both ends keep this order, so no slot number travels (cgo/worker/worker.h).
type slots struct {
	ring []uint16 // the free slots, oldest first, from head on; the rest are places of held slots
	head int
	held int
}

func newSlots(window int) slots {
	s := slots{ring: make([]uint16, window)}
	for i := range s.ring {
		s.ring[i] = uint16(i)
	}
	return s
}

func (s *slots) next() uint16 { return s.ring[s.head] }

func (s *slots) full() bool { return s.held == len(s.ring) }

func (s *slots) take() uint16 {
	if s.full() {
		panic("reduce: a slot taken from a full window")
	}
	slot := s.ring[s.head]
	s.head = (s.head + 1) % len(s.ring)
	s.held++
	return slot
}

func (s *slots) free(slot uint16) {
	if s.held == 0 {
		panic("reduce: a slot freed that is not held")
	}
	s.ring[(s.head+len(s.ring)-s.held)%len(s.ring)] = slot
	s.held--
}
