package reduce

// slots is the order in which a worker fills its slots: message k lies in the slot that was freed k-th, and the first messages
// lie in slots 0, 1, …. Both ends keep this order, so no slot number travels (cgo/worker/worker.h).
type slots struct {
	ring []uint16 // the free slots, oldest first, from head on; the rest are places of held ones
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

// next returns the slot of the next message.
func (s *slots) next() uint16 { return s.ring[s.head] }

func (s *slots) full() bool { return s.held == len(s.ring) }

// take returns the slot that the message just received lies in.
func (s *slots) take() uint16 {
	if s.full() {
		panic("reduce: a slot taken from a full window")
	}
	slot := s.ring[s.head]
	s.head = (s.head + 1) % len(s.ring)
	s.held++
	return slot
}

// free puts a held slot behind the free ones.
func (s *slots) free(slot uint16) {
	if s.held == 0 {
		panic("reduce: a slot freed that is not held")
	}
	s.ring[(s.head+len(s.ring)-s.held)%len(s.ring)] = slot
	s.held--
}
