package uplink

import (
	"fmt"

	"github.com/rackweave/rackweave/aggregate/failure"
	"github.com/rackweave/rackweave/aggregate/reduce"
	"github.com/rackweave/rackweave/aggregate/store"
	"github.com/rackweave/rackweave/cgo/kernel"
	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/codec"
)

// coding shortens what crosses between racks by the codecs of [Place.Codecs]. A rack compresses its sum of a chunk once, with the
// children's sums in it, and keeps the residual. The owner compresses the result once, for all racks and its own workers.
// Broadcasts, norms and tensors of 16-bit wire types travel as they are.
type coding struct {
	u       *Uplink
	lengths [][]uint32 // by rack, then chunk: of the payload of the rack's last sum
	encode  kernel.Encoding
	forms   []uint64 // of the inputs under way
}

// coded reports whether a message about a chunk is compressed between racks.
func coded(c *store.Chunk, broadcast bool) bool { return c.Core != 0 && !broadcast }

// rank returns a rack's place in the keys of random numbers, beside those of workers.
func (k *coding) rank() uint32 { return codec.AnswerRank - 1 - uint32(k.u.cfg.Place.Rack) }

// shorten encodes values of a chunk, f32, and returns the payload's length. kept is its residual, or with change its reference.
func (k *coding) shorten(s codec.Spec, c *store.Chunk, values, kept, payload uint64, factor float32, change bool) uint32 {
	e := &k.encode
	*e = k.u.cfg.Store.Encoding(c, s)
	e.Values, e.Memory, e.Payload, e.Step, e.Rank, e.Factor = values, kept, payload, c.CoreSteps, k.rank(), factor
	if change {
		e.Reference = 1
	}
	return uint32(e.Run(k.u.cfg.Arithmetic.ISA))
}

// encodeSum writes the payload of this rack's sum of a chunk, and its note. It leaves the residual as it is, because the sum may be
// sent again, or given back to the workers. The next residual waits in the buffer until the result has come.
func (k *coding) encodeSum(c *store.Chunk, b int32) (addr uint64, bytes uint32) {
	next := k.u.buffers.residual(b)
	kernel.Convert(k.u.cfg.Arithmetic.ISA, next, kernel.F32, c.Core, kernel.F32, uint64(c.Elems), false)
	addr = k.u.buffers.payload(b)
	bytes = k.shorten(k.u.cfg.Place.Codecs.Up, c, k.u.buffers.sum(b), next, addr, codec.Factor(c.CoreRate, k.rate(c)), false)
	note := store.Bytes(addr+uint64(bytes), noteBytes)
	copy(note, store.Bytes(k.u.buffers.sum(b)+k.u.sumBytes(c, false), noteBytes))
	return addr, bytes
}

// rate returns the learning rate times the scale of a chunk's gradients.
func (k *coding) rate(c *store.Chunk) float32 {
	h := &k.u.cfg.Store.Tensors[c.Tensor].Hyper
	return float32(h.LR) * float32(h.Scale)
}

// settle replaces a chunk's residual by the next one, because the result that has come answers the sum that left it.
func (k *coding) settle(c *store.Chunk, b int32) {
	c.CoreRate = k.rate(c)
	c.CoreSteps++
	kernel.Convert(k.u.cfg.Arithmetic.ISA, c.Core, kernel.F32, k.u.buffers.residual(b), kernel.F32, uint64(c.Elems), false)
}

// encodeResult compresses the result of a chunk that this rack owns, and makes the result what the other racks get.
func (k *coding) encodeResult(c *store.Chunk, index uint32) {
	b := k.u.chunks[index].sum
	result, answer := k.u.buffers.result(b), k.u.buffers.answer(b)
	k.u.chunks[index].length = k.shorten(k.u.cfg.Place.Codecs.Down, c, result, c.Core, answer, 1, c.Refers)
	c.CoreSteps++
	if c.Refers {
		kernel.Convert(k.u.cfg.Arithmetic.ISA, result, kernel.F32, c.Core, kernel.F32, uint64(c.Elems), false)
	} else {
		k.decodeResult(c, index, 0)
	}
	copy(k.behind(answer+uint64(k.u.chunks[index].length)), k.behind(result+uint64(k.u.cfg.Store.WireBytes(c))))
}

// behind returns the bytes that follow a result's values.
func (k *coding) behind(at uint64) []byte { return store.Bytes(at, int(k.u.cfg.Reduction.Behind())) }

// decodeResult writes the values of a result's payload to the chunk's result. base is the address of the values that it changes, or
// 0. It reports whether the payload can be read.
func (k *coding) decodeResult(c *store.Chunk, index uint32, base uint64) bool {
	b, length := k.u.chunks[index].sum, k.u.chunks[index].length
	from := k.u.buffers.answer(b)
	form, err := codec.Check(store.Bytes(from, int(length)), int(c.Elems))
	if err != nil {
		k.unreadable(c, int(c.Owner), err)
		return false
	}
	src, forms := k.u.src[:0], k.forms[:0]
	if form != 0 && base != 0 {
		src, forms = append(src, base), append(forms, 0)
	}
	k.u.cfg.Arithmetic.SumInto(k.u.buffers.result(b), kernel.F32,
		kernel.Sources{Addr: append(src, from), Form: append(forms, uint64(form)), Type: kernel.F32}, c.Elems)
	return true
}

// takeResult takes the payload of a result that has come.
func (k *coding) takeResult(c *store.Chunk, index, bytes uint32) bool {
	bytes -= k.u.cfg.Reduction.Behind()
	k.u.chunks[index].length = bytes
	if bytes > 0 && !k.decodeResult(c, index, k.u.cfg.Reduction.Base(c)) {
		return false
	}
	b := k.u.chunks[index].sum
	copy(k.behind(k.u.buffers.result(b)+uint64(k.u.cfg.Store.WireBytes(c))), k.behind(k.u.buffers.answer(b)+uint64(bytes)))
	k.settle(c, b)
	return true
}

// formOf returns the form of a rack's sum of a chunk. It reports whether the sum can be read.
func (k *coding) formOf(rack int, c *store.Chunk, index uint32) (form uint64, ok bool) {
	if c.Core == 0 || rack == k.u.cfg.Place.Rack {
		return 0, true
	}
	f, err := codec.Check(store.Bytes(k.u.sumOf(rack, index), int(k.lengths[rack][index])), int(c.Elems))
	if err != nil {
		k.unreadable(c, rack, err)
		return 0, false
	}
	return uint64(f), true
}

func (k *coding) unreadable(c *store.Chunk, rack int, err error) {
	k.u.cfg.Fail.Fail(failure.NoRank, fmt.Errorf("%w: %s sent a part of tensor %q that cannot be read: %w", reduce.ErrProtocol,
		k.u.Links.name(rack), k.u.cfg.Store.Tensors[c.Tensor].Name, err))
}

// refer makes values that a broadcast or a refresh has given all racks the reference of a chunk that this rack owns.
func (k *coding) refer(c *store.Chunk, values uint64) {
	if c.Refers {
		kernel.Convert(k.u.cfg.Arithmetic.ISA, c.Core, kernel.F32, values, uint8(chunk.F32), uint64(c.Elems), false)
	}
}
