package shard

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/rackweave/rackweave/aggregate/reduce"
	"github.com/rackweave/rackweave/aggregate/store"
	"github.com/rackweave/rackweave/cgo/kernel"
	"github.com/rackweave/rackweave/codec"
)

// rows is the part of a shard that merges streams of sparse tensors' rows.
type rows struct {
	*Shard
	mode   reduce.Mode
	blocks []block // by their places
	header [codec.RowsHeader]byte
}

// block is a block of results, which the workers fetch.
type block struct {
	buffer int32
	count  uint32 // rows
	placed bool   // the rows, and all else in the end, are in the memory of the workers' fetches
}

// add makes room for a sparse tensor's merges.
func (m *rows) add(r *store.Rows) {
	r.Sources = make([]kernel.RowSource, m.Job.Workers)
	if m.blocks == nil {
		m.blocks = make([]block, store.NumBuffers)
	}
}

// sparse returns the sparse tensor of a chunk, or nil for a chunk of a dense one.
func (m *rows) sparse(index uint32) *store.Tensor {
	if index >= uint32(len(m.Store.Chunks)) {
		return nil
	}
	t := &m.Store.Tensors[m.Store.Chunks[index].Tensor]
	if t.Rows == nil {
		return nil
	}
	return t
}

// read reads the header of a message about a sparse tensor's rows. It reads a copy, because the worker may write to its memory
// meanwhile.
func (m *rows) read(_ *Shard, msg *reduce.Message) error {
	t := m.sparse(msg.Index)
	n := copy(m.header[:], store.Bytes(msg.Where.Payload, int(min(msg.Bytes, codec.RowsHeader))))
	h, err := codec.ParseRows(m.header[:n], msg.Bytes, t.RowBytes())
	if err != nil {
		return err
	}
	if h.Kind == codec.RowsPull && int(h.Count)*t.RowBytes() > m.Job.ChunkBytes {
		return fmt.Errorf("a pull of %d rows of %d bytes: an answer holds at most %d bytes", h.Count, t.RowBytes(), m.Job.ChunkBytes)
	}
	msg.Rows = reduce.RowRange{From: h.From, To: h.To, Count: h.Count, Kind: reduce.RowKind(h.Kind)}
	if h.Bitmap {
		msg.Rows.Form = 1
	}
	if h.Kind == codec.RowsGradient || h.Kind == codec.RowsWanted {
		t.Rows.Counts.Listed += uint64(h.Count)
		t.Rows.Counts.Bytes += uint64(msg.Bytes)
	}
	return nil
}

// source returns a gradient message as a merge's source.
func source(t *store.Tensor, payload uint64, r *reduce.RowRange) kernel.RowSource {
	return t.Source(codec.Rows{From: r.From, To: r.To, Count: r.Count, Bitmap: r.Form != 0}, payload)
}

// merge merges the next rows of all workers' streams.
func (m *rows) merge(a *reduce.Action) {
	s := m.Shard
	t, above := m.sparse(a.Index), s.Store.NextOwner != nil
	if a.Rows.From == 0 && !above {
		switch m.mode {
		case reduce.Eager:
			s.Store.RowsStep(t)
		case reduce.Aggregate:
			s.Store.RowsSum(t)
		case reduce.TwoPhase:
			s.Store.RowsAccumulate(t)
		}
	}
	for rank := range t.Rows.Sources {
		if msg := s.Machine.RowsOf(a, rank); msg.Rows.From == a.Rows.From {
			t.Rows.Sources[rank] = source(t, msg.Payload, &msg.Rows)
		}
	}
	results := uint64(0)
	t.Rows.Outs = nil
	if a.Block >= 0 {
		b, outs := &m.blocks[a.Block], m.mapFetches(a, t)
		if a.Buffered {
			*b = block{buffer: s.buffers.Take(), placed: outs != nil}
		}
		if b.placed && outs == nil { // a worker cannot be reached now: the block ends with what it has
			m.merged(a, t, a.Rows.From, true)
			return
		}
		if b.placed {
			t.Rows.Outs = outs
		}
		results = s.buffers.Addr(b.buffer)
	}
	reached, full, wrong := s.Uplink.MergeRows(t, t.Rows.Sources, a.Rows.From, a.Rows.To, results, a.Buffered)
	if wrong >= 0 {
		m.refuse(wrong, t)
		return
	}
	if reached == t.Rows.Count && !above {
		s.Scratch.RowsMerged(s.Store, t, (s.Machine.CommitEpoch()+1)&1)
	}
	m.merged(a, t, reached, full)
}

// merged ends a merge.
func (m *rows) merged(a *reduce.Action, t *store.Tensor, reached uint32, full bool) {
	if full && m.Store.NextOwner == nil {
		m.blocks[a.Block].count = t.Rows.Results()
	}
	m.Machine.RowsMerged(m.Lane.Stamp, reached, full)
	m.CarryOut()
}

// mapFetches returns the addresses in this process, behind the headers, of the blocks that workers have fetched and that a merge
// fills. It returns nil if some of them cannot be reached.
func (m *rows) mapFetches(a *reduce.Action, t *store.Tensor) []uint64 {
	to := &m.Scratch.targets
	to.n = 0
	for rank, k := range m.Workers.links {
		h, wants := m.Machine.FetchOf(a, rank)
		if wants && (!m.maps || h == nil || !to.add(k, h, nil, 0, m.Job.ChunkBytes)) {
			return nil
		}
	}
	outs := to.mapAll(t.BlockBytes(t.Rows.BlockRows()))
	for i := range outs {
		outs[i] += codec.RowsHeader
	}
	return outs
}

// TakeRows copies a block of results from above the rack, if a worker wants it, and reports false if that must wait for room. taken
// and last are as in [reduce.Machine.RowsReturned].
func (s *Shard) TakeRows(t *store.Tensor, addr uint64, count uint32, taken, last bool) bool {
	i, ok := s.Machine.RowsReturned(s.Lane.Stamp, t.Rows.First, taken, last)
	if ok && i >= 0 {
		b := block{buffer: s.buffers.Take(), count: count}
		s.rows.blocks[i] = b
		n := t.BlockBytes(count)
		copy(store.Bytes(s.buffers.Addr(b.buffer), n), store.Bytes(addr, n))
	}
	s.CarryOut()
	return ok
}

func (m *rows) refuse(rank int, t *store.Tensor) {
	m.Machine.Violate(rank, "sent rows of tensor %q of lane %d that contradict their header: it lists each once, ascending", t.Name,
		m.Lane.Index)
	m.CarryOut()
}

// mergeOne merges one worker's rows by themselves.
func (m *rows) mergeOne(a *reduce.Action) {
	s := m.Shard
	t := m.sparse(a.Index)
	k, c := &s.Workers.links[a.Worker].stream, &s.Store.Chunks[t.Rows.First]
	tau := c.Updates - min(c.Updates, k.seen[t.Rows.First])
	s.Store.RowsStepOne(t, &k.hypers[c.Tensor], s.Job.Gate.Rate(uint64(tau)), len(s.Workers.links))
	t.Rows.Sources[0] = source(t, a.Message.Payload, &a.Rows)
	if _, _, wrong := s.Scratch.MergeRows(t, t.Rows.Sources[:1], a.Rows.From, a.Rows.To, 0, false); wrong >= 0 {
		m.refuse(int(a.Worker), t)
		return
	}
	if a.Rows.To == t.Rows.Count {
		s.Scratch.RowsMerged(s.Store, t, 0)
	}
	m.record(TraceUpdate, a, a.Rows.To)
	s.answer(a.Worker, &a.Message, a, payload{buffer: store.NoBuffer})
}

// answer answers a worker's fetch with a block of results, or with an empty one.
func (m *rows) answer(a *reduce.Action) {
	t := m.sparse(a.Index)
	var p payload
	if a.Block >= 0 {
		b := m.blocks[a.Block]
		p = payload{addr: m.buffers.Addr(b.buffer), bytes: t.BlockBytes(b.count), buffer: b.buffer, placed: b.placed}
	} else {
		p.buffer = m.buffers.Take()
		p.addr = m.buffers.Addr(p.buffer)
		p.bytes = t.Rows.EndBlock(p.addr)
	}
	m.Shard.answer(a.Worker, &a.Message, a, p)
	if a.Last || a.Block < 0 {
		m.release(p.buffer)
	}
}

// mapAnswer returns the address in this process for an answer of rows, or 0 if it cannot be reached.
func (m *rows) mapAnswer(rank int32, h *reduce.Held, bytes int) uint64 {
	to := &m.Scratch.targets
	to.n = 0
	if m.maps && to.add(m.Workers.links[rank], h, nil, 0, m.Job.ChunkBytes) {
		if outs := to.mapAll(bytes); outs != nil {
			return outs[0]
		}
	}
	return 0
}

// pull answers one worker with the rows that it lists.
func (m *rows) pull(a *reduce.Action) {
	s := m.Shard
	t := m.sparse(a.Index)
	p := payload{bytes: int(a.Rows.Count) * t.RowBytes(), buffer: s.buffers.Take()}
	p.addr = s.buffers.Addr(p.buffer)
	ids, out := a.Message.Payload+codec.RowsHeader, m.mapAnswer(a.Worker, &a.Message, p.bytes)
	if p.placed = out != 0; p.placed { // the rows go over the ids
		copy(store.Bytes(p.addr, 4*int(a.Rows.Count)), store.Bytes(ids, 4*int(a.Rows.Count)))
		ids = p.addr
	} else {
		out = p.addr
	}
	if wrong := s.Scratch.GatherRows(t, ids, a.Rows.Count, out); wrong >= 0 {
		s.Machine.Violate(int(a.Worker), "pulled rows of tensor %q of lane %d, but entry %d of its list is not one of the %d rows", t.Name,
			s.Lane.Index, wrong, t.Rows.Count)
		s.CarryOut()
		return
	}
	if s.stream != nil {
		c := &s.Store.Chunks[t.Rows.First]
		s.Workers.links[a.Worker].stream.seen[t.Rows.First] = c.Updates
		s.stream.read(a.Worker, c)
	}
	m.record(TracePull, a, a.Rows.Count)
	s.answer(a.Worker, &a.Message, a, p)
	s.release(p.buffer)
}

// RowStatus describes a sparse tensor and what has happened to its rows.
type RowStatus struct {
	Tensor   int // number in the plan
	Name     string
	Rows     uint64
	Width    uint32
	RowBytes int
	store.RowCounts
	Merged  uint64 // rows that some worker has sent, counted once a step
	Hottest []HotChunk
}

// DenseBytes returns the bytes that the gradients of all workers would have taken if every row were listed.
func (r *RowStatus) DenseBytes(workers int) uint64 {
	return r.Steps * r.Rows * uint64(r.RowBytes) * uint64(workers)
}

// HotChunk is a chunk of a sparse tensor, and the number of its rows that were merged so far.
type HotChunk struct {
	First, Rows, Merged uint64
}

// mostHot is the number of hottest chunks in a tensor's status.
const mostHot = 3

// AddRows adds a shard's part of sparse tensors to out, by number. It is called on the lane's goroutine.
func AddRows(s *Shard, out map[int]*RowStatus) {
	for i := range s.Store.Tensors {
		t := &s.Store.Tensors[i]
		if t.Rows == nil {
			continue
		}
		r := out[t.Number]
		if r == nil {
			r = &RowStatus{Tensor: t.Number, Name: t.Name, Width: t.Width, RowBytes: t.RowBytes()}
			out[t.Number] = r
		}
		c := t.Rows.Counts
		r.Rows += uint64(t.Rows.Count)
		r.Steps = max(r.Steps, c.Steps)
		r.Listed += c.Listed
		r.Bytes += c.Bytes
		for k, n := range t.Rows.Heat() {
			r.Merged += n
			of := &s.Store.Chunks[t.Rows.First+uint32(k)]
			r.Hottest = append(r.Hottest, HotChunk{of.Offset / uint64(t.RowBytes()), uint64(of.Elems / t.Width), n})
		}
		slices.SortStableFunc(r.Hottest, func(a, b HotChunk) int { return cmp.Compare(b.Merged, a.Merged) })
		r.Hottest = r.Hottest[:min(len(r.Hottest), mostHot)]
	}
}

// record traces an update or a pull of one worker's rows.
func (m *rows) record(kind TraceKind, a *reduce.Action, rows uint32) {
	m.trace.put(TraceEvent{At: m.traceTime(), Kind: kind, Op: a.Message.Op, Epoch: a.Message.Epoch, Worker: a.Worker, Chunk: a.Index,
		Rows: rows})
}
