package aggregate

import (
	"github.com/rackweave/rackweave/aggregate/reduce"
	"github.com/rackweave/rackweave/aggregate/session"
	"github.com/rackweave/rackweave/cgo/kernel"
	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/verbs"
)

// carryOut does what the machine's last event asked for.
func (s *share) carryOut() {
	actions := s.machine.Actions()
	for i := range actions {
		a := &actions[i]
		switch a.Kind {
		case reduce.Update, reduce.Sum, reduce.Accumulate, reduce.Broadcast, reduce.Deliver:
			s.finish(a)
		case reduce.HandUp:
			s.handUp(*a)
		case reduce.Pull:
			s.pull(a)
		case reduce.UpdateOne:
			s.updateOne(a)
		case reduce.Add:
			s.addOne(a)
		case reduce.Drop, reduce.Acknowledge:
			s.answer(a.Worker, &a.Message, a, payload{result: noResult})
		case reduce.Configure:
			if err := s.configure(a); err != nil {
				s.machine.Violate(int(a.Worker), "sent hyper-parameters for tensor %q that cannot be used: %w", s.store.tensors[a.Index].name,
					err)
				s.carryOut()
				return
			}
		case reduce.NACK:
			s.local.NACKs++
			s.put(s.links[a.Worker], chunk.Pack(chunk.OpNotice, chunk.NoticeNACK, a.Index), noResult)
		case reduce.Request:
			s.local.Requests++
			s.put(s.links[a.Worker], chunk.Pack(chunk.OpNotice, chunk.NoticeRequest, a.Index), noResult)
		case reduce.Abort:
			s.put(s.links[a.Worker], chunk.Pack(chunk.OpAbort, 0, a.Index), noResult)
			s.links[a.Worker].Confirm()
		case reduce.Fail:
			s.local.Dropped++
			s.fate.fail(int(a.Worker), a.Err)
		default:
			s.carryStep(a)
		}
	}
}

// carryStep does a part of the end of a step.
func (s *share) carryStep(a *reduce.Action) {
	switch a.Kind {
	case reduce.Announce:
		if err := s.pace.announce(int(a.Worker), &s.reader.record, s.now()); err != nil {
			s.fate.fail(int(a.Worker), err)
		}
	case reduce.Updated:
		s.pace.updated()
	case reduce.EndStep:
		if s.trace != nil {
			s.trace.put(TraceEvent{At: s.now(), Kind: TraceEnd, Op: chunk.OpCommit, Worker: a.Worker})
		}
		if err := s.pace.end(int(a.Worker), s.now()); err != nil {
			s.fate.fail(int(a.Worker), err)
		}
	case reduce.AnswerStep:
		s.answerStep(a)
	case reduce.Meet:
		if s.above != nil {
			s.tellNorms()
			return
		}
		s.meetLanes()
	case reduce.Decide:
		s.decision = decide(s.machine.CommitRecord(), a.Epoch, s.across.sum(a.Epoch&1))
	case reduce.Apply:
		s.updated += uint64(a.End-a.Index) * uint64(s.chunkBytes)
		for c := a.Index; c < a.End; c++ {
			if s.pace != nil {
				s.applySetTo(c)
			} else {
				s.applyTo(c)
			}
		}
	case reduce.Scale:
		s.updated += uint64(a.End-a.Index) * uint64(s.chunkBytes)
		for c := a.Index; c < a.End; c++ {
			if at := s.store.ordinal(c); at != nil {
				s.scale(&s.store, at, &s.decision)
			}
		}
	case reduce.Refresh:
		s.beginRefresh()
	case reduce.AnswerCommit:
		s.answerCommit(a)
	}
}

// applyTo makes a two-phase step's update to one chunk, if the lane has it.
func (s *share) applyTo(i uint32) {
	if at := s.store.ordinal(i); at != nil {
		s.apply(&s.store, at, &s.decision)
	}
}

// applySetTo makes the update of a set to one chunk.
func (s *share) applySetTo(index uint32) {
	at := int64(0)
	if s.trace != nil {
		at = s.now()
	}
	s.applySet(&s.store, &s.store.chunks[index], &s.update, len(s.links))
	if s.trace != nil {
		s.trace.put(TraceEvent{At: at, Took: uint32(s.now() - at), Kind: TraceFold, Op: chunk.OpCommit, Worker: -1, Chunk: index})
	}
}

// finish does the arithmetic of a complete chunk and answers every worker.
func (s *share) finish(a *reduce.Action) {
	c := s.chunk(a.Index)
	timed := s.timed() || s.trace != nil
	var t0, t1 int64
	if timed {
		t0 = s.now()
	}
	p := payload{addr: c.addr, bytes: s.store.wireBytes(c), result: noResult}
	if a.Result {
		p.result = s.results.take()
		p.addr = s.results.addr(p.result)
	}
	// The workers' own memory is the output where it is mapped: one pass reads every gradient and writes every result.
	outs, stream := s.place(a, c, p.bytes)
	if p.placed = outs != nil; !p.placed && a.Result {
		s.outs[0] = p.addr
		outs = s.outs[:1]
	}
	s.compute(a, c, outs, stream)
	if timed {
		t1 = s.now()
	}
	if a.Moves {
		s.depart(a, c)
	}
	s.answerAll(a, p)
	if a.Result {
		s.release(p.result)
	}
	if a.Kind == reduce.Deliver {
		s.delivered(a.Index)
	}
	if a.Moves {
		s.departed(a.Index, c)
	}
	if timed {
		s.sampled(a, t0, t1)
	}
	s.local.Chunks++
	s.local.observe(s.stamp - a.Since)
}

// compute does the arithmetic of a complete chunk.
func (s *share) compute(a *reduce.Action, c *storedChunk, outs []uint64, stream bool) {
	src := s.src[:len(s.links)]
	for rank := range src {
		src[rank] = s.machine.Sources(a, rank).Payload
	}
	switch a.Kind {
	case reduce.Update:
		in, kind := s.gathered(src, c)
		s.step(&s.store, c, in, kind, outs, stream)
		if s.quorum != nil && c.updates == 1 {
			s.listStandIn(a.Index)
		}
	case reduce.Sum:
		in, kind := s.gathered(src, c)
		s.sum(&s.store, c, in, kind, outs, stream)
	case reduce.Deliver:
		s.deliver(a, c, src, outs, stream)
	case reduce.Accumulate:
		s.accumulate(&s.store, c, src, uint8(s.store.tensors[c.tensor].wire), (s.machine.CommitEpoch()+1)&1)
	case reduce.Broadcast:
		s.broadcast(&s.store, c, src[0], outs, stream)
	}
}

// gathered is what the update of a complete chunk adds, and its type: the workers' gradients, or their racks' sums.
func (s *share) gathered(src []uint64, c *storedChunk) ([]uint64, uint8) {
	wire := s.store.tensors[c.tensor].wire
	if s.byRack == nil {
		return src, uint8(wire)
	}
	return s.byRack.add(&s.arithmetic, src, wire, c.elems), kernel.F32
}

// answerAll answers every worker of a complete chunk.
func (s *share) answerAll(a *reduce.Action, p payload) {
	for rank := range s.links {
		h := s.machine.Sources(a, rank)
		a.Op = h.Op
		if h.Op == chunk.OpBroadcast {
			a.Epoch = h.Epoch
		}
		if h.Op == chunk.OpPush {
			s.answer(int32(rank), h, a, payload{result: noResult})
		} else {
			s.answer(int32(rank), h, a, p)
		}
	}
}

// sampled takes note of how long a chunk took whose arithmetic was between t0 and t1, and whose answers came then.
func (s *share) sampled(a *reduce.Action, t0, t1 int64) {
	t2 := s.now()
	s.local.FoldNS += uint64(t1 - t0)
	s.local.PostNS += uint64(t2 - t1)
	s.local.Samples++
	if s.trace != nil {
		s.trace.put(TraceEvent{At: t0, Took: uint32(t1 - t0), Posted: uint32(t2 - t1), Kind: TraceFold, Op: a.Op, Epoch: a.Epoch,
			Worker: -1, Chunk: a.Index})
	}
}

// place finds where the answers of a complete chunk go in this process, and whether they should go past the cache; nil if not
// all of them can be reached, or none carries data.
func (s *share) place(a *reduce.Action, c *storedChunk, bytes int) (outs []uint64, stream bool) {
	if !s.maps || a.Kind == reduce.Accumulate {
		return nil, false
	}
	n := 0
	stream = true
	for rank, k := range s.links {
		h := s.machine.Sources(a, rank)
		if h.Op == chunk.OpPush {
			continue
		}
		if k.State() != session.Up || k.Unposted() > 0 {
			return nil, false
		}
		d := &k.dst[c.tensor]
		s.peers.qps[n] = k.QP()
		s.peers.raddrs[n], s.peers.rkeys[n] = k.target(h, d, c.offset, s.chunkBytes)
		stream = stream && d.streaming
		n++
	}
	if n == 0 || !verbs.MapAll(s.peers.qps[:n], s.peers.rkeys[:n], s.peers.raddrs[:n], uint32(bytes), s.outs[:n]) {
		return nil, false
	}
	return s.outs[:n], stream
}

// pull answers a worker with the chunk's parameters.
func (s *share) pull(a *reduce.Action) {
	c := s.chunk(a.Index)
	p := payload{addr: c.addr, bytes: s.store.wireBytes(c), result: noResult}
	if a.Result {
		p.result = s.results.take()
		p.addr = s.results.addr(p.result)
		s.parameters(&s.store, c, p.addr)
	}
	if s.pace != nil {
		s.links[a.Worker].stream.seen[a.Index] = c.updates
	}
	if s.trace != nil {
		s.trace.put(TraceEvent{At: s.now(), Kind: TracePull, Op: a.Op, Epoch: a.Epoch, Worker: a.Worker, Chunk: a.Index})
	}
	s.answer(a.Worker, &a.Message, a, p)
	if a.Result {
		s.release(p.result)
	}
}

// answerCommit tells every worker the norm and the scale.
func (s *share) answerCommit(a *reduce.Action) {
	p := payload{bytes: chunk.RecordBytes, result: s.results.take()}
	p.addr = s.results.addr(p.result)
	record := s.decision.answer()
	s.results.write(p.result, &record)
	for rank := range s.links {
		s.answer(int32(rank), s.machine.Sources(a, rank), a, p)
	}
	s.release(p.result)
}

// configure takes a tensor's destination and hyper-parameters from the control record under way.
func (s *share) configure(a *reduce.Action) error {
	r, t := &s.reader.record, &s.store.tensors[a.Index]
	d := &s.links[a.Worker].dst[a.Index]
	*d = destination{}
	if r.Flags&chunk.RecordHasDst != 0 {
		*d = destination{addr: r.DstAddr, rkey: r.DstRKey, streaming: r.Flags&chunk.RecordStreaming != 0}
	}
	if !a.New {
		return nil
	}
	h := s.store.rule.FromRecord(r.Values())
	if err := s.store.checkHyper(h); err != nil {
		return err
	}
	if s.pace != nil {
		s.links[a.Worker].stream.hypers[a.Index] = h
		return nil
	}
	t.hyper, t.scalarsFor = h, 0
	return nil
}
