package worker

/*
#cgo CFLAGS: -std=gnu11 -O2 -Wall -Wextra -Werror
#include <stdlib.h>
#include "worker.h"

#cgo noescape rw_worker_progress
#cgo nocallback rw_worker_progress
#cgo noescape rw_worker_test
#cgo nocallback rw_worker_test
#cgo noescape rw_worker_wait_any
#cgo nocallback rw_worker_wait_any
#cgo noescape rw_worker_commit
#cgo nocallback rw_worker_commit
#cgo noescape rw_worker_answer
#cgo nocallback rw_worker_answer
*/
import "C"

import (
	"embed"
	"structs"
	"unsafe"

	"github.com/rackweave/rackweave/cgo/fabric"
	_ "github.com/rackweave/rackweave/cgo/fabric/base"
	_ "github.com/rackweave/rackweave/cgo/kernel" // for its C
	_ "github.com/rackweave/rackweave/include"
)

// See package base.
//
//go:embed *.h
var _ embed.FS

// Worker is a C worker.
type Worker unsafe.Pointer

// Lane mirrors struct rw_worker_lane.
type Lane struct {
	_         structs.HostLayout
	QP        unsafe.Pointer
	SlotAddr  uint64
	SlotRKey  uint32
	NIC       uint32
	RecvDepth uint32
}

// NIC mirrors struct rw_worker_nic.
type NIC struct {
	_      structs.HostLayout
	PD, CQ unsafe.Pointer
}

// Config mirrors struct rw_worker_config. StagingAddr and ClockNS are C memory.
type Config struct {
	_                                      structs.HostLayout
	nnics, nlanes                          uint32
	ChunkBytes, Window, SendDepth, Staging uint32
	StagingAddr                            unsafe.Pointer
	Rank                                   uint32
	CacheBytes                             uint64
	ByReference, AnyMemory, Steps          bool
	Answers                                uint8 // AnswersWhole, AnswersSums or AnswersChanges
	Resumable                              bool
	ISA                                    int32
	Spin                                   uint32
	ClockNS                                *uint64
	Seed                                   uint64
}

// Tensor mirrors struct rw_tensor.
type Tensor struct {
	_                    structs.HostLayout
	size                 uint32
	WireType, MemoryType uint8
	_                    [2]byte
	Elems                uint64
	Width                uint32 // elements in a row of a sparse tensor, or 0
	_                    [4]byte
}

// Codec mirrors struct rw_codec.
type Codec struct {
	_          structs.HostLayout
	size       uint32
	ID         uint8 // codec.ID
	Stochastic bool
	AsIs       bool // residuals are not rescaled
	_          byte
	Param      float64
}

// Op mirrors struct rw_op. Src and Dst are memory that Go's collector does not move or free until the operation is done.
type Op struct {
	_        structs.HostLayout
	size     uint32
	Tensor   uint32
	Src, Dst uintptr
	hyper    uintptr
	Priority int32
	Kind     uint8
	_        [3]byte
	done     uintptr
	doneArg  uintptr
	IDs      uintptr // of rows: int64[NIDs], or 0
	NIDs     uint64
	Union    uintptr // int64 for each of the tensor's rows, or 0
	NUnion   uintptr // uint64, or 0
}

// Stats mirrors struct rw_stats.
type Stats struct {
	_                          structs.HostLayout
	size, _                    uint32
	SentBytes, ReceivedBytes   uint64 // of payload, as it travels
	SentChunks, ReceivedChunks uint64
	CopiedBytes                uint64 // of these, between the caller's memory and the transport's
	Doorbells                  uint64 // posts to send queues
	NACKs                      uint64 // chunks that the aggregator asked to send again later
	Sleeps                     uint64 // waits that slept

	SentRawBytes, ReceivedRawBytes uint64 // SentBytes and ReceivedBytes without codecs

	Residual float64 // the sum of squares of what the codecs have left for the next gradients
}

// These are the results of calls, beside negative errnos.
const (
	ErrAborted   = C.RW_EABORTED
	ErrTransport = C.RW_ETRANSPORT
	ErrProtocol  = C.RW_EPROTOCOL
)

// These are the kinds of answers, as in enum rw_answers.
const (
	AnswersWhole   = C.RW_ANSWERS_WHOLE
	AnswersSums    = C.RW_ANSWERS_SUMS
	AnswersChanges = C.RW_ANSWERS_CHANGES
)

// These are the immediate's layout and operations in C. Tests hold them equal to package chunk's.
var (
	ImmBits = [...]int{C.RW_OP_BITS, C.RW_EPOCH_BITS, C.RW_INDEX_BITS}
	Ops     = [...]int{C.RW_PUSH, C.RW_PUSHPULL, C.RW_PULL, C.RW_BROADCAST, C.RW_TENSOR, C.RW_COMMIT, C.RW_NOTICE, C.RW_ABORT}
	Notices = [...]int{C.RW_NOTICE_NACK, C.RW_NOTICE_REQUEST}
)

// MaxLaneChunks is the largest number of chunks of a lane. Tests hold it equal to package chunk's.
const MaxLaneChunks = C.RW_MAX_LANE_CHUNKS

// These are the limits of rackweave.h.
const (
	MinWindow = C.RW_MIN_WINDOW
	MaxWindow = C.RW_MAX_WINDOW
	MaxNICs   = C.RW_MAX_NICS
)

func init() {
	if unsafe.Sizeof(Lane{}) != C.sizeof_struct_rw_worker_lane || unsafe.Sizeof(NIC{}) != C.sizeof_struct_rw_worker_nic ||
		unsafe.Sizeof(Config{}) != C.sizeof_struct_rw_worker_config ||
		unsafe.Sizeof(Tensor{}) != C.sizeof_struct_rw_tensor || unsafe.Sizeof(Op{}) != C.sizeof_struct_rw_op ||
		unsafe.Sizeof(Codec{}) != C.sizeof_struct_rw_codec || unsafe.Sizeof(Stats{}) != C.sizeof_struct_rw_stats {
		panic("worker: a struct differs between Go and C")
	}
}

// Open makes a worker. Its lanes have no queue pairs until Resume gives them each one.
func Open(c Config, nics []NIC, lanes int) (Worker, int) {
	c.nnics, c.nlanes = uint32(len(nics)), uint32(lanes)
	var w *C.rw_worker
	rc := C.rw_worker_open((*C.struct_rw_worker_config)(unsafe.Pointer(&c)),
		(*C.struct_rw_worker_nic)(unsafe.Pointer(unsafe.SliceData(nics))),
		&w)
	return Worker(w), int(rc)
}

func Close(w Worker) { C.rw_worker_close((*C.rw_worker)(w)) }

// Region adds memory that was registered with every NIC.
func Region(w Worker, mrs []fabric.MR) int {
	return int(C.rw_worker_region((*C.rw_worker)(w), (*C.struct_rwf_mr)(unsafe.Pointer(unsafe.SliceData(mrs)))))
}

// Regions lists the worker's memory with the keys of a NIC.
func Regions(w Worker, nic int) []fabric.MR {
	for mrs := []fabric.MR(nil); ; {
		n := int(C.rw_worker_regions((*C.rw_worker)(w), C.uint32_t(nic), (*C.struct_rwf_mr)(unsafe.Pointer(unsafe.SliceData(mrs))),
			C.uint32_t(len(mrs))))
		if n <= len(mrs) {
			return mrs[:max(n, 0)]
		}
		mrs = make([]fabric.MR, n)
	}
}

// Claim takes the queues from the thread that drives them, until Release.
func Claim(w Worker) int { return int(C.rw_worker_claim((*C.rw_worker)(w))) }

func Release(w Worker) { C.rw_worker_release((*C.rw_worker)(w)) }

// Broken marks the lanes whose queue pair has failed, and counts them.
func Broken(w Worker, lanes []uint8) int {
	return int(C.rw_worker_broken((*C.rw_worker)(w), (*C.uint8_t)(unsafe.SliceData(lanes))))
}

// Detach takes a lane's queue pair out of service. received is the number of messages that came over the lane so far. Detach and
// Resume are called between Claim and Release.
func Detach(w Worker, lane int) (received uint64, rc int) {
	rc = int(C.rw_worker_detach((*C.rw_worker)(w), C.uint32_t(lane), (*C.uint64_t)(unsafe.Pointer(&received))))
	return received, rc
}

func Resume(w Worker, lane int, with *Lane, peerReceived uint64) int {
	return int(C.rw_worker_resume((*C.rw_worker)(w), C.uint32_t(lane), (*C.struct_rw_worker_lane)(unsafe.Pointer(with)),
		C.uint64_t(peerReceived)))
}

// Add appends tensors. chunkLanes has the lane of each of their chunks.
func Add(w Worker, tensors []Tensor, chunkLanes []uint32) int {
	for i := range tensors {
		tensors[i].size = C.sizeof_struct_rw_tensor
	}
	return int(C.rw_worker_add((*C.rw_worker)(w), (*C.struct_rw_tensor)(unsafe.Pointer(unsafe.SliceData(tensors))),
		C.uint32_t(len(tensors)), (*C.uint32_t)(unsafe.Pointer(unsafe.SliceData(chunkLanes))), C.uint64_t(len(chunkLanes))))
}

func Hyper(w Worker, tensor uint32, hyper *[8]float32) int {
	return int(C.rw_worker_hyper((*C.rw_worker)(w), C.uint32_t(tensor), (*C.float)(unsafe.Pointer(hyper))))
}

// Compress sets the codec of a tensor's gradients from its next one on.
func Compress(w Worker, tensor uint32, c Codec) int { return CompressFrom(w, tensor, c, 0) }

// CompressFrom sets the codec of a tensor's gradients from the one of a number on, counted from 0. If it is 0, that is the next
// one. If that gradient has begun, CompressFrom returns -EAGAIN, and the codec stays.
func CompressFrom(w Worker, tensor uint32, c Codec, from uint32) int {
	c.size = C.sizeof_struct_rw_codec
	return int(C.rw_worker_compress((*C.rw_worker)(w), C.uint32_t(tensor), (*C.struct_rw_codec)(unsafe.Pointer(&c)), C.uint32_t(from)))
}

// CodecOf returns the codec of a tensor's last gradient.
func CodecOf(w Worker, tensor uint32) (c Codec) {
	C.rw_worker_codec((*C.rw_worker)(w), C.uint32_t(tensor), (*C.struct_rw_codec)(unsafe.Pointer(&c)))
	return c
}

// Flush makes every tensor's next gradient take its residual along, uncompressed.
func Flush(w Worker) { C.rw_worker_flush((*C.rw_worker)(w)) }

func Submit(w Worker, ops []Op, handles []uint64) int {
	for i := range ops {
		ops[i].size = C.sizeof_struct_rw_op
	}
	return int(C.rw_worker_submit((*C.rw_worker)(w), (*C.struct_rw_op)(unsafe.Pointer(unsafe.SliceData(ops))), C.uint32_t(len(ops)),
		(*C.uint64_t)(unsafe.Pointer(unsafe.SliceData(handles)))))
}

// SumRows sorts rows of width elements by id, and sums rows of the same id. It returns the number of ids that are left, in front,
// or a negative errno.
func SumRows(ids []int64, rows unsafe.Pointer, width uint32, d uint8) int {
	return int(C.rw_sum_rows((*C.int64_t)(unsafe.SliceData(ids)), C.uint64_t(len(ids)), rows, C.uint32_t(width), C.int(d)))
}

// Commit starts the end of a step.
func Commit(w Worker, hyper *[8]float32, skip, skipNonFinite bool, handle *uint64) int {
	return int(C.rw_worker_commit((*C.rw_worker)(w), (*C.float)(unsafe.Pointer(hyper)), C.bool(skip), C.bool(skipNonFinite),
		(*C.uint64_t)(unsafe.Pointer(handle))))
}

// Answer is the answer to a commit.
type Answer struct {
	Norm, Scale float32
	Step        uint32
	Pull        bool
}

// AnswerOf reads the answer to the last commit.
func AnswerOf(w Worker) (Answer, int) {
	var a C.struct_rw_answer
	rc := C.rw_worker_answer((*C.rw_worker)(w), &a)
	return Answer{Norm: float32(a.norm), Scale: float32(a.scale), Step: uint32(a.step), Pull: a.pull != 0}, int(rc)
}

func Test(w Worker, handle uint64) int {
	return int(C.rw_worker_test((*C.rw_worker)(w), C.uint64_t(handle)))
}

// Wait returns 0 when the operation is done, or -ETIMEDOUT.
func Wait(w Worker, handle uint64, timeoutMS uint32) int {
	var status C.int
	rc := C.rw_worker_wait_any((*C.rw_worker)(w), (*C.uint64_t)(unsafe.Pointer(&handle)), 1, C.uint32_t(timeoutMS), &status)
	return int(min(rc, 0) + status)
}

// Active returns the number of operations in flight.
func Active(w Worker) int { return int(C.rw_worker_active((*C.rw_worker)(w))) }

func Progress(w Worker) int { return int(C.rw_worker_progress((*C.rw_worker)(w))) }

func Abort(w Worker, text string) {
	s := C.CString(text)
	defer C.free(unsafe.Pointer(s))
	C.rw_worker_abort((*C.rw_worker)(w), s)
}

func Failure(w Worker) (int, string) {
	var buf [256]C.char
	rc := C.rw_worker_failure((*C.rw_worker)(w), &buf[0], C.uint32_t(len(buf)))
	return int(rc), C.GoString(&buf[0])
}

func StatsOf(w Worker, out *Stats) {
	C.rw_worker_stats((*C.rw_worker)(w), (*C.struct_rw_stats)(unsafe.Pointer(out)))
}
