package store

import (
	"math"

	"github.com/rackweave/rackweave/cgo/kernel"
	"github.com/rackweave/rackweave/chunk"
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
func (c *Config) Coded() bool { return c.Codecs != codec.Pair{} }

// Form returns the form of a gradient's payload, or 0 if it is raw. The error wraps [codec.ErrPayload].
func (s *Store) Form(c *Chunk, addr uint64, bytes int) (codec.Form, error) {
	if bytes >= s.WireBytes(c) {
		return 0, nil
	}
	return codec.Check(Bytes(addr, bytes), int(c.Elems))
}

// CodesAnswers reports whether the job's answers are compressed.
func (c *Config) CodesAnswers() bool { return c.Codecs.Down.ID != codec.Raw }

// codecMemory returns the addresses of what codecs keep of a tensor's chunk.
func (c *Config) codecMemory(of *Chunk, t *Tensor) (kept []*uint64) {
	if t.Width > 0 {
		return nil // rows travel as they are
	}
	if c.CodesAnswers() {
		kept = append(kept, &of.Kept)
	}
	if c.CodesCore && t.Wire == chunk.F32 {
		kept = append(kept, &of.Core)
	}
	return kept
}

// Encoding returns the encoding of a chunk's values, in f32, by a codec, or by none in a flush. The caller sets the rest.
func (s *Store) Encoding(c *Chunk, by codec.Spec) kernel.Encoding {
	if s.Tensors[c.Tensor].Flush {
		by = codec.Spec{}
	}
	e := kernel.Encoding{
		N: uint64(c.Elems), First: c.Offset / 4, Tensor: uint32(s.Tensors[c.Tensor].Number), Factor: 1, Param: by.Param, Type: kernel.F32,
		Codec: uint8(by.ID),
	}
	if by.Stochastic {
		e.Stochastic = 1
	}
	return e
}

// Encode writes the payload of an answer, and returns its length. values, in f32, are the chunk's parameters, whose change from
// the reference travels, or in mode aggregate the sum, which takes the residual along.
func (k *Arithmetic) Encode(s *Store, c *Chunk, values, payload uint64) int {
	e := &k.coded
	*e = s.Encoding(c, s.Codecs.Down)
	e.Values, e.Memory, e.Payload, e.Step, e.Rank = values, c.Kept, payload, c.Answers, codec.AnswerRank
	if c.Addr != 0 {
		e.Reference = 1
	}
	c.Answers++
	n := e.Run(k.ISA)
	if e.Reference != 0 && c.Answers%codec.HashEvery == 0 {
		n = codec.AddHash(Bytes(payload, s.WireBytes(c)), n, Floats(c.Kept, c.Elems))
	}
	return n
}

// Copy copies a chunk's values, in f32.
func (k *Arithmetic) Copy(c *Chunk, to, from uint64) {
	kernel.Convert(k.ISA, to, kernel.F32, from, kernel.F32, uint64(c.Elems), false)
}
