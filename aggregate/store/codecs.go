package store

import (
	"math"

	"github.com/rackweave/rackweave/codec"
)

// Coding counts payloads of one direction, and what codecs make of them.
type Coding struct {
	Chunks, Whole uint64 // payloads, and those of them that are raw
	Raw, Sent     uint64 // bytes of the values, and of the payloads
	// The sums of the values' squares, and of the squares of what is lost of them, as compressed payloads tell them.
	Energy, Lost float64
}

// Add adds other payloads.
func (n *Coding) Add(o *Coding) {
	n.Chunks += o.Chunks
	n.Whole += o.Whole
	n.Raw += o.Raw
	n.Sent += o.Sent
	n.Energy += o.Energy
	n.Lost += o.Lost
}

// Count counts a payload of a chunk.
func (n *Coding) Count(addr uint64, bytes, raw int) {
	n.Chunks++
	n.Raw += uint64(raw)
	n.Sent += uint64(bytes)
	if bytes >= raw {
		n.Whole++
		return
	}
	h := codec.HeaderOf(Bytes(addr, codec.HeaderBytes))
	// The sums may have overflowed, and the worker may have written since they were checked.
	if h.Energy >= 0 && h.Lost >= 0 && max(h.Energy, h.Lost) <= math.MaxFloat32 {
		n.Energy += float64(h.Energy)
		n.Lost += float64(h.Lost)
	}
}

// Coded reports whether the job has codecs.
func (s *Store) Coded() bool { return s.Codecs != codec.Pair{} }

// Form returns the form of a gradient's payload, or 0 if it is raw. The error wraps [codec.ErrPayload].
func (s *Store) Form(c *Chunk, addr uint64, bytes int) (codec.Form, error) {
	if bytes >= s.WireBytes(c) {
		return 0, nil
	}
	return codec.Check(Bytes(addr, bytes), int(c.Elems))
}
