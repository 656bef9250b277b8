package aggregate

import (
	"hash/crc32"
	"unsafe"

	"github.com/rackweave/rackweave/chunk"
)

// hyperBytes is the part of a control record that holds hyper-parameters.
const hyperBytes = 32

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// readRecord decodes the control record that a message carries; false: the job failed.
func (s *share) readRecord(m *message, r *chunk.TensorRecord) ([]byte, bool) {
	if m.bytes != chunk.RecordBytes {
		m.conn.violate("sent a control record of %d bytes, expected %d", m.bytes, chunk.RecordBytes)
		return nil, false
	}
	// The worker may write to its memory while we read it: decode a copy.
	raw := s.lane.record[:]
	copy(raw, unsafe.Slice((*byte)(address(m.payload)), chunk.RecordBytes))
	if err := r.Decode(raw); err != nil {
		m.conn.violate("sent a control record that cannot be read: %v", err)
		return nil, false
	}
	return raw, true
}

// record takes a tensor's hyper-parameters and destination. They hold from the worker's next chunk of the tensor on, and all
// workers must have sent the same hyper-parameters by then (share.agree).
func (s *share) record(m *message) {
	m.laneTensor = -1
	if m.index >= len(s.tensors) {
		m.conn.violate("sent a control record of tensor %d of lane %d, which has %d", m.index, s.lane.index, len(s.tensors))
		return
	}
	var r chunk.TensorRecord
	raw, ok := s.readRecord(m, &r)
	if !ok {
		return
	}
	t := &s.tensors[m.index]
	d := &m.conn.dst[m.index]
	*d = destination{}
	if r.Flags&chunk.RecordHasDst != 0 {
		*d = destination{addr: r.DstAddr, rkey: r.DstRKey, streaming: r.Flags&chunk.RecordStreaming != 0}
	}
	if s.job.mode == Eager {
		sum := crc32.Checksum(raw[:hyperBytes], castagnoli)
		m.conn.hyperSum[m.index] = sum
		if sum != t.hyperSum {
			h := HyperOf(s.job.rule, &r)
			if err := s.job.checkHyper(h); err != nil {
				m.conn.violate("sent hyper-parameters for tensor %q that cannot be used: %v", s.job.tensorName(t.tensor), err)
				return
			}
			t.hyperSum, t.hyper, t.scalarsFor = sum, h, 0
		}
	}
	s.answerOrDefer(m)
}
