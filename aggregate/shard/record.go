package shard

import (
	"fmt"
	"hash/crc32"

	"github.com/rackweave/rackweave/aggregate/store"
	"github.com/rackweave/rackweave/chunk"
)

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
