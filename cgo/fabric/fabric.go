// Package fabric is the C side of the transport contract (fabric.h) for Go: one function per C call, flat structs, no Go pointer
// kept by C. Package verbs adds types, errors and documentation, and should be used instead.
package fabric

/*
#cgo CFLAGS: -std=gnu11 -O2 -Wall -Wextra -Werror -fno-strict-aliasing
#include <stdlib.h>
#include "base/fabric.h"

#cgo noescape rwf_poll_cq
#cgo nocallback rwf_poll_cq
#cgo noescape rwf_post_send
#cgo nocallback rwf_post_send
#cgo noescape rwf_post_recv
#cgo nocallback rwf_post_recv
#cgo noescape rwf_map_all
#cgo nocallback rwf_map_all
#cgo noescape rwf_req_notify_cq
#cgo nocallback rwf_req_notify_cq
#cgo noescape rwf_wait_cq
#cgo nocallback rwf_wait_cq
#cgo noescape rwf_get_async_event
#cgo nocallback rwf_get_async_event
*/
import "C"

import (
	"embed"
	"structs"
	"unsafe"

	_ "github.com/rackweave/rackweave/cgo/fabric/base"
	_ "github.com/rackweave/rackweave/cgo/fabric/ibv"
	_ "github.com/rackweave/rackweave/cgo/fabric/shm"
	_ "github.com/rackweave/rackweave/cgo/fabric/tcp"
)

// See package base. Embedding also rebuilds the packages that include its headers and import this package.
//
//go:embed base/*.h
var _ embed.FS

// These are the handles of the contract's objects, in C memory.
type (
	Device unsafe.Pointer
	PD     unsafe.Pointer
	CQ     unsafe.Pointer
	QP     unsafe.Pointer
)

// DeviceAttr mirrors struct rwf_device_attr.
type DeviceAttr struct {
	_                                               structs.HostLayout
	Provider                                        [16]byte
	Name                                            [64]byte
	MaxMRSize                                       uint64
	MaxQP, MaxQPWR, MaxCQ, MaxCQE, MaxMR, MaxInline uint32
	MTU                                             uint32
	Flags                                           DevFlags
}

// MR mirrors struct rwf_mr.
type MR struct {
	_          structs.HostLayout
	Addr       uint64
	Length     uint64
	LKey, RKey uint32
}

// SendWR mirrors struct rwf_send_wr.
type SendWR struct {
	_          structs.HostLayout
	WRID       uint64
	LAddr      uint64
	RAddr      uint64
	Length     uint32
	LKey, RKey uint32
	Imm        uint32
	Opcode     Opcode
	Flags      SendFlags
	_          uint32
}

// WC mirrors struct rwf_wc.
type WC struct {
	_       structs.HostLayout
	WRID    uint64
	Addr    uint64
	SrcAddr uint64
	SrcRKey uint32
	ByteLen uint32
	Imm     uint32
	QPNum   uint32
	Status  Status
	Opcode  WCOpcode
}

// QPInit mirrors struct rwf_qp_init.
type QPInit struct {
	_                               structs.HostLayout
	CQ                              CQ
	MaxSendWR, MaxRecvWR, MaxInline uint32
	Flags                           QPFlags
	Peer                            uint32
}

// ConnectAttr mirrors struct rwf_connect_attr.
type ConnectAttr struct {
	_                                             structs.HostLayout
	Active, TimeoutMS, RNRTimeoutMS, AckTimeoutMS uint32
	CancelFD                                      int32
}

// AsyncEvent mirrors struct rwf_async_event.
type AsyncEvent struct {
	_     structs.HostLayout
	Type  EventType
	QPNum uint32
}

func init() {
	for _, s := range []struct {
		name   string
		goSize uintptr
		cSize  uintptr
	}{
		{"device_attr", unsafe.Sizeof(DeviceAttr{}), C.sizeof_struct_rwf_device_attr},
		{"mr", unsafe.Sizeof(MR{}), C.sizeof_struct_rwf_mr},
		{"send_wr", unsafe.Sizeof(SendWR{}), C.sizeof_struct_rwf_send_wr},
		{"wc", unsafe.Sizeof(WC{}), C.sizeof_struct_rwf_wc},
		{"qp_init", unsafe.Sizeof(QPInit{}), C.sizeof_struct_rwf_qp_init},
		{"connect_attr", unsafe.Sizeof(ConnectAttr{}), C.sizeof_struct_rwf_connect_attr},
		{"async_event", unsafe.Sizeof(AsyncEvent{}), C.sizeof_struct_rwf_async_event},
	} {
		if s.goSize != s.cSize {
			panic("fabric: struct rwf_" + s.name + " differs between Go and C")
		}
	}
}

// LastError returns the text of the calling thread's last failure. A caller locks the goroutine to its thread around the call and
// this one, as package verbs does.
func LastError() string { return C.GoString(C.rwf_last_error()) }

// Open opens a device of a provider.
func Open(provider, device, options string) (Device, int) {
	p, d, o := C.CString(provider), C.CString(device), C.CString(options)
	defer C.free(unsafe.Pointer(p))
	defer C.free(unsafe.Pointer(d))
	defer C.free(unsafe.Pointer(o))
	var dev *C.rwf_device
	rc := C.rwf_open(p, d, o, &dev)
	return Device(dev), int(rc)
}

// Providers returns the names of the providers, fastest first.
func Providers() (names []string) {
	for i := C.int(0); C.rwf_provider(i) != nil; i++ {
		names = append(names, C.GoString(C.rwf_provider(i)))
	}
	return names
}

// HasNICs reports whether a provider's devices are NICs.
func HasNICs(provider string) bool {
	p := C.CString(provider)
	defer C.free(unsafe.Pointer(p))
	return C.rwf_has_nics(p) != 0
}

// List writes the names of a provider's devices into buf, separated by newlines.
func List(provider string, buf []byte) int {
	p := C.CString(provider)
	defer C.free(unsafe.Pointer(p))
	return int(C.rwf_list(p, (*C.char)(unsafe.Pointer(unsafe.SliceData(buf))), C.size_t(len(buf))))
}

func Close(d Device) int { return int(C.rwf_close((*C.rwf_device)(d))) }

func Query(d Device, out *DeviceAttr) int {
	return int(C.rwf_query((*C.rwf_device)(d), (*C.struct_rwf_device_attr)(unsafe.Pointer(out))))
}

func AllocPD(d Device) (PD, int) {
	var pd *C.rwf_pd
	rc := C.rwf_alloc_pd((*C.rwf_device)(d), &pd)
	return PD(pd), int(rc)
}

func DeallocPD(pd PD) int { return int(C.rwf_dealloc_pd((*C.rwf_pd)(pd))) }

// RegMR registers length bytes at addr, which must not be Go memory.
func RegMR(pd PD, addr unsafe.Pointer, length uint64, access Access, fd int, fdOffset uint64, out *MR) int {
	return int(C.rwf_reg_mr((*C.rwf_pd)(pd), addr, C.size_t(length), C.int(access), C.int(fd), C.uint64_t(fdOffset),
		(*C.struct_rwf_mr)(unsafe.Pointer(out))))
}

func DeregMR(pd PD, lkey uint32) int { return int(C.rwf_dereg_mr((*C.rwf_pd)(pd), C.uint32_t(lkey))) }

func CreateCQ(d Device, cqe uint32) (CQ, int) {
	var cq *C.rwf_cq
	rc := C.rwf_create_cq((*C.rwf_device)(d), C.uint32_t(cqe), &cq)
	return CQ(cq), int(rc)
}

func DestroyCQ(cq CQ) int { return int(C.rwf_destroy_cq((*C.rwf_cq)(cq))) }

func PollCQ(cq CQ, wc []WC) int {
	return int(C.rwf_poll_cq((*C.rwf_cq)(cq), (*C.struct_rwf_wc)(unsafe.Pointer(unsafe.SliceData(wc))), C.int(len(wc))))
}

func ReqNotifyCQ(cq CQ, count uint32) int {
	return int(C.rwf_req_notify_cq((*C.rwf_cq)(cq), C.uint32_t(count)))
}

func WaitCQ(cq CQ, timeoutUS int64) int {
	return int(C.rwf_wait_cq((*C.rwf_cq)(cq), C.int64_t(timeoutUS)))
}

func WakeCQ(cq CQ) int { return int(C.rwf_wake_cq((*C.rwf_cq)(cq))) }

func CreateQP(pd PD, init *QPInit) (QP, int) {
	var qp *C.rwf_qp
	rc := C.rwf_create_qp((*C.rwf_pd)(pd), (*C.struct_rwf_qp_init)(unsafe.Pointer(init)), &qp)
	return QP(qp), int(rc)
}

func DestroyQP(qp QP) int { return int(C.rwf_destroy_qp((*C.rwf_qp)(qp))) }
func QPNum(qp QP) uint32  { return uint32(C.rwf_qp_num((*C.rwf_qp)(qp))) }
func State(qp QP) QPState { return QPState(C.rwf_qp_state((*C.rwf_qp)(qp))) }
func FailQP(qp QP) int    { return int(C.rwf_fail_qp((*C.rwf_qp)(qp))) }

func QPEndpoint(qp QP, buf []byte) int {
	return int(C.rwf_qp_endpoint((*C.rwf_qp)(qp), unsafe.Pointer(unsafe.SliceData(buf)), C.size_t(len(buf))))
}

func ConnectQP(qp QP, peer []byte, attr *ConnectAttr) int {
	return int(C.rwf_connect_qp((*C.rwf_qp)(qp), unsafe.Pointer(unsafe.SliceData(peer)), C.size_t(len(peer)),
		(*C.struct_rwf_connect_attr)(unsafe.Pointer(attr))))
}

func PostSend(qp QP, wr []SendWR) int {
	return int(C.rwf_post_send((*C.rwf_qp)(qp), (*C.struct_rwf_send_wr)(unsafe.Pointer(unsafe.SliceData(wr))), C.int(len(wr))))
}

func PostRecv(qp QP, wrID uint64, n int) int {
	return int(C.rwf_post_recv((*C.rwf_qp)(qp), C.uint64_t(wrID), C.int(n)))
}

// MapAll maps one range of each queue pair's peer. All slices are as long as qps.
func MapAll(qps []QP, rkeys []uint32, raddrs []uint64, length uint32, out []uint64) int {
	return int(C.rwf_map_all((**C.rwf_qp)(unsafe.Pointer(unsafe.SliceData(qps))), (*C.uint32_t)(unsafe.SliceData(rkeys)),
		(*C.uint64_t)(unsafe.SliceData(raddrs)), C.uint32_t(length), C.int(len(qps)), (*C.uint64_t)(unsafe.SliceData(out))))
}

func GetAsyncEvent(d Device, timeoutMS int, out *AsyncEvent) int {
	return int(C.rwf_get_async_event((*C.rwf_device)(d), C.int(timeoutMS), (*C.struct_rwf_async_event)(unsafe.Pointer(out))))
}
