package uplink

import (
	"encoding/binary"

	"github.com/rackweave/rackweave/aggregate/store"
	"github.com/rackweave/rackweave/chunk"
)

// Op is the operation of a message between aggregators. It takes the place of [chunk.Op] in a worker's immediate.
type Op uint8

// These are the operations. The index is the chunk's unless stated otherwise.
const (
	OpSum       Op = iota // to the parent: the sum of the racks below, with a note behind it; of a sparse tensor a block (rows.go)
	OpResult              // to the child: the result; to a buddy: the sum of all racks; of a sparse tensor a block
	OpBroadcast           // to the parent: a note, with the root's values if they come from below; in a refresh the note alone
	OpValues              // to the child: the root's values; in a refresh the owner's parameters
	OpNorms               // the commit's record and norms of gradients; the index is the first norm's place among the sender's
	OpTrust               // as OpNorms, with norms of parameters and steps, for LAMB
	OpNotice              // the epoch is a [Notice]
	OpEnd                 // the epoch is an [Ending]
)

// Notice is the epoch of an [OpNotice].
type Notice uint8

const (
	NoticeNACK    Notice = iota // to the child: its sum was dropped here; it sends the sum again after others, unless it recalled it
	NoticeRequest               // to the child: other racks wait for its sum
	NoticeRecall                // to the parent: the child wants a NACK of its sum
	NoticeTaken                 // to the child: its sum was added to the parent's, and its slot is free
	NoticeRead                  // norms were read, and there is room for more
	NoticeRows                  // a block of a sparse tensor's rows was read, and there is room for another
)

// Ending is the epoch of an [OpEnd].
type Ending uint8

// These are the endings of a job in a rack.
const (
	Failed Ending = iota // the index is the rank in the whole job of the worker to blame, or all ones if none is
	Left                 // the rack's workers have left in peace
)

func pack(op Op, epoch uint8, index uint32) uint32 { return chunk.Pack(chunk.Op(op), epoch, index) }

func unpack(imm uint32) (op Op, epoch uint8, index uint32) {
	o, epoch, index := chunk.Unpack(imm)
	return Op(o), epoch, index
}

// note is the 16-byte trailer of a sum.
type note struct {
	resultAddr uint64 // the address for the result at the child
	hyperSum   uint32 // of the hyper-parameters that the rack's workers sent
	flags      uint32 // of a broadcast; of a gradients' sum the bits of [store.Round.Part]
}

const (
	noteBytes  = 16
	noteValues = 1 // flag: the message carries the root's values
)

func (n *note) write(addr uint64) {
	b := store.Bytes(addr, noteBytes)
	binary.LittleEndian.PutUint64(b, n.resultAddr)
	binary.LittleEndian.PutUint32(b[8:], n.hyperSum)
	binary.LittleEndian.PutUint32(b[12:], n.flags)
}

func readNote(addr uint64) note {
	b := store.Bytes(addr, noteBytes)
	return note{binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint32(b[8:]), binary.LittleEndian.Uint32(b[12:])}
}

// normBytes is the room for one message of norms: the commit's record, followed by norms.
const normBytes = 4 << 10

// mostPeerBytes bounds the slots of one connection between aggregators.
const mostPeerBytes = 16 << 20

// slotBytes returns the size of a slot for a sum in f32 with its note, whatever the wire's type.
func slotBytes(chunkBytes int) uint64 { return uint64(2*chunkBytes + 64) }

// peerSlots returns the number of slots of one connection. They are at most half a window, because sums, notices and results
// together must fit PeerSend and PeerRecv, which together are as large as a worker's (lane.QueueDepths).
func peerSlots(window, chunkBytes int) int {
	return max(2, min(window/2, mostPeerBytes/int(slotBytes(chunkBytes))))
}

// MostSparse returns the largest number of sparse tensors of a job. Each has a slot of its own in every connection, which chunks
// leave free: before a job registers tensors, nobody knows whether it needs more memory, and all jobs would be charged for it.
func MostSparse(window, chunkBytes int) int { return max(1, peerSlots(window, chunkBytes)/4) }

// peerWindow returns the number of sums of chunks that one rack may have at another, without an answer or a notice that they were
// taken.
func peerWindow(window, chunkBytes int) int {
	return peerSlots(window, chunkBytes) - MostSparse(window, chunkBytes)
}

// SlotsBytes returns the size of the slots of one connection between aggregators, with room for a message of norms between those of
// chunks and those of blocks of rows.
func SlotsBytes(window, chunkBytes int) int64 {
	return int64(peerSlots(window, chunkBytes))*int64(slotBytes(chunkBytes)) + normBytes
}
