package fabric

/*
#include "base/fabric.h"

#cgo noescape rwf_post_send
#cgo nocallback rwf_post_send
#cgo noescape rwf_post_recv
#cgo nocallback rwf_post_recv
#cgo noescape rwf_map_all
#cgo nocallback rwf_map_all
*/
import "C"

import (
	"fmt"
	"os"
	"syscall"
	"time"
	"unsafe"
)

// QPConfig sizes a queue pair.
type QPConfig struct {
	CQ                   *CQ // for the completions of its sends and its receives
	MaxSendWR, MaxRecvWR int
	MaxInline            int
	// ByReference lets incoming payloads be delivered in the sender's memory, on devices that can.
	ByReference bool
	// ImmOnly lets a write of the peer without immediate fail the queue pair, if the write would take this side's time without a
	// completion.
	ImmOnly bool
	// Peer is the peer's number, from 1 on. Regions that name a peer are for it alone. If 0, the queue pair is for no particular peer.
	Peer int
}

// QP is a reliable connected queue pair.
type QP struct{ h *C.rwf_qp }

// CreateQP makes a queue pair in a protection domain.
func (pd *PD) CreateQP(c QPConfig) (*QP, error) {
	init := C.struct_rwf_qp_init{
		cq: c.CQ.h, peer: C.uint32_t(c.Peer),
		max_send_wr: C.uint32_t(c.MaxSendWR), max_recv_wr: C.uint32_t(c.MaxRecvWR), max_inline: C.uint32_t(c.MaxInline),
	}
	if c.ByReference {
		init.flags |= C.RWF_QP_BY_REFERENCE
	}
	if c.ImmOnly {
		init.flags |= C.RWF_QP_IMM_ONLY
	}
	qp := &QP{}
	return made(qp, do("create queue pair", func() C.int { return C.rwf_create_qp(pd.h, &init, &qp.h) }))
}

// Handle returns the C queue pair, for the worker's data path.
func (qp *QP) Handle() unsafe.Pointer { return unsafe.Pointer(qp.h) }

// Close destroys the queue pair and drops its completions that are not yet polled.
func (qp *QP) Close() error {
	return do("destroy queue pair", func() C.int { return C.rwf_destroy_qp(qp.h) })
}

// Num returns the queue pair's number.
func (qp *QP) Num() uint32 { return uint32(C.rwf_qp_num(qp.h)) }

// State returns the queue pair's present state.
func (qp *QP) State() QPState { return QPState(C.rwf_qp_state(qp.h)) }

// Endpoint returns the queue pair's endpoint, which the peer needs to connect. Only the provider interprets it.
func (qp *QP) Endpoint() ([]byte, error) {
	buf := make([]byte, C.RWF_ENDPOINT_MAX)
	n, err := call("read endpoint", func() C.int { return C.rwf_qp_endpoint(qp.h, unsafe.Pointer(&buf[0]), C.RWF_ENDPOINT_MAX) })
	return buf[:n], err
}

// ConnectConfig describes the connecting of a queue pair. Zero durations are the contract's defaults.
type ConnectConfig struct {
	// Active opens the connection. The passive side waits for its peer.
	Active                          bool
	Timeout, RNRTimeout, AckTimeout time.Duration
	// Cancel, if not nil, ends the active side's wait when it is closed.
	Cancel <-chan struct{}
}

// Connect gives the queue pair its peer's endpoint. An active queue pair is in RTS on return. A passive queue pair reaches RTS when
// the peer arrives, which the device reports as [EventQPEstablished].
func (qp *QP) Connect(peer []byte, c ConnectConfig) error {
	ms := func(d time.Duration) C.uint32_t { return C.uint32_t(d.Milliseconds()) }
	attr := C.struct_rwf_connect_attr{
		timeout_ms: ms(c.Timeout), rnr_timeout_ms: ms(c.RNRTimeout), ack_timeout_ms: ms(c.AckTimeout),
	}
	if c.Active {
		attr.active = 1
	}
	if c.Active && c.Cancel != nil {
		cancelled, cancel, err := os.Pipe()
		if err != nil {
			return fmt.Errorf("connect queue pair: %w", err)
		}
		defer cancelled.Close()
		attr.cancel_fd = C.int32_t(cancelled.Fd())
		connected := make(chan struct{})
		defer close(connected)
		go func() {
			defer cancel.Close() // cancelled becomes readable
			select {
			case <-c.Cancel:
			case <-connected:
			}
		}()
	}
	return do("connect queue pair", func() C.int {
		return C.rwf_connect_qp(qp.h, unsafe.Pointer(unsafe.SliceData(peer)), C.size_t(len(peer)), &attr)
	})
}

// Fail moves the queue pair to ERR and flushes all outstanding requests. The peer sees an error.
func (qp *QP) Fail() error {
	return do("fail queue pair", func() C.int { return C.rwf_fail_qp(qp.h) })
}

// PostSend posts work requests in order, with one doorbell. It returns the number of posted requests, with an error if not all were
// posted.
func (qp *QP) PostSend(wr []SendWR) (int, error) {
	n := C.rwf_post_send(qp.h, (*C.struct_rwf_send_wr)(unsafe.Pointer(unsafe.SliceData(wr))), C.int(len(wr)))
	if int(n) == len(wr) {
		return len(wr), nil
	}
	return int(max(n, 0)), qp.postError("post send", n)
}

// MapAll finds the addresses in this process of a range of length bytes at each queue pair's peer, with one call into C for up to
// 64 of them. It reports whether all are mapped. out is 0 for a range that may not be written, before which earlier requests must
// land, or whose device lacks [DevMaps]. The caller then posts ordinary writes. An address is valid until the next call on its
// queue pair or one of its completion queues. A write with [SendPlaced] announces data stored there. The caller puts a store fence
// between streaming stores and that post.
func MapAll(qps []*QP, rkeys []uint32, raddrs []uint64, length uint32, out []uint64) bool {
	const batch = 64
	var handles [batch]*C.rwf_qp
	mapped := 0
	for begin := 0; begin < len(qps); begin += batch {
		end := min(begin+batch, len(qps))
		for i, qp := range qps[begin:end] {
			handles[i] = qp.h
		}
		mapped += int(C.rwf_map_all(&handles[0], (*C.uint32_t)(&rkeys[begin]), (*C.uint64_t)(&raddrs[begin]), C.uint32_t(length),
			C.int(end-begin), (*C.uint64_t)(&out[begin])))
	}
	return mapped == len(qps)
}

// PostRecv posts n receives without buffers, all with this work request id.
func (qp *QP) PostRecv(wrID uint64, n int) error {
	if rc := C.rwf_post_recv(qp.h, C.uint64_t(wrID), C.int(n)); rc < 0 {
		return qp.postError("post receive", rc)
	}
	return nil
}

// postError returns the error of a call that posted some requests, but not all, or failed.
func (qp *QP) postError(op string, rc C.int) error {
	if rc >= 0 {
		rc = -C.int(syscall.ENOMEM)
	}
	return failed(fmt.Sprintf("%s on queue pair 0x%x", op, qp.Num()), rc)
}
