// Package verbs is the one transport contract, in RDMA's own words: devices, protection domains, memory regions, completion
// queues, queue pairs, work requests and completions. The code above it is written once, and providers implement it:
//
//	ibv   libibverbs: hardware NICs and soft-RoCE
//	shm   one host: shared memory
//	tcp   between hosts without RDMA
//
// The contract is cgo/fabric/base/fabric.h. It defines the strictness of providers, and the threads that may make each call. In
// short, a [CQ] and the [QP]s bound to it belong to one owner at a time. Only [CQ.Wake], [PD.RegisterMR] and [Device.AsyncEvent]
// may be called by others. Queue pairs are closed first, then completion queues, memory regions, protection domains, the device.
package verbs

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"github.com/rackweave/rackweave/cgo/fabric"
)

// These are the names of the providers.
const (
	ProviderIBV = "ibv"
	ProviderSHM = "shm"
	ProviderTCP = "tcp"
)

// Providers lists the providers, fastest first.
func Providers() []string { return fabric.Providers() }

// HasNICs reports whether a provider's devices are NICs: a host may have several, and uses all unless some are chosen.
func HasNICs(provider string) bool { return fabric.HasNICs(provider) }

// Located returns a peer's endpoint with the address at which the peer is reached, if it listens on every address and names none.
// It returns others as they are.
func Located(endpoint []byte, at netip.Addr) []byte { return fabric.TCPLocated(endpoint, at) }

// ErrTransport is wrapped by every error of this package.
var ErrTransport = errors.New("transport error")

// Error is a failed call: its name, the errno it returned, and the provider's explanation.
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

// Is matches [ErrTransport]. Unwrap returns the errno, so that it matches too.
func (e *Error) Is(target error) bool { return target == ErrTransport }

// Unwrap returns the errno.
func (e *Error) Unwrap() error { return e.Errno }

// call runs a setup call and converts a negative result to an [Error] with the thread's text.
func call(op string, f func() int) (int, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	n := f()
	if n < 0 {
		return n, &Error{Op: op, Errno: syscall.Errno(-n), Text: fabric.LastError()}
	}
	return n, nil
}

func do(op string, f func() int) error {
	_, err := call(op, f)
	return err
}

// These are the contract's flat structs, shared with C.
type (
	// SendWR is a work request for the send queue. Length 0 sends the immediate alone.
	SendWR = fabric.SendWR
	// WC is a work completion. If Status is not [WCSuccess], only WRID, Status and QPNum are valid.
	WC = fabric.WC
	// MR is a registered memory region. Addr is also the remote address of its first byte.
	MR = fabric.MR
)

// Attr describes a device and its limits.
type Attr struct {
	fabric.DeviceAttr
	Provider, Name string // in place of the arrays of bytes
}

// Has reports whether the device has a flag.
func (a Attr) Has(flag DevFlags) bool { return a.Flags&flag != 0 }

// Devices lists a provider's devices.
func Devices(provider string) ([]string, error) {
	buf := make([]byte, 16<<10)
	n, err := call("list devices of "+provider, func() int { return fabric.List(provider, buf) })
	if err != nil || n == 0 {
		return nil, err
	}
	text, _, _ := strings.Cut(string(buf), "\x00")
	return strings.Split(strings.TrimRight(text, "\n"), "\n"), nil
}

// ProvidersHere lists the providers that this machine can use, fastest first. They have a device whose link is up, if their devices
// have links.
func ProvidersHere() []string {
	var here []string
	for _, p := range Providers() {
		if names, err := Devices(p); err != nil || len(names) == 0 {
			continue
		}
		d, err := Open(p, "", "")
		if errors.Is(err, syscall.ENETDOWN) {
			continue
		}
		here = append(here, p) // use of the device shows its other faults
		if err == nil {
			_ = d.Close() // nothing opened from it is open
		}
	}
	return here
}

// Device is an opened device.
type Device struct {
	h    fabric.Device
	attr Attr
}

// Open opens a device of a provider. If name is empty, it opens the first. options is "key=value,…", as documented by the provider.
func Open(provider, name, options string) (*Device, error) {
	d := &Device{}
	a := &d.attr.DeviceAttr
	err := do("open "+provider, func() int {
		var rc int
		if d.h, rc = fabric.Open(provider, name, options); rc < 0 {
			return rc
		}
		return fabric.Query(d.h, a)
	})
	if err != nil {
		return nil, err
	}
	d.attr.Provider, d.attr.Name = cString(a.Provider[:]), cString(a.Name[:])
	return d, nil
}

func cString(b []byte) string {
	s, _, _ := strings.Cut(string(b), "\x00")
	return s
}

// Attr returns the device's properties and limits.
func (d *Device) Attr() Attr { return d.attr }

// Handle returns the C device, for the worker's data path.
func (d *Device) Handle() unsafe.Pointer { return unsafe.Pointer(d.h) }

// Close closes the device. It fails while anything opened from it is open.
func (d *Device) Close() error {
	return do("close device "+d.attr.Name, func() int { return fabric.Close(d.h) })
}

// LinkSettles is the time for which a link must be up before both ends use it again, because a link that comes up often goes down
// once more.
const LinkSettles = 500 * time.Millisecond

// AsyncEvent is an asynchronous event of a device.
type AsyncEvent = fabric.AsyncEvent

// AsyncEvent waits for the device's next event. ok is false after the timeout. It must be called in a loop, because it also accepts
// the peers of passive queue pairs.
func (d *Device) AsyncEvent(timeout time.Duration) (ev AsyncEvent, ok bool, err error) {
	n, err := call("wait for an event", func() int { return fabric.GetAsyncEvent(d.h, int(timeout.Milliseconds()), &ev) })
	if err != nil {
		err = fmt.Errorf("device %s: %w", d.attr.Name, err)
	}
	return ev, n > 0, err
}

// PD is a protection domain: the memory and queue pairs of one tenant.
type PD struct{ h fabric.PD }

// AllocPD makes a protection domain.
func (d *Device) AllocPD() (*PD, error) {
	pd := &PD{}
	err := do("allocate protection domain", func() (rc int) { pd.h, rc = fabric.AllocPD(d.h); return })
	if err != nil {
		return nil, err
	}
	return pd, nil
}

// Handle returns the C protection domain, for the worker's data path.
func (pd *PD) Handle() unsafe.Pointer { return unsafe.Pointer(pd.h) }

// Close frees the protection domain.
func (pd *PD) Close() error {
	return do("deallocate protection domain", func() int { return fabric.DeallocPD(pd.h) })
}

// RegisterMR registers length bytes at addr, in memory outside Go's heap. fd and offset identify the memfd behind them. fd is -1
// without a memfd.
func (pd *PD) RegisterMR(addr unsafe.Pointer, length uint64, access Access, fd int, offset uint64) (MR, error) {
	var mr MR
	err := do("register memory", func() int { return fabric.RegMR(pd.h, addr, length, access, fd, offset, &mr) })
	return mr, err
}

// DeregisterMR deregisters a memory region.
func (pd *PD) DeregisterMR(mr MR) error {
	return do("deregister memory", func() int { return fabric.DeregMR(pd.h, mr.LKey) })
}

// CQ is a completion queue.
type CQ struct{ h fabric.CQ }

// CreateCQ makes a completion queue for cqe completions.
func (d *Device) CreateCQ(cqe int) (*CQ, error) {
	cq := &CQ{}
	err := do("create completion queue", func() (rc int) { cq.h, rc = fabric.CreateCQ(d.h, uint32(cqe)); return })
	if err != nil {
		return nil, err
	}
	return cq, nil
}

// Handle returns the C completion queue, for the worker's data path.
func (cq *CQ) Handle() unsafe.Pointer { return unsafe.Pointer(cq.h) }

// Close destroys the completion queue. It fails while a queue pair uses it.
func (cq *CQ) Close() error {
	return do("destroy completion queue", func() int { return fabric.DestroyCQ(cq.h) })
}

// Poll makes progress and takes up to len(wc) completions. An error means that the queue is lost, because it overran or its device
// failed.
func (cq *CQ) Poll(wc []WC) (int, error) {
	n := fabric.PollCQ(cq.h, wc)
	if n < 0 {
		return 0, &Error{Op: "poll completion queue", Errno: syscall.Errno(-n), Text: fabric.LastError()}
	}
	return n, nil
}

// Arm makes the next Wait return when the queue has count completions (a hint), or one in error. A caller arms the queue, polls
// once more, and then waits.
func (cq *CQ) Arm(count int) error {
	if rc := fabric.ReqNotifyCQ(cq.h, uint32(count)); rc < 0 {
		return &Error{Op: "arm completion queue", Errno: syscall.Errno(-rc), Text: fabric.LastError()}
	}
	return nil
}

// Wait sleeps until an armed queue has completions, Wake is called, or the timeout passes. It returns false after the timeout.
func (cq *CQ) Wait(timeout time.Duration) (bool, error) {
	n := fabric.WaitCQ(cq.h, timeout.Microseconds())
	if n < 0 {
		return false, &Error{Op: "wait for completion queue", Errno: syscall.Errno(-n), Text: fabric.LastError()}
	}
	return n > 0, nil
}

// Wake makes the present or the next Wait return. Any goroutine may call it.
func (cq *CQ) Wake() { fabric.WakeCQ(cq.h) }

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
type QP struct{ h fabric.QP }

// CreateQP makes a queue pair in a protection domain.
func (pd *PD) CreateQP(c QPConfig) (*QP, error) {
	init := fabric.QPInit{
		CQ:        c.CQ.h,
		MaxSendWR: uint32(c.MaxSendWR), MaxRecvWR: uint32(c.MaxRecvWR), MaxInline: uint32(c.MaxInline), Peer: uint32(c.Peer),
	}
	if c.ByReference {
		init.Flags |= fabric.QPByReference
	}
	if c.ImmOnly {
		init.Flags |= fabric.QPImmOnly
	}
	qp := &QP{}
	err := do("create queue pair", func() (rc int) { qp.h, rc = fabric.CreateQP(pd.h, &init); return })
	if err != nil {
		return nil, err
	}
	return qp, nil
}

// Handle returns the C queue pair, for the worker's data path.
func (qp *QP) Handle() unsafe.Pointer { return unsafe.Pointer(qp.h) }

// Close destroys the queue pair and drops its completions that are not yet polled.
func (qp *QP) Close() error {
	return do("destroy queue pair", func() int { return fabric.DestroyQP(qp.h) })
}

// Num returns the queue pair's number.
func (qp *QP) Num() uint32 { return fabric.QPNum(qp.h) }

// State returns the queue pair's present state.
func (qp *QP) State() QPState { return fabric.State(qp.h) }

// Endpoint returns the queue pair's endpoint, which the peer needs to connect. Only the provider interprets it.
func (qp *QP) Endpoint() ([]byte, error) {
	buf := make([]byte, fabric.EndpointMax)
	n, err := call("read endpoint", func() int { return fabric.QPEndpoint(qp.h, buf) })
	if err != nil {
		return nil, err
	}
	return buf[:n], nil
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
	attr := fabric.ConnectAttr{
		TimeoutMS: uint32(c.Timeout.Milliseconds()), RNRTimeoutMS: uint32(c.RNRTimeout.Milliseconds()),
		AckTimeoutMS: uint32(c.AckTimeout.Milliseconds()),
	}
	if c.Active {
		attr.Active = 1
	}
	if c.Active && c.Cancel != nil {
		cancelled, cancel, err := os.Pipe()
		if err != nil {
			return fmt.Errorf("connect queue pair: %w", err)
		}
		defer cancelled.Close()
		attr.CancelFD = int32(cancelled.Fd())
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
	return do("connect queue pair", func() int { return fabric.ConnectQP(qp.h, peer, &attr) })
}

// Fail moves the queue pair to ERR and flushes all outstanding requests. The peer sees an error.
func (qp *QP) Fail() error {
	return do("fail queue pair", func() int { return fabric.FailQP(qp.h) })
}

// PostSend posts work requests in order, with one doorbell. It returns the number of posted requests, with an error if not all were
// posted.
func (qp *QP) PostSend(wr []SendWR) (int, error) {
	n := fabric.PostSend(qp.h, wr)
	if n == len(wr) {
		return n, nil
	}
	return max(n, 0), qp.postError("post send", n)
}

// MapAll finds the addresses in this process of a range of length bytes at each queue pair's peer, with one call into C for up to
// 64 of them. It reports whether all are mapped. out is 0 for a range that may not be written, before which earlier requests must
// land, or whose device lacks [DevMaps]. The caller then posts ordinary writes. An address is valid until the next call on its
// queue pair or one of its completion queues. A write with [SendPlaced] announces data stored there. The caller puts a store fence
// between streaming stores and that post.
func MapAll(qps []*QP, rkeys []uint32, raddrs []uint64, length uint32, out []uint64) bool {
	const batch = 64
	var handles [batch]fabric.QP
	mapped := 0
	for begin := 0; begin < len(qps); begin += batch {
		end := min(begin+batch, len(qps))
		for i, qp := range qps[begin:end] {
			handles[i] = qp.h
		}
		mapped += fabric.MapAll(handles[:end-begin], rkeys[begin:end], raddrs[begin:end], length, out[begin:end])
	}
	return mapped == len(qps)
}

// PostRecv posts n receives without buffers, all with this work request id.
func (qp *QP) PostRecv(wrID uint64, n int) error {
	if rc := fabric.PostRecv(qp.h, wrID, n); rc < 0 {
		return qp.postError("post receive", rc)
	}
	return nil
}

func (qp *QP) postError(op string, rc int) error {
	errno := syscall.ENOMEM
	if rc < 0 {
		errno = syscall.Errno(-rc)
	}
	return &Error{Op: fmt.Sprintf("%s on queue pair 0x%x", op, qp.Num()), Errno: errno, Text: fabric.LastError()}
}
