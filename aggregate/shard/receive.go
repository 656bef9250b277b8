package shard

import (
	"fmt"
	"hash/crc32"

	"github.com/rackweave/rackweave/aggregate/lane"
	"github.com/rackweave/rackweave/aggregate/reduce"
	"github.com/rackweave/rackweave/aggregate/store"
	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/codec"
	"github.com/rackweave/rackweave/verbs"
)

// Receive handles a message.
func (w *Workers) Receive(c *lane.Conn, wc *verbs.WC) {
	s, k := w.s, w.links[c.Rank]
	if s.Job.Fail.Has() || k.stream.lost {
		return
	}
	op, epoch, index := chunk.Unpack(wc.Imm)
	m := &s.Scratch.message
	*m = reduce.Message{Op: op, Epoch: epoch, Index: index, Bytes: wc.ByteLen}
	if wc.Addr != 0 { // by reference
		m.Where = reduce.Where{Payload: wc.Addr, Source: wc.SrcAddr, SourceRKey: wc.SrcRKey, Staged: k.staged(wc.SrcAddr)}
	} else {
		m.Where.Payload = k.slots.Addr() + uint64(s.Machine.NextSlot(k.Rank))*uint64(s.Job.ChunkBytes)
	}
	count := &s.Lane.Count
	count.Messages++
	count.RecvBytes += uint64(wc.ByteLen)
	k.counters.RecvBytes += uint64(wc.ByteLen)
	if op == chunk.OpTensor || op == chunk.OpCommit {
		var err error
		if m.HyperSum, err = s.Scratch.reader.read(m.Where.Payload, m.Bytes); err != nil {
			s.Machine.Violate(k.Rank, "sent %w", err)
			s.CarryOut()
			return
		}
		m.Record = &s.Scratch.reader.record
	} else if op != chunk.OpPull {
		t, read := s.rows.sparse(index), k.readForm
		if op == chunk.OpPush && t != nil {
			read = s.rows.read
		}
		if err := read(s, m); err != nil {
			what := fmt.Sprintf("a gradient of chunk %d", index)
			if t != nil {
				what = fmt.Sprintf("rows of tensor %q", t.Name)
			}
			s.Machine.Violate(k.Rank, "sent %s of lane %d that cannot be read: %w", what, s.Lane.Index, err)
			s.CarryOut()
			return
		}
		s.trace.put(TraceEvent{At: s.Lane.Stamp, Kind: TraceArrive, Op: op, Epoch: epoch, Worker: int32(k.Rank), Chunk: index,
			Codec: codec.Form(m.Where.Form).ID(), Bytes: m.Bytes})
	}
	s.Machine.Receive(s.Lane.Stamp, k.Rank, m)
	s.CarryOut()
}

// readForm reads the form of a gradient, and counts the gradient, in a job with codecs. The machine refuses a chunk that does not
// exist.
func (k *link) readForm(s *Shard, m *reduce.Message) error {
	if !s.Store.Coded() || m.Op == chunk.OpBroadcast || m.Index >= uint32(len(s.Store.Chunks)) {
		return nil
	}
	c := &s.Store.Chunks[m.Index]
	if s.Store.Tensors[c.Tensor].Width > 0 {
		return nil
	}
	form, err := s.Store.Form(c, m.Where.Payload, int(m.Bytes))
	if err != nil {
		return err
	}
	m.Where.Form = uint64(form)
	k.counters.Up.Count(m.Where.Payload, int(m.Bytes), s.Store.WireBytes(c))
	if k.gauge.Tensors != nil {
		k.gauge.arrive(s, k.Rank, c, m)
	}
	return nil
}

// Advance continues work that waited for room, and reports whether it did anything.
func (s *Shard) Advance() bool {
	worked, now := false, s.Lane.Stamp
	for s.Machine.Advance(now) {
		s.CarryOut()
		worked = true
	}
	if s.Machine.AdvanceCommit(now, s.Job.Barrier.passed(s.target)) {
		s.CarryOut()
		worked = true
	}
	return s.Uplink.Advance() || worked
}

// Pending reports whether Advance may have something to do.
func (s *Shard) Pending() bool { return s.Machine.Waiting() || s.Uplink.Pending() }

// Tick looks for a stall. It looks among the rack's own workers only if nothing moves above the rack. It reports whether the job is
// stalled.
func (s *Shard) Tick(counted bool) (stalled bool) {
	open, moving := s.Uplink.Tick(counted)
	if moving {
		return true
	}
	stalled = s.Machine.Tick(s.Lane.Stamp, counted)
	s.CarryOut()
	return stalled || open
}

// hyperBytes is the part of a control record that holds hyper-parameters.
const hyperBytes = 32

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// recordReader decodes control records out of workers' memory.
type recordReader struct {
	raw    [chunk.RecordBytes]byte
	record chunk.TensorRecord
}

// read decodes the record at addr and returns a checksum of its hyper-parameters, never 0. It decodes a copy, because the worker
// may write to its memory meanwhile.
func (r *recordReader) read(addr uint64, bytes uint32) (sum uint32, err error) {
	if bytes != chunk.RecordBytes {
		return 0, fmt.Errorf("a control record of %d bytes, expected %d", bytes, chunk.RecordBytes)
	}
	copy(r.raw[:], store.Bytes(addr, chunk.RecordBytes))
	if err := r.record.Decode(r.raw[:]); err != nil {
		return 0, fmt.Errorf("a control record that cannot be read: %w", err)
	}
	return max(crc32.Checksum(r.raw[:hyperBytes], castagnoli), 1), nil
}
