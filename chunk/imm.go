package chunk

import "fmt"

// The immediate, from its most significant bit: operation, epoch, index. cgo/worker/worker.h has the same constants.
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

// The operations. The index is the chunk's lane index unless said otherwise.
const (
	OpPush      Op = 0 // a gradient; the reply is an empty acknowledgement
	OpPushPull  Op = 1 // a gradient; the reply is data
	OpPull      Op = 2 // no payload; the reply is data
	OpBroadcast Op = 3 // the root's message carries the values, those of the others nothing; the reply is data
	OpTensor    Op = 4 // a [TensorRecord]; the index is the lane-local tensor index; all ones: it announces the worker's step
	OpCommit    Op = 5 // a [TensorRecord] that ends a two-phase step
	OpNotice    Op = 6 // aggregator to worker, about a chunk; the epoch says what: NoticeNACK or NoticeRequest
	OpAbort     Op = 7 // aggregator to worker: the job failed; the index is the rank of the worker that caused it, all ones: none did
)

// The values of an [OpNotice]'s epoch.
const (
	NoticeNACK    = 0 // the chunk is not kept: send it again
	NoticeRequest = 1 // send the chunk before others
)

var opNames = [1 << OpBits]string{"push", "pushpull", "pull", "broadcast", "tensor", "commit", "notice", "abort"}

func (o Op) String() string {
	if int(o) < len(opNames) {
		return opNames[o]
	}
	return fmt.Sprintf("op(%d)", uint8(o))
}

// Pack makes an immediate. Epochs count modulo 128: the low bits of any step counter will do. Pack panics if the operation or the
// index does not fit. No plan has such an index.
func Pack(op Op, epoch uint8, index uint32) uint32 {
	if op > OpMask || index > IndexMask {
		panic("chunk: immediate out of range")
	}
	return uint32(op)<<OpShift | uint32(epoch&EpochMask)<<EpochShift | index
}

// Unpack takes an immediate apart. Every 32-bit value is an immediate; only the plan knows whether its index exists.
func Unpack(imm uint32) (op Op, epoch uint8, index uint32) {
	return Op(imm >> OpShift), uint8(imm >> EpochShift & EpochMask), imm & IndexMask
}
