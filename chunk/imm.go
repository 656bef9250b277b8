package chunk

import "fmt"

// These are the fields of the immediate, from its most significant bit: operation, epoch, index. cgo/worker/worker.h has the same
// constants.
const (
	OpBits    = 3
	EpochBits = 7
	IndexBits = 22

	OpShift    = EpochBits + IndexBits
	EpochShift = IndexBits

	OpMask    = 1<<OpBits - 1
	EpochMask = 1<<EpochBits - 1
	IndexMask = 1<<IndexBits - 1
)

// Op is the operation of a message.
type Op uint8

// These are the operations. The index is the chunk's lane index unless stated otherwise.
const (
	OpPush      Op = 0 // a gradient; the reply is an empty acknowledgement
	OpPushPull  Op = 1 // a gradient; the reply is data
	OpPull      Op = 2 // no payload; the reply is data
	OpBroadcast Op = 3 // the values from the root, an empty message from other workers; the reply is data
	OpTensor    Op = 4 // a [TensorRecord]; the index is the lane-local tensor index, or all ones to announce the worker's step
	OpCommit    Op = 5 // a [TensorRecord] that ends a two-phase step, or a worker's step in mode stream
	OpNotice    Op = 6 // aggregator to worker, about a chunk; the epoch is NoticeNACK or NoticeRequest
	// aggregator to worker: the job failed; the index is the rank of the worker that caused it, or all ones if none did
	OpAbort Op = 7
)

// These are the values of an [OpNotice]'s epoch.
const (
	NoticeNACK    = 0 // the chunk was dropped, and must be sent again
	NoticeRequest = 1 // the chunk must be sent before others
)

var opNames = [1 << OpBits]string{"push", "pushpull", "pull", "broadcast", "tensor", "commit", "notice", "abort"}

func (o Op) String() string {
	if int(o) < len(opNames) {
		return opNames[o]
	}
	return fmt.Sprintf("op(%d)", uint8(o))
}

// Pack returns an immediate. Epochs count modulo 128, so the low bits of any step counter are an epoch. Pack panics if the
// operation or the index does not fit. No plan has such an index.
func Pack(op Op, epoch uint8, index uint32) uint32 {
	if op > OpMask || index > IndexMask {
		panic("chunk: immediate out of range")
	}
	return uint32(op)<<OpShift | uint32(epoch&EpochMask)<<EpochShift | index
}

// Unpack returns the fields of an immediate. Every 32-bit value is an immediate. Only the plan can check that its index exists.
func Unpack(imm uint32) (op Op, epoch uint8, index uint32) {
	return Op(imm >> OpShift), uint8(imm >> EpochShift & EpochMask), imm & IndexMask
}
