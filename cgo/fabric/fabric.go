// Package fabric is the transport contract (base/fabric.h) in Go, with its providers. Rooms that hold no C use it as package verbs,
// which describes it.
package fabric

/*
#cgo CFLAGS: -std=gnu11 -O2 -Wall -Wextra -Werror -fno-strict-aliasing
#include <stdlib.h>
#include "base/fabric.h"
#include "tcp/tcp.h"

#cgo noescape rwf_poll_cq
#cgo nocallback rwf_poll_cq
#cgo noescape rwf_req_notify_cq
#cgo nocallback rwf_req_notify_cq
#cgo noescape rwf_wait_cq
#cgo nocallback rwf_wait_cq
#cgo noescape rwf_get_async_event
#cgo nocallback rwf_get_async_event
*/
import "C"

import (
	"fmt"
	"net/netip"
	"runtime"
	"strings"
	"structs"
	"syscall"
	"time"
	"unsafe"

	_ "github.com/rackweave/rackweave/cgo/fabric/base"
	_ "github.com/rackweave/rackweave/cgo/fabric/ibv"
	_ "github.com/rackweave/rackweave/cgo/fabric/shm"
	_ "github.com/rackweave/rackweave/cgo/fabric/tcp"
)

// MR is a registered memory region (struct rwf_mr). Addr is also the remote address of its first byte.
type MR struct {
	_          structs.HostLayout
	Addr       uint64
	Length     uint64
	LKey, RKey uint32
}

// SendWR is a work request for the send queue (struct rwf_send_wr). Length 0 sends the immediate alone.
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

// WC is a work completion (struct rwf_wc). If Status is not [WCSuccess], only WRID, Status and QPNum are valid.
type WC struct {
	_       structs.HostLayout
	WRID    uint64
	Addr    uint64 // by reference, the payload's address in this process; otherwise 0, and it lies at the target
	SrcAddr uint64 // by reference, the payload's address in the sender, valid as the target of a reply; otherwise 0
	SrcRKey uint32 // by reference, the sender's key for SrcAddr; otherwise 0
	ByteLen uint32
	Imm     uint32
	QPNum   uint32
	Status  Status
	Opcode  WCOpcode
}

// AsyncEvent is an asynchronous event of a device.
type AsyncEvent struct {
	Type  EventType
	QPNum uint32
}

// These compile only if the structs are as large as C's.
var (
	_ [C.sizeof_struct_rwf_mr]byte      = [unsafe.Sizeof(MR{})]byte{}
	_ [C.sizeof_struct_rwf_send_wr]byte = [unsafe.Sizeof(SendWR{})]byte{}
	_ [C.sizeof_struct_rwf_wc]byte      = [unsafe.Sizeof(WC{})]byte{}
)

// Error is a failed call of the contract: its name, the errno it returned, and the provider's explanation.
type Error struct {
	Op    string
	Errno syscall.Errno
	Text  string
}

func (e *Error) Error() string {
	if e.Text == "" {
		return fmt.Sprintf("%s: %v", e.Op, e.Errno)
	}
	if strings.HasPrefix(e.Text, e.Op) {
		return e.Text // most providers name the call themselves
	}
	return fmt.Sprintf("%s: %s", e.Op, e.Text)
}

// Unwrap returns the errno.
func (e *Error) Unwrap() error { return e.Errno }

// LastError returns the text of the calling thread's last failure. A caller locks the goroutine to its thread around the call and
// this one.
func LastError() string { return C.GoString(C.rwf_last_error()) }

// failed returns the error of a call with a negative result.
func failed(op string, rc C.int) error {
	return &Error{Op: op, Errno: syscall.Errno(-rc), Text: LastError()}
}

// call runs a setup call and converts a negative result to an [Error] with the thread's text.
func call(op string, f func() C.int) (int, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	n := f()
	if n < 0 {
		return 0, failed(op, n)
	}
	return int(n), nil
}

func do(op string, f func() C.int) error {
	_, err := call(op, f)
	return err
}

// made returns an object, or nil if it could not be made.
func made[T any](v *T, err error) (*T, error) {
	if err != nil {
		return nil, err
	}
	return v, nil
}

// Providers lists the providers, fastest first.
func Providers() (names []string) {
	for i := C.int(0); C.rwf_provider(i) != nil; i++ {
		names = append(names, C.GoString(C.rwf_provider(i)))
	}
	return names
}

// HasNICs reports whether a provider's devices are NICs: a host may have several, and uses all unless some are chosen.
func HasNICs(provider string) bool {
	p := C.CString(provider)
	defer C.free(unsafe.Pointer(p))
	return C.rwf_has_nics(p) != 0
}

// Devices lists a provider's devices.
func Devices(provider string) ([]string, error) {
	p := C.CString(provider)
	defer C.free(unsafe.Pointer(p))
	var buf [16 << 10]C.char
	n, err := call("list devices of "+provider, func() C.int { return C.rwf_list(p, &buf[0], C.size_t(len(buf))) })
	if err != nil || n == 0 {
		return nil, err
	}
	return strings.Split(strings.TrimRight(C.GoString(&buf[0]), "\n"), "\n"), nil
}

// Attr describes a device and its limits.
type Attr struct {
	Provider, Name                                  string
	MaxMRSize                                       uint64
	MaxQP, MaxQPWR, MaxCQ, MaxCQE, MaxMR, MaxInline uint32
	MTU                                             uint32
	Flags                                           DevFlags
}

// Has reports whether the device has a flag.
func (a Attr) Has(flag DevFlags) bool { return a.Flags&flag != 0 }

// Device is an opened device.
type Device struct {
	h    *C.rwf_device
	attr Attr
}

// Open opens a device of a provider. If name is empty, it opens the first. options is "key=value,…", as documented by the provider.
func Open(provider, name, options string) (*Device, error) {
	p, n, o := C.CString(provider), C.CString(name), C.CString(options)
	defer C.free(unsafe.Pointer(p))
	defer C.free(unsafe.Pointer(n))
	defer C.free(unsafe.Pointer(o))
	d := &Device{}
	if err := do("open "+provider, func() C.int { return C.rwf_open(p, n, o, &d.h) }); err != nil {
		return nil, err
	}
	var a C.struct_rwf_device_attr
	C.rwf_query(d.h, &a) // it cannot fail
	d.attr = Attr{
		Provider: C.GoString(&a.provider[0]), Name: C.GoString(&a.name[0]), MaxMRSize: uint64(a.max_mr_size),
		MaxQP: uint32(a.max_qp), MaxQPWR: uint32(a.max_qp_wr), MaxCQ: uint32(a.max_cq), MaxCQE: uint32(a.max_cqe),
		MaxMR: uint32(a.max_mr), MaxInline: uint32(a.max_inline), MTU: uint32(a.mtu), Flags: DevFlags(a.flags),
	}
	return d, nil
}

// Attr returns the device's properties and limits.
func (d *Device) Attr() Attr { return d.attr }

// Handle returns the C device, for the worker's data path.
func (d *Device) Handle() unsafe.Pointer { return unsafe.Pointer(d.h) }

// Close closes the device. It fails while anything opened from it is open.
func (d *Device) Close() error {
	return do("close device "+d.attr.Name, func() C.int { return C.rwf_close(d.h) })
}

// AsyncEvent waits for the device's next event. ok is false after the timeout. It must be called in a loop, because it also accepts
// the peers of passive queue pairs.
func (d *Device) AsyncEvent(timeout time.Duration) (ev AsyncEvent, ok bool, err error) {
	var e C.struct_rwf_async_event
	n, err := call("wait for an event", func() C.int { return C.rwf_get_async_event(d.h, C.int(timeout.Milliseconds()), &e) })
	if err != nil {
		err = fmt.Errorf("device %s: %w", d.attr.Name, err)
	}
	return AsyncEvent{EventType(e._type), uint32(e.qp_num)}, n > 0, err
}

// PD is a protection domain: the memory and queue pairs of one tenant.
type PD struct{ h *C.rwf_pd }

// AllocPD makes a protection domain.
func (d *Device) AllocPD() (*PD, error) {
	pd := &PD{}
	return made(pd, do("allocate protection domain", func() C.int { return C.rwf_alloc_pd(d.h, &pd.h) }))
}

// Handle returns the C protection domain, for the worker's data path.
func (pd *PD) Handle() unsafe.Pointer { return unsafe.Pointer(pd.h) }

// Close frees the protection domain.
func (pd *PD) Close() error {
	return do("deallocate protection domain", func() C.int { return C.rwf_dealloc_pd(pd.h) })
}

// RegisterMR registers length bytes at addr, in memory outside Go's heap. fd and offset identify the memfd behind them. fd is -1
// without a memfd.
func (pd *PD) RegisterMR(addr unsafe.Pointer, length uint64, access Access, fd int, offset uint64) (MR, error) {
	var mr MR
	err := do("register memory", func() C.int {
		return C.rwf_reg_mr(pd.h, addr, C.size_t(length), C.int(access), C.int(fd), C.uint64_t(offset),
			(*C.struct_rwf_mr)(unsafe.Pointer(&mr)))
	})
	return mr, err
}

// DeregisterMR deregisters a memory region.
func (pd *PD) DeregisterMR(mr MR) error {
	return do("deregister memory", func() C.int { return C.rwf_dereg_mr(pd.h, C.uint32_t(mr.LKey)) })
}

// CQ is a completion queue.
type CQ struct{ h *C.rwf_cq }

// CreateCQ makes a completion queue for cqe completions.
func (d *Device) CreateCQ(cqe int) (*CQ, error) {
	cq := &CQ{}
	return made(cq, do("create completion queue", func() C.int { return C.rwf_create_cq(d.h, C.uint32_t(cqe), &cq.h) }))
}

// Handle returns the C completion queue, for the worker's data path.
func (cq *CQ) Handle() unsafe.Pointer { return unsafe.Pointer(cq.h) }

// Close destroys the completion queue. It fails while a queue pair uses it.
func (cq *CQ) Close() error {
	return do("destroy completion queue", func() C.int { return C.rwf_destroy_cq(cq.h) })
}

// Poll makes progress and takes up to len(wc) completions. An error means that the queue is lost, because it overran or its device
// failed.
func (cq *CQ) Poll(wc []WC) (int, error) {
	n := C.rwf_poll_cq(cq.h, (*C.struct_rwf_wc)(unsafe.Pointer(unsafe.SliceData(wc))), C.int(len(wc)))
	if n < 0 {
		return 0, failed("poll completion queue", n)
	}
	return int(n), nil
}

// Arm makes the next Wait return when one of the queue pairs has count completions (a hint), or one in error. A caller arms the
// queue, polls once more, and then waits.
func (cq *CQ) Arm(count int) error {
	if rc := C.rwf_req_notify_cq(cq.h, C.uint32_t(count)); rc < 0 {
		return failed("arm completion queue", rc)
	}
	return nil
}

// Wait sleeps until an armed queue has completions, Wake is called, or the timeout passes. It returns false after the timeout.
func (cq *CQ) Wait(timeout time.Duration) (bool, error) {
	n := C.rwf_wait_cq(cq.h, C.int64_t(timeout.Microseconds()))
	if n < 0 {
		return false, failed("wait for completion queue", n)
	}
	return n > 0, nil
}

// Rest acknowledges solicited messages that the queue has taken. The owner calls it before it turns to other work for some time,
// because the peers' buffers may stay in use until then.
func (cq *CQ) Rest() { C.rwf_rest_cq(cq.h) }

// Wake makes the present or the next Wait return. Any goroutine may call it.
func (cq *CQ) Wake() { C.rwf_wake_cq(cq.h) }

// TCPLocated returns an endpoint of provider tcp with the address at which it is reached if its device listens on every address. It
// returns others as they are.
func TCPLocated(endpoint []byte, at netip.Addr) []byte {
	var ep C.struct_tcp_endpoint
	rc := C.tcp_endpoint_decode(&ep, unsafe.Pointer(unsafe.SliceData(endpoint)), C.size_t(len(endpoint)))
	if !at.IsValid() || rc != 0 || !bool(C.tcp_is_wildcard(&ep)) {
		return endpoint
	}
	ep.ip = 6
	if at.Unmap().Is4() {
		ep.ip = 4
	}
	for i, b := range at.Unmap().AsSlice() {
		ep.addr[i] = C.uint8_t(b)
	}
	return C.GoBytes(unsafe.Pointer(&ep), C.sizeof_struct_tcp_endpoint)
}
