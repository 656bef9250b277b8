package chunk

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"strings"
)

// String returns the plan as text, for people and golden tests: a header, a line for each lane with its load, and a line for each
// tensor with its lanes, each with the number of the tensor's chunks there.
func (p *Plan) String() string {
	var b strings.Builder
	var elems, bytes uint64
	for i := range p.lanes {
		elems, bytes = elems+p.lanes[i].elems, bytes+p.lanes[i].bytes
	}
	fmt.Fprintf(&b, "plan: chunk_bytes %d, nics %d, lanes %d, tensors %d, chunks %d, elems %d, bytes %d\n",
		p.chunkBytes, len(p.nics), len(p.lanes), len(p.tensors), len(p.chunks), elems, bytes)
	for i := range p.lanes {
		l := &p.lanes[i]
		fmt.Fprintf(&b, "lane %d: nic %d, core %d, weight %d, tensors %d, chunks %d, elems %d, bytes %d\n",
			i, l.NIC, l.Core, l.Weight, len(l.tensors), len(l.chunks), l.elems, l.bytes)
	}
	for i := range p.tensors {
		t := &p.tensors[i]
		first, end := p.TensorChunks(i)
		fmt.Fprintf(&b, "tensor %d: %q %v, elems %d, chunks %d, lanes", i, t.Name, t.DType, t.Elems, end-first)
		for l := range p.lanes {
			if _, share, ok := p.LaneTensor(l, i); ok {
				fmt.Fprintf(&b, " %d:%d", l, share.Chunks)
			}
		}
		b.WriteByte('\n')
	}
	return b.String()
}

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
		put(uint64(t.DType))
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
