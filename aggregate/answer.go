package aggregate

import (
	"github.com/rackweave/rackweave/aggregate/reduce"
	"github.com/rackweave/rackweave/aggregate/session"
	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/verbs"
)

// payload is what an answer carries: bytes at addr, or nothing but the immediate. result is the result buffer that addr lies in,
// or noResult: then addr lies in the chunk's parameters. placed: the bytes are in the worker's memory already.
type payload struct {
	addr   uint64
	bytes  int
	result int32
	placed bool
}

// answer posts the answer to a message.
func (s *share) answer(rank int32, h *reduce.Held, a *reduce.Action, p payload) {
	k := s.links[rank]
	if k.State() == session.Closed {
		return
	}
	hold := p.result
	if k.Inline() {
		hold = noResult // the transport has read it when the post returns
	}
	wr := s.put(k, chunk.Pack(a.Op, a.Epoch, a.Index), hold)
	if p.bytes > 0 {
		wr.Length = uint32(p.bytes)
		var d *destination
		var offset uint64
		if a.Kind != reduce.AnswerCommit && a.Kind != reduce.AnswerStep {
			c := s.chunk(a.Index)
			d, offset = &k.dst[c.tensor], c.offset
		}
		wr.RAddr, wr.RKey = k.target(h, d, offset, s.chunkBytes)
		switch {
		case p.placed:
			wr.Flags |= verbs.SendPlaced
		default:
			s.source(k, wr, a, p)
			if d != nil && d.streaming {
				wr.Flags |= verbs.SendStreaming
			}
		}
	}
	s.local.Answers++
	s.local.SentBytes += uint64(p.bytes)
	k.counters.SentBytes += uint64(p.bytes)
	if k.Inline() {
		s.post(k)
	}
}

// source fills in where an answer's bytes lie.
func (s *share) source(k *link, wr *verbs.SendWR, a *reduce.Action, p payload) {
	wr.LAddr = p.addr
	switch nic := max(k.NIC(), 0); { // without a queue pair the keys come when it resumes
	case k.Inline():
		wr.Flags |= verbs.SendInline
	case p.result != noResult:
		wr.LKey = s.results.region.mrs[nic].LKey
	default:
		wr.LKey = s.lkey(nic, a.Index)
	}
}
