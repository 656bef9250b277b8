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
	OpNotice    Op = 6 // aggregator to worker, about a chunk; the epoch says what: NoticeNACK, NoticeRequest or NoticeMove
	OpAbort     Op = 7 // aggregator to worker: the job failed; the index is the rank of the worker that caused it, all ones: none did
)

// The values of an [OpNotice]'s epoch.
const (
	NoticeNACK    = 0 // the chunk is not kept: send it again
	NoticeRequest = 1 // send the chunk before others
	NoticeMove    = 2 // and above: once the chunk is answered, it belongs to lane epoch-NoticeMove

	// MoveLanes is how many lanes a chunk can move to: those that the notice can name.
	MoveLanes = EpochMask + 1 - NoticeMove
)

// GuestBit marks the index of a guest: a chunk that has moved to a lane where the plan did not place it. The other bits name its
// home, so that the index does not depend on what else is in the lane. In a control record it marks the number of a tensor of which
// the plan placed nothing in the lane.
const GuestBit = 1 << (IndexBits - 1)

// Moved returns the index that a chunk has in lane to, one of so many; index is the one it has in lane from. ok is false where the
// index cannot name its home.
func Moved(index uint32, from, to, lanes int) (moved uint32, ok bool) {
	if index&GuestBit != 0 {
		from, index = Home(index, lanes)
	}
	if from == to {
		return index, true
	}
	n := uint64(index)*uint64(lanes) + uint64(from)
	return uint32(n) | GuestBit, n < GuestBit
}

// Home returns where the plan has placed a guest.
func Home(guest uint32, lanes int) (lane int, index uint32) {
	n := guest &^ GuestBit
	return int(n % uint32(lanes)), n / uint32(lanes)
}

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
