package aggregate

import (
	"sort"

	"github.com/rackweave/rackweave/aggregate/reduce"
	"github.com/rackweave/rackweave/aggregate/session"
	"github.com/rackweave/rackweave/chunk"
)

// chunk returns a chunk of the lane by its index.
func (s *share) chunk(index uint32) *storedChunk {
	if int(index) < len(s.store.chunks) {
		return &s.store.chunks[index]
	}
	return &s.store.guests[s.machine.Guest(index)].storedChunk
}

// lkey is a NIC's key of the region that a chunk's parameters lie in.
func (s *share) lkey(nic int, index uint32) uint32 {
	if int(index) < len(s.store.chunks) {
		return s.store.lkeys[nic][index]
	}
	return s.store.guests[s.machine.Guest(index)].lkeys[nic]
}

// depart hands a chunk over to the lane that it moves to, and tells its workers, ahead of their answers.
func (s *share) depart(a *reduce.Action, c *storedChunk) {
	out := arrival{
		guest: guest{storedChunk: *c}, epoch: a.Epoch, tensor: s.store.tensors[c.tensor], hyperSum: s.machine.HyperSum(a.Index),
	}
	for nic := range s.store.lkeys {
		out.lkeys = append(out.lkeys, s.lkey(nic, a.Index))
	}
	s.handOver(a.Index, int(a.To), out)
	for _, k := range s.links {
		if k.State() != session.Closed {
			s.put(k, chunk.Pack(chunk.OpNotice, chunk.NoticeMove+a.To, a.Index), noResult)
		}
	}
	s.local.Moves++
}

// departed forgets a chunk whose answers are under way.
func (s *share) departed(index uint32, c *storedChunk) {
	c.away = true
	if index&chunk.GuestBit != 0 {
		s.machine.Forget(index)
	}
}

// adopt takes in what other lanes have handed over.
func (s *share) adopt() {
	for _, a := range s.arrivals.take() {
		c := &a.storedChunk
		c.tensor = s.tensorOf(&a)
		s.machine.Adopt(a.index, reduce.Chunk{Tensor: c.tensor, Bytes: uint32(s.store.wireBytes(c))}, a.epoch)
		if int(a.index) < len(s.store.chunks) {
			s.store.chunks[a.index] = *c
			continue
		}
		at := s.machine.Guest(a.index)
		if at == len(s.store.guests) {
			s.store.guests = append(s.store.guests, guest{})
		}
		s.store.guests[at] = a.guest
	}
}

// tensorOf returns the number that the tensor of a chunk has in the lane, which gets to know it if it must.
func (s *share) tensorOf(a *arrival) uint32 {
	m, number := s.machine, a.tensor.number
	home := sort.Search(m.Homes(), func(i int) bool {
		t, _ := m.Tensor(uint32(i))
		return s.store.tensors[t].number >= number
	})
	if t, ok := m.Tensor(uint32(home)); ok && s.store.tensors[t].number == number {
		return t
	}
	index := chunk.GuestBit | uint32(number)
	if t, ok := m.Tensor(index); ok {
		return t
	}
	s.store.tensors = append(s.store.tensors, a.tensor)
	for _, k := range s.links {
		if k != nil {
			k.dst = append(k.dst, destination{})
		}
	}
	return m.AddTensor(index, reduce.Tensor{Name: a.tensor.name, Direct: s.store.direct(a.tensor.wire)}, a.hyperSum)
}
