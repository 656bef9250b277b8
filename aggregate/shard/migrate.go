package shard

import (
	"sync"
	"sync/atomic"

	"github.com/rackweave/rackweave/aggregate/reduce"
	"github.com/rackweave/rackweave/aggregate/session"
	"github.com/rackweave/rackweave/aggregate/store"
	"github.com/rackweave/rackweave/chunk"
)

// Migration moves chunks between a job's lanes while the job runs.
type Migration struct {
	s        *Shard
	tensors  map[int]uint32 // by number in the plan: the tensor's number in the lane
	arrivals arrivals
}

// Arrival is a chunk that another lane has handed over.
type Arrival struct {
	store.Chunk
	Index    uint32 // in the new lane
	Bytes    int64  // on the wire
	epoch    uint8
	tensor   store.Tensor
	hyperSum uint32 // of the tensor
}

// arrivals holds the chunks that a lane has not adopted yet. The lane adopts them before each message, because a message for such a
// chunk is sent after the chunk was handed over.
type arrivals struct {
	some atomic.Bool
	mu   sync.Mutex
	all  []Arrival
}

// Arrive hands a chunk over to the shard. Any goroutine may call it.
func (m *Migration) Arrive(a Arrival) {
	w := &m.arrivals
	w.mu.Lock()
	defer w.mu.Unlock()
	w.all = append(w.all, a)
	w.some.Store(true)
}

func (w *arrivals) take() []Arrival {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := w.all
	w.all = nil
	w.some.Store(false)
	return all
}

// Chunk returns a chunk of the lane by its index, or nil if the lane never had it.
func (m *Migration) Chunk(index uint32) *store.Chunk {
	if st := m.s.Store; int(index) < len(st.Chunks) {
		return &st.Chunks[index]
	}
	if at, ok := m.s.Machine.Place(index); ok {
		return m.s.Store.Moved(at)
	}
	return nil
}

// depart hands a chunk over to the lane that it moves to, and notifies its workers ahead of their answers.
func (m *Migration) depart(a *reduce.Action, c *store.Chunk) {
	s := m.s
	s.Job.HandOver(a.Index, s.Lane.Index, int(a.To), Arrival{
		Chunk: *c, Bytes: int64(s.Store.WireBytes(c)), epoch: a.Epoch, tensor: s.Store.Tensors[c.Tensor],
		hyperSum: s.Machine.HyperSum(a.Index),
	})
	for _, k := range s.Workers.links {
		if k.State != session.Closed {
			s.Workers.put(k, chunk.Pack(chunk.OpNotice, chunk.NoticeMove+a.To, a.Index), store.NoBuffer)
		}
	}
	s.Lane.Count.Moves++
}

func (m *Migration) departed(index uint32, c *store.Chunk) {
	c.Away = true
	if index&chunk.MovedBit != 0 {
		m.s.Machine.Forget(index)
	}
}

// Adopt adds the chunks that other lanes have handed over.
func (m *Migration) Adopt() {
	st, machine := m.s.Store, m.s.Machine
	for _, a := range m.arrivals.take() {
		c := &a.Chunk
		c.Tensor = m.tensorOf(&a)
		machine.Adopt(a.Index, reduce.Chunk{Tensor: c.Tensor, Bytes: uint32(st.WireBytes(c))}, a.epoch)
		if int(a.Index) < len(st.Chunks) {
			st.Chunks[a.Index] = *c
			continue
		}
		at, _ := machine.Place(a.Index)
		st.PutMoved(at, *c)
	}
}

// tensorOf returns the number of an arrival's tensor in the lane. If the lane does not have the tensor, tensorOf adds it.
func (m *Migration) tensorOf(a *Arrival) uint32 {
	st := m.s.Store
	for i := len(m.tensors); i < len(st.Tensors); i++ {
		m.tensors[st.Tensors[i].Number] = uint32(i)
	}
	if t, ok := m.tensors[a.tensor.Number]; ok {
		return t
	}
	st.Tensors = append(st.Tensors, a.tensor)
	m.s.tries = append(m.s.tries, make([]TensorGauge, len(st.Candidates))...)
	for _, k := range m.s.Workers.links {
		if k != nil {
			k.dst = append(k.dst, destination{})
			k.gauge.fit(st)
		}
	}
	return m.s.Machine.AddTensor(chunk.MovedBit|uint32(a.tensor.Number),
		reduce.Tensor{Name: a.tensor.Name, Direct: st.DirectFor(a.tensor.Wire)}, a.hyperSum)
}
