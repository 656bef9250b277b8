package chunk

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
)

// RecordBytes is the size of a [TensorRecord] on the wire.
const RecordBytes = 64

// RecordValues is the number of values that a record carries for an update rule. The rule defines them.
const RecordValues = 8

// recordSumAt is the checksum's offset. Eight zero bytes follow the checksum.
const recordSumAt = 52

// RecordFlags are the switches of a [TensorRecord].
type RecordFlags uint32

const (
	RecordSkip      RecordFlags = 1 << 0 // the parameters do not change in this step
	RecordHasDst    RecordFlags = 1 << 1 // DstAddr and DstRKey are set
	RecordPastCache RecordFlags = 1 << 2 // the replies will not be read soon, so they should be written past the cache
	RecordPull      RecordFlags = 1 << 3 // answer to a commit of stream mode: the worker must pull the parameters before the next step
	// RecordSkipNonFinite leaves the parameters unchanged if the gradient's global norm is infinite or not a number.
	RecordSkipNonFinite RecordFlags = 1 << 4
	// RecordFlush makes whatever codecs keep of the tensor travel with the next gradient, until the worker's next record.
	RecordFlush RecordFlags = 1 << 5

	recordFlagsKnown = RecordSkip | RecordHasDst | RecordPastCache | RecordPull | RecordSkipNonFinite | RecordFlush
)

// TensorRecord is the control record of a tensor: the live hyper-parameters of a step, and the destination of its replies. On the
// wire its fields have this order, little-endian, followed by their CRC-32C and eight zero bytes.
type TensorRecord struct {
	LR, WD, Scale, Clip float32
	Momentum            float32 // beta 1 where the rule has two
	Beta2, Eps          float32
	Extra               float32 // its meaning depends on the rule
	DstAddr             uint64  // the tensor's first element in the worker's memory
	DstRKey             uint32
	Flags               RecordFlags
	Step                uint32
}

// ErrRecord is wrapped by every error of [TensorRecord.Decode].
var ErrRecord = errors.New("bad tensor record")

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Values returns the hyper-parameters in their order on the wire.
func (r *TensorRecord) Values() [RecordValues]float32 {
	return [...]float32{r.LR, r.WD, r.Scale, r.Clip, r.Momentum, r.Beta2, r.Eps, r.Extra}
}

// Encode writes the record to the first [RecordBytes] bytes of dst. It panics if dst is shorter.
func (r *TensorRecord) Encode(dst []byte) {
	dst = dst[:RecordBytes]
	le := binary.LittleEndian
	for i, f := range r.Values() {
		le.PutUint32(dst[4*i:], math.Float32bits(f))
	}
	le.PutUint64(dst[32:], r.DstAddr)
	le.PutUint32(dst[40:], r.DstRKey)
	le.PutUint32(dst[44:], uint32(r.Flags))
	le.PutUint32(dst[48:], r.Step)
	le.PutUint32(dst[recordSumAt:], crc32.Checksum(dst[:recordSumAt], castagnoli))
	le.PutUint64(dst[recordSumAt+4:], 0)
}

// Decode reads a record from exactly [RecordBytes] bytes. It does not check the values of hyper-parameters, because the optimizer
// does.
func (r *TensorRecord) Decode(src []byte) error {
	if len(src) != RecordBytes {
		return fmt.Errorf("%w: %d bytes, not %d", ErrRecord, len(src), RecordBytes)
	}
	le := binary.LittleEndian
	if got, want := le.Uint32(src[recordSumAt:]), crc32.Checksum(src[:recordSumAt], castagnoli); got != want {
		return fmt.Errorf("%w: checksum %#08x, want %#08x", ErrRecord, got, want)
	}
	if le.Uint64(src[recordSumAt+4:]) != 0 {
		return fmt.Errorf("%w: reserved bytes are set: the sender is of a newer version", ErrRecord)
	}
	flags := RecordFlags(le.Uint32(src[44:]))
	if flags&^recordFlagsKnown != 0 {
		return fmt.Errorf("%w: unknown flags %#x: the sender is of a newer version", ErrRecord, uint32(flags&^recordFlagsKnown))
	}
	f := func(i int) float32 { return math.Float32frombits(le.Uint32(src[4*i:])) }
	*r = TensorRecord{
		LR: f(0), WD: f(1), Scale: f(2), Clip: f(3), Momentum: f(4), Beta2: f(5), Eps: f(6), Extra: f(7),
		DstAddr: le.Uint64(src[32:]), DstRKey: le.Uint32(src[40:]), Flags: flags, Step: le.Uint32(src[48:]),
	}
	return nil
}
