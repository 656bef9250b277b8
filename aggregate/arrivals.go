package aggregate

import (
	"sync"
	"sync/atomic"
)

// arrival is a chunk that another lane has handed over.
type arrival struct {
	guest
	index    uint32
	epoch    uint8
	tensor   storedTensor
	hyperSum uint32 // of the tensor
}

// arrivals are the chunks that a lane has not yet taken in. It looks before each message, and any about such a chunk is sent after
// the chunk was handed over.
type arrivals struct {
	some atomic.Bool
	mu   sync.Mutex
	all  []arrival
}

func (w *arrivals) put(a arrival) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.all = append(w.all, a)
	w.some.Store(true)
}

func (w *arrivals) take() []arrival {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := w.all
	w.all = nil
	w.some.Store(false)
	return all
}
