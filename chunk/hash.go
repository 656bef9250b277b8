package chunk

import (
	"crypto/sha256"
	"encoding/binary"
)

// Hash returns a digest of the whole plan: lanes, tensors and the placement of every chunk. Two ends with equal hashes agree on the
// meaning of every immediate.
func (p *Plan) Hash() [32]byte {
	h := sha256.New()
	buf := []byte("rackweave plan 1\n")
	put := func(v uint64) { buf = binary.LittleEndian.AppendUint64(buf, v) }
	flush := func() {
		h.Write(buf)
		buf = buf[:0]
	}
	put(uint64(p.chunkBytes))
	put(uint64(len(p.lanes)))
	for i := range p.lanes {
		l := &p.lanes[i]
		put(uint64(l.NIC))
		put(uint64(l.Core))
		put(uint64(l.Weight))
	}
	put(uint64(len(p.tensors)))
	for i := range p.tensors {
		t := &p.tensors[i]
		put(uint64(len(t.Name)))
		buf = append(buf, t.Name...)
		put(t.Elems)
		put(uint64(t.DType) | uint64(t.Width)<<32) // dense tensors have the digest that they had before there were rows
		// The lane index follows from the lanes of the chunks before it.
		first, end := p.TensorChunks(i)
		put(uint64(end - first))
		for _, c := range p.chunks[first:end] {
			if buf = binary.LittleEndian.AppendUint16(buf, c.lane); len(buf) >= 1<<16 {
				flush()
			}
		}
	}
	flush()
	return [32]byte(h.Sum(nil))
}
