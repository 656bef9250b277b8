package shard

import (
	"math"

	"github.com/rackweave/rackweave/aggregate/reduce"
	"github.com/rackweave/rackweave/aggregate/session"
	"github.com/rackweave/rackweave/aggregate/store"
	"github.com/rackweave/rackweave/cgo/kernel"
	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/verbs"
)

// CarryOut does what the machine has decided in the last event.
func (s *Shard) CarryOut() {
	actions := s.Machine.Actions
	for i := range actions {
		a := &actions[i]
		switch a.Kind {
		case reduce.Update, reduce.Sum, reduce.Accumulate, reduce.Broadcast, reduce.Deliver:
			s.finish(a)
		case reduce.HandUp:
			s.Uplink.HandUp(a)
		case reduce.Pull:
			s.pull(a)
		case reduce.MergeRows:
			s.rows.merge(a)
		case reduce.MergeOne:
			s.rows.mergeOne(a)
		case reduce.AnswerRows:
			s.rows.answer(a)
		case reduce.PullRows:
			s.rows.pull(a)
		case reduce.UpdateOne:
			s.stream.updateOne(a)
		case reduce.Add:
			s.stream.addOne(a)
		case reduce.Drop, reduce.Acknowledge:
			s.answer(a.Worker, &a.Message, a, payload{buffer: store.NoBuffer})
		case reduce.Configure:
			if err := s.configure(a); err != nil {
				s.Machine.Violate(int(a.Worker), "sent hyper-parameters for tensor %q that cannot be used: %w", s.Store.Tensors[a.Index].Name,
					err)
				s.CarryOut()
				return
			}
		case reduce.NACK:
			s.Lane.Count.NACKs++
			s.Workers.notify(a, chunk.NoticeNACK)
		case reduce.Request:
			s.Lane.Count.Requests++
			s.Workers.notify(a, chunk.NoticeRequest)
		case reduce.Abort:
			k := s.Workers.links[a.Worker]
			s.Workers.put(k, chunk.Pack(chunk.OpAbort, 0, a.Index), store.NoBuffer)
			k.Confirm()
		case reduce.Fail:
			s.Lane.Count.Dropped++
			s.Job.Fail.Fail(int(a.Worker), a.Err)
		case reduce.Announce:
			s.blame(a, s.Job.Gate.Announce(int(a.Worker), &s.Scratch.reader.record, s.Lane.Now()))
		case reduce.Updated:
			s.Job.Gate.Updated()
		case reduce.EndStep:
			s.trace.put(TraceEvent{At: s.traceTime(), Kind: TraceEnd, Op: chunk.OpCommit, Worker: a.Worker})
			s.blame(a, s.Job.Gate.End(int(a.Worker), s.Lane.Now()))
		case reduce.AnswerStep:
			s.stream.answerStep(a)
		case reduce.ReachBarrier:
			s.target = math.MaxInt64 // until the racks have exchanged their norms
			s.Uplink.Exchange()
		case reduce.Decide:
			s.commit = store.NewCommit(s.Machine.CommitRecord(), a.Epoch, s.Job.Barrier.sum(a.Epoch&1))
		case reduce.Apply, reduce.Scale:
			s.apply(a)
		case reduce.Refresh:
			s.Uplink.Refresh(s.commit.Skip)
		case reduce.AnswerCommit:
			s.answerCommit(a)
		}
	}
}

func (w *Workers) notify(a *reduce.Action, what uint8) {
	w.put(w.links[a.Worker], chunk.Pack(chunk.OpNotice, what, a.Index), store.NoBuffer)
}

func (s *Shard) blame(a *reduce.Action, err error) {
	if err != nil {
		s.Job.Fail.Fail(int(a.Worker), err)
	}
}

func (s *Shard) apply(a *reduce.Action) {
	s.Lane.Count.UpdatedBytes += uint64(a.End-a.Index) * uint64(s.Job.ChunkBytes)
	for i := a.Index; i < a.End; i++ {
		c := &s.Store.Chunks[i]
		t := s.rows.sparse(i)
		switch {
		case t != nil:
			s.Scratch.ApplyRows(s.Store, t, i-t.Rows.First, &s.commit)
		case s.stream != nil:
			s.stream.applySet(c, i)
		case a.Kind == reduce.Scale:
			s.Scratch.Rescale(s.Store, c, &s.commit)
		default:
			s.Scratch.Apply(s.Store, c, &s.commit)
		}
	}
}

func (s *Shard) finish(a *reduce.Action) {
	c := &s.Store.Chunks[a.Index]
	timed := s.Scratch.timed() || s.trace != nil
	var t0, t1 int64
	if timed {
		t0 = s.Lane.Now()
	}
	p := s.answerOf(a, c)
	s.makeAnswer(a, c, &p)
	if timed {
		t1 = s.Lane.Now()
	}
	s.answerAll(a, p)
	s.release(p.buffer)
	if timed {
		s.recordSample(a, c, p.bytes, t0, t1)
	}
	count := &s.Lane.Count
	count.Chunks++
	count.Observe(s.Lane.Stamp - a.Since)
}

// makeAnswer computes the result of a complete chunk, and writes the answer.
func (s *Shard) makeAnswer(a *reduce.Action, c *store.Chunk, p *payload) {
	if c.Kept != 0 && a.Buffered {
		s.encodeAnswer(a, c, p)
		return
	}
	// Where the workers' own memory is mapped it is the output: one pass reads every gradient and writes every result.
	outs, pastCache := s.mapResults(a, c, p.bytes)
	if p.placed = outs != nil; !p.placed && a.Buffered {
		s.Scratch.outs[0] = p.addr
		outs = s.Scratch.outs[:1]
	}
	s.compute(a, c, outs, pastCache)
}

// encodeAnswer computes the result of a complete chunk, and writes the compressed answer that all of its workers get. In mode
// eager the answer is a change of the reference. If some have not got the last answer, all get the reference itself. All racks'
// references are equal, so what they keep changes with each result, even if no worker here asks for an answer.
func (s *Shard) encodeAnswer(a *reduce.Action, c *store.Chunk, p *payload) {
	k, answered, broadcast := &s.Scratch.Arithmetic, 0, false
	for rank := range s.Workers.links {
		op := s.Machine.MessageOf(a, rank).Op
		broadcast = op == chunk.OpBroadcast
		if op != chunk.OpPush {
			answered++
		}
	}
	eager, apart := c.Addr != 0, answered < len(s.Workers.links)
	outs, idle := s.Scratch.outs[:1], answered == 0 && s.Store.NextOwner == nil
	if broadcast || idle || eager && c.Anew {
		outs[0] = p.addr
		s.compute(a, c, outs, false)
		if eager && !idle {
			k.Copy(c, c.Kept, p.addr)
			c.Anew, c.Apart = false, apart
		}
		return
	}
	values := c.Addr
	if a.Kind == reduce.Update {
		outs = nil
	} else {
		values = s.buffers.Addr(store.NumBuffers)
		outs[0] = values
	}
	s.compute(a, c, outs, false)
	if n := k.Encode(s.Store, c, values, p.addr); c.Apart {
		k.Copy(c, p.addr, c.Kept)
	} else {
		p.bytes = n
	}
	c.Apart = eager && apart
}

// Gradients returns the payloads of an action's gradients, in rank order. They are valid until the next call.
func (s *Shard) Gradients(a *reduce.Action) kernel.Sources {
	src := s.Scratch.sources(len(s.Workers.links))
	for rank := range src.Addr {
		src.set(rank, &s.Machine.MessageOf(a, rank).Where)
	}
	src.Type = uint8(s.Store.Tensors[s.Store.Chunks[a.Index].Tensor].Wire)
	return src.listed()
}

// sources are a list of gradients in the lane's scratch memory.
type sources struct {
	kernel.Sources
	coded bool // some have a form
}

func (s *sources) set(i int, at *reduce.Where) {
	s.Addr[i], s.Form[i] = at.Payload, at.Form
	s.coded = s.coded || at.Form != 0
}

func (s *sources) listed() kernel.Sources {
	if !s.coded {
		s.Form = nil
	}
	return s.Sources
}

func (s *Shard) compute(a *reduce.Action, c *store.Chunk, outs []uint64, pastCache bool) {
	k := &s.Scratch.Arithmetic
	switch a.Kind {
	case reduce.Update:
		k.Step(s.Store, c, s.summands(a, c), outs, pastCache)
	case reduce.Sum:
		k.Sum(s.Store, c, s.summands(a, c), outs, pastCache)
	case reduce.Deliver:
		s.Uplink.Deliver(a.Index, s.Machine.MessageOf(a, 0).Op == chunk.OpBroadcast, outs, pastCache)
	case reduce.Accumulate:
		k.Accumulate(s.Store, c, s.Gradients(a), (s.Machine.CommitEpoch()+1)&1)
	case reduce.Broadcast:
		k.Broadcast(s.Store, c, s.Machine.MessageOf(a, 0).Payload, outs, pastCache)
	}
}

// summands returns the inputs of a complete chunk's update: the workers' gradients, or their racks' sums.
func (s *Shard) summands(a *reduce.Action, c *store.Chunk) kernel.Sources {
	src := s.Gradients(a)
	if s.RackSum == nil {
		return src
	}
	return s.RackSum.Add(&s.Scratch.Arithmetic, src, c.Elems)
}

func (s *Shard) answerAll(a *reduce.Action, p payload) {
	for rank := range s.Workers.links {
		h := s.Machine.MessageOf(a, rank)
		a.Op = h.Op
		if h.Op == chunk.OpBroadcast {
			a.Epoch = h.Epoch
		}
		if h.Op == chunk.OpPush {
			s.answer(int32(rank), h, a, payload{buffer: store.NoBuffer})
		} else {
			s.answer(int32(rank), h, a, p)
		}
	}
}

// recordSample counts a timed chunk: arithmetic from t0 to t1, answers from t1 to now.
func (s *Shard) recordSample(a *reduce.Action, c *store.Chunk, bytes int, t0, t1 int64) {
	t2, count := s.Lane.Now(), &s.Lane.Count
	count.FoldNS += uint64(t1 - t0)
	count.PostNS += uint64(t2 - t1)
	count.Samples++
	e := TraceEvent{At: t0, Took: uint32(t1 - t0), Posted: uint32(t2 - t1), Kind: TraceFold, Op: a.Op, Epoch: a.Epoch, Worker: -1,
		Chunk: a.Index, Bytes: uint32(bytes)}
	if c.Kept != 0 && bytes < s.Store.WireBytes(c) {
		e.Codec = s.Store.Codecs.Down.ID
	}
	s.trace.put(e)
}

// mapResults returns the addresses in this process for the answers of a complete chunk, and whether the results should go past the
// cache. It returns nil if some of the addresses cannot be reached, or if the answers carry no data.
func (s *Shard) mapResults(a *reduce.Action, c *store.Chunk, bytes int) (outs []uint64, pastCache bool) {
	if !s.maps || a.Kind == reduce.Accumulate {
		return nil, false
	}
	t := &s.Scratch.targets
	t.n, pastCache = 0, true
	for rank, k := range s.Workers.links {
		h := s.Machine.MessageOf(a, rank)
		if h.Op == chunk.OpPush {
			continue
		}
		d := &k.dst[c.Tensor]
		if h.Form != 0 && d.rkey == 0 {
			return nil, false // the answer goes over the payload, which is shorter, so its end would be lost before it is read
		}
		if !t.add(k, h, d, c.Offset, s.Job.ChunkBytes) {
			return nil, false
		}
		pastCache = pastCache && d.pastCache
	}
	outs = t.mapAll(bytes)
	return outs, pastCache && outs != nil
}

func (s *Shard) pull(a *reduce.Action) {
	c := &s.Store.Chunks[a.Index]
	p := s.answerOf(a, c)
	if a.Buffered {
		s.Scratch.Parameters(s.Store, c, p.addr)
	}
	if s.stream != nil {
		s.Workers.links[a.Worker].stream.seen[a.Index] = c.Updates
		s.stream.read(a.Worker, c)
	}
	s.trace.put(TraceEvent{At: s.traceTime(), Kind: TracePull, Op: a.Op, Epoch: a.Epoch, Worker: a.Worker, Chunk: a.Index})
	s.answer(a.Worker, &a.Message, a, p)
	s.release(p.buffer)
}

func (s *Shard) record(r *chunk.TensorRecord) payload {
	p := payload{bytes: chunk.RecordBytes, buffer: s.buffers.Take()}
	p.addr = s.buffers.Addr(p.buffer)
	s.buffers.Write(p.buffer, r)
	return p
}

func (s *Shard) answerCommit(a *reduce.Action) {
	r := s.commit.Answer()
	p := s.record(&r)
	for rank := range s.Workers.links {
		s.answer(int32(rank), s.Machine.MessageOf(a, rank), a, p)
	}
	s.release(p.buffer)
}

// configure takes a tensor's destination and hyper-parameters from the control record under way.
func (s *Shard) configure(a *reduce.Action) error {
	r, k := &s.Scratch.reader.record, s.Workers.links[a.Worker]
	d := &k.dst[a.Index]
	*d = destination{}
	if r.Flags&chunk.RecordHasDst != 0 {
		*d = destination{addr: r.DstAddr, rkey: r.DstRKey, pastCache: r.Flags&chunk.RecordPastCache != 0}
	}
	s.Store.Tensors[a.Index].Flush = r.Flags&chunk.RecordFlush != 0
	if !a.New {
		return nil
	}
	h := s.Store.Rule.FromRecord(r.Values())
	if err := s.Store.CheckHyper(h); err != nil {
		return err
	}
	if s.stream != nil {
		k.stream.hypers[a.Index] = h
		return nil
	}
	s.Store.Tensors[a.Index].Hyper = h
	return nil
}

// payload is the payload of an answer. Without bytes the answer is its immediate alone.
type payload struct {
	chunk  *store.Chunk // nil for a control record, and for rows
	addr   uint64
	bytes  int
	buffer int32 // the result buffer that addr lies in, or [store.NoBuffer] if it lies in the chunk's parameters
	placed bool  // the bytes are in the worker's memory already
}

// answerOf returns the payload of an answer with a chunk: in a result buffer that it takes, or in the chunk's parameters.
func (s *Shard) answerOf(a *reduce.Action, c *store.Chunk) payload {
	p := payload{chunk: c, addr: c.Addr, bytes: s.Store.WireBytes(c), buffer: store.NoBuffer}
	if a.Buffered {
		p.buffer = s.buffers.Take()
		p.addr = s.buffers.Addr(p.buffer)
	}
	return p
}

func (s *Shard) answer(rank int32, h *reduce.Held, a *reduce.Action, p payload) {
	k := s.Workers.links[rank]
	if k.State == session.Closed {
		return
	}
	hold := p.buffer
	if k.CopiesAtPost() {
		hold = store.NoBuffer // the transport has read it when the post returns
	}
	wr := s.Workers.put(k, chunk.Pack(a.Op, a.Epoch, a.Index), hold)
	if p.bytes > 0 {
		wr.Length = uint32(p.bytes)
		var d *destination
		var offset uint64
		if c := p.chunk; c != nil {
			if c.Kept == 0 { // else the worker decodes what it gets, whether it is compressed or not
				d, offset = &k.dst[c.Tensor], c.Offset
			}
			if s.Store.Coded() {
				k.counters.Down.Count(p.addr, p.bytes, s.Store.WireBytes(c))
			}
		}
		wr.RAddr, wr.RKey = k.target(h, d, offset, s.Job.ChunkBytes)
		if p.placed {
			wr.Flags |= verbs.SendPlaced
		} else {
			s.source(k, wr, p)
			if d != nil && d.pastCache {
				wr.Flags |= verbs.SendPastCache
			}
		}
	}
	k.gauge.answered = s.Lane.Stamp
	count := &s.Lane.Count
	count.Answers++
	count.SentBytes += uint64(p.bytes)
	k.counters.SentBytes += uint64(p.bytes)
	if k.CopiesAtPost() {
		s.Lane.Post(k.Conn)
	}
}

// source fills in the address and the key of an answer's bytes.
func (s *Shard) source(k *link, wr *verbs.SendWR, p payload) {
	wr.LAddr = p.addr
	switch nic := max(k.NIC(), 0); { // the keys of a connection without a queue pair are set when it resumes
	case k.CopiesAtPost():
		wr.Flags |= verbs.SendInline
	case p.buffer != store.NoBuffer:
		wr.LKey = s.buffers.Region.LKey(nic)
	default:
		wr.LKey = p.chunk.Region.LKey(nic)
	}
}

// put appends a message to a worker. The message holds a result buffer until it has arrived.
func (w *Workers) put(k *link, imm uint32, buffer int32) *verbs.SendWR {
	if buffer != store.NoBuffer {
		w.s.buffers.Hold(buffer, 1)
		w.s.Machine.Hold(k.Rank, 1)
	}
	w.s.Lane.Touch(k.Conn)
	wr := k.Put(imm, buffer)
	if buffer != store.NoBuffer && w.s.buffers.Free() < store.NumBuffers/2 {
		wr.Flags |= verbs.SendSolicited // a worker at rest may not keep what others need
	}
	return wr
}
