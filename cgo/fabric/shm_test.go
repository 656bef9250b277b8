package fabric

import (
	"bytes"
	"encoding/binary"
	"os"
	"runtime"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/rackweave/rackweave/cgo/fabric/fabrictest"
)

const remote = AccessLocalWrite | AccessRemoteWrite

// must panics on a failed call, in any goroutine.
func must(err error) {
	if err != nil {
		panic(err)
	}
}

// mustGet returns the result of a call that must not fail.
func mustGet[T any](v T, err error) T {
	must(err)
	return v
}

// node is one side: a device with a protection domain and a completion queue, and a goroutine that lets peers in.
type node struct {
	dev    *Device
	pd     *PD
	cq     *CQ
	events [4]atomic.Int64
	stop   atomic.Bool
	done   chan struct{}
}

func newNode(cqe int) *node { return newNodeWith(cqe, "") }

func newNodeWith(cqe int, options string) *node {
	n := &node{dev: mustGet(Open("shm", "", options))}
	n.pd, n.cq = mustGet(n.dev.AllocPD()), mustGet(n.dev.CreateCQ(cqe))
	n.letIn()
	return n
}

// letIn starts the goroutine that lets peers in, and shut ends it.
func (n *node) letIn() {
	n.stop.Store(false)
	n.done = make(chan struct{})
	go func() {
		defer close(n.done)
		for !n.stop.Load() {
			if ev, ok, _ := n.dev.AsyncEvent(20 * time.Millisecond); ok {
				n.events[ev.Type].Add(1)
			}
		}
	}()
}

func (n *node) shut() {
	n.stop.Store(true)
	<-n.done
}

func (n *node) close() {
	n.shut()
	must(n.cq.Close())
	must(n.pd.Close())
	must(n.dev.Close())
}

// memory is a registered memfd.
type memory struct {
	fd   int
	data []byte
	mr   MR
}

func newMemory(n *node, size int, access Access) *memory {
	fd, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		panic(err)
	}
	if err := unix.Ftruncate(fd, int64(size)); err != nil {
		panic(err)
	}
	data, err := unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		panic(err)
	}
	return &memory{fd, data, mustGet(n.pd.RegisterMR(unsafe.Pointer(&data[0]), uint64(size), access, fd, 0))}
}

func (m *memory) close(n *node) {
	must(n.pd.DeregisterMR(m.mr))
	m.unmap()
}

func (m *memory) unmap() {
	unix.Munmap(m.data)
	unix.Close(m.fd)
}

func newQP(n *node, depth int, byRef bool) *QP {
	return mustGet(n.pd.CreateQP(QPConfig{CQ: n.cq, MaxSendWR: depth, MaxRecvWR: depth, MaxInline: 64, ByReference: byRef}))
}

func endpoint(qp *QP) []byte { return mustGet(qp.Endpoint()) }

func connect(active, passive *QP, attr ConnectConfig) {
	must(passive.Connect(endpoint(active), attr))
	attr.Active = true
	must(active.Connect(endpoint(passive), attr))
}

// patient bounds waits that end at once on a quiet machine.
const patient = time.Minute

// polled polls until n completions are there.
func polled(tb testing.TB, cq *CQ, n int) []WC {
	tb.Helper()
	out := make([]WC, n+16)
	got := 0
	for deadline := time.Now().Add(patient); got < n; runtime.Gosched() {
		got += mustGet(cq.Poll(out[got:]))
		if time.Now().After(deadline) {
			tb.Fatalf("%d completions of %d", got, n)
		}
	}
	return out[:got]
}

// progress lets a node move on without taking completions.
func (n *node) progress() { mustGet(n.cq.Poll(nil)) }

// pair is two connected queue pairs, a active and b passive, each with registered memory.
type pair struct {
	a, b   *node
	qa, qb *QP
	ma, mb *memory
}

func newPair(tb testing.TB, depth int, byRef bool) *pair {
	tb.Helper()
	return newPairAttr(tb, depth, byRef, ConnectConfig{})
}

func newPairAttr(tb testing.TB, depth int, byRef bool, attr ConnectConfig) *pair {
	tb.Helper()
	p := &pair{a: newNode(4 * depth), b: newNode(4 * depth)}
	p.qa, p.qb = newQP(p.a, depth, byRef), newQP(p.b, depth, byRef)
	p.ma, p.mb = newMemory(p.a, 1<<20, remote), newMemory(p.b, 1<<20, remote)
	connect(p.qa, p.qb, attr)
	tb.Cleanup(func() {
		must(p.qa.Close())
		must(p.qb.Close())
		p.ma.close(p.a)
		p.mb.close(p.b)
		p.a.close()
		p.b.close()
	})
	return p
}

// write is a request that moves length bytes at offset of a's memory to the same offset of b's.
func (p *pair) write(id uint64, offset, length int, flags SendFlags) SendWR {
	return SendWR{WRID: id, LAddr: p.ma.mr.Addr + uint64(offset), RAddr: p.mb.mr.Addr + uint64(offset), Length: uint32(length),
		LKey: p.ma.mr.LKey, RKey: p.mb.mr.RKey, Imm: uint32(id), Opcode: OpWriteWithImm, Flags: flags}
}

func TestShmWriteLandsWhereItIsAimed(t *testing.T) {
	p := newPair(t, 16, false)
	for _, c := range []struct {
		name           string
		offset, length int
		flags          SendFlags
	}{
		{"small", 3, 5, SendSignaled},
		{"chunk", 4096, 32768, SendSignaled},
		{"streamed chunk", 65536, 32768, SendSignaled | SendPastCache},
		{"streamed, odd ends", 131073, 32771, SendSignaled | SendPastCache},
		{"streamed, short", 200001, 63, SendSignaled | SendPastCache},
		{"inline", 300000, 64, SendSignaled | SendInline},
		{"immediate alone", 0, 0, SendSignaled},
	} {
		for i := range p.ma.data {
			p.ma.data[i], p.mb.data[i] = byte(i*7+len(c.name)), 0
		}
		want := make([]byte, len(p.mb.data))
		copy(want[c.offset:], p.ma.data[c.offset:c.offset+c.length])
		must(p.qb.PostRecv(7, 1))
		mustGet(p.qa.PostSend([]SendWR{p.write(42, c.offset, c.length, c.flags)}))
		wc := polled(t, p.b.cq, 1)[0]
		if wc.Status != 0 || wc.WRID != 7 || wc.Imm != 42 || wc.Opcode != 1 || int(wc.ByteLen) != c.length || wc.Addr != 0 ||
			wc.QPNum != p.qb.Num() {
			t.Fatalf("%s: completion %+v", c.name, wc)
		}
		if !bytes.Equal(want, p.mb.data) {
			t.Fatalf("%s: the target differs", c.name)
		}
		if wc := polled(t, p.a.cq, 1)[0]; wc.Status != 0 || wc.WRID != 42 || wc.Opcode != 0 {
			t.Fatalf("%s: send completion %+v", c.name, wc)
		}
	}
}

func TestShmPayloadByReferenceStaysWithItsSender(t *testing.T) {
	p := newPair(t, 16, true)
	copy(p.ma.data[5000:], "gradient")
	must(p.qb.PostRecv(1, 1))
	mustGet(p.qa.PostSend([]SendWR{p.write(9, 5000, 8, SendSignaled)}))
	wc := polled(t, p.b.cq, 1)[0]
	if wc.SrcAddr != p.ma.mr.Addr+5000 || wc.SrcRKey != p.ma.mr.RKey {
		t.Fatalf("completion %+v", wc)
	}
	if got := string(unsafe.Slice((*byte)(unsafe.Add(nil, wc.Addr)), 8)); got != "gradient" {
		t.Fatalf("payload %q", got)
	}
	if !bytes.Equal(p.mb.data[5000:5008], make([]byte, 8)) {
		t.Fatal("the target was written")
	}
	// The reply goes where the payload came from.
	copy(p.mb.data[100:], "WEIGHTS!")
	must(p.qa.PostRecv(1, 1))
	mustGet(p.qb.PostSend([]SendWR{{LAddr: p.mb.mr.Addr + 100, LKey: p.mb.mr.LKey, RAddr: wc.SrcAddr, RKey: wc.SrcRKey, Length: 8,
		Opcode: OpWriteWithImm,
		Flags:  SendInline}}))
	polled(t, p.a.cq, 2)
	if got := string(p.ma.data[5000:5008]); got != "WEIGHTS!" {
		t.Fatalf("reply %q", got)
	}
}

func TestShmCopyCopies(t *testing.T) {
	src, want := make([]byte, 40<<10), make([]byte, 40<<10)
	for i := range src {
		src[i] = byte(i*131 + i>>8)
	}
	dst := make([]byte, len(src))
	for _, n := range []int{0, 1, 63, 1023, 1024, 1025, 1087, 1151, 4096, 32767, 32768, 32833} {
		for _, from := range []int{0, 1, 17, 64} {
			for to, past := range map[int]bool{0: false, 1: true, 31: false, 63: true, 64: true, 100: false} {
				clear(dst)
				clear(want)
				copy(want[to:], src[from:from+n])
				fabrictest.ShmCopy(dst[to:], src[from:from+n], past)
				if !bytes.Equal(dst, want) {
					t.Fatalf("%d bytes from %d to %d differ, past the cache: %v", n, from, to, past)
				}
			}
		}
	}
}

type shmEndpoint struct {
	QPNum, RecvDepth uint32
	ByReference      bool
	Listener, Cookie [16]byte
}

func decodeShmEndpoint(b []byte) (ep shmEndpoint, ok bool) {
	if len(b) != 48 || string(b[:4]) != "RWSE" {
		return
	}
	le := binary.LittleEndian
	flags := le.Uint16(b[6:])
	ep = shmEndpoint{QPNum: le.Uint32(b[8:]), RecvDepth: le.Uint32(b[12:]), ByReference: flags == 1}
	copy(ep.Listener[:], b[16:32])
	copy(ep.Cookie[:], b[32:])
	return ep, le.Uint16(b[4:]) == 1 && flags <= 1 && ep.RecvDepth >= 1 && ep.RecvDepth <= 16384
}

func FuzzShmEndpoint(f *testing.F) {
	good := make([]byte, 48)
	copy(good, "RWSE\x01\x00\x01\x00\x07\x00\x00\x00\x10\x00\x00\x00")
	f.Add(good)
	f.Add(good[:47])
	f.Add([]byte{})
	f.Add(append(good, 0))
	f.Fuzz(func(t *testing.T, b []byte) {
		if _, want := decodeShmEndpoint(b); fabrictest.ShmEndpointValid(b) != want {
			t.Fatalf("%x is an endpoint: %v, want %v", b, !want, want)
		}
	})
}

func openFiles(tb testing.TB) int {
	tb.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		tb.Fatal(err)
	}
	return len(entries)
}

func TestShmPollingGoesOnWhileQueuePairsComeAndGo(t *testing.T) {
	n := newNode(256)
	defer n.close()
	var wc [4]WC
	// Polling starts with another queue pair each time: destroy them when it stands at each of them.
	for polls := range 7 {
		var qps []*QP
		for range 6 {
			qps = append(qps, newQP(n, 4, false))
		}
		for range polls {
			mustGet(n.cq.Poll(wc[:]))
		}
		for _, qp := range qps {
			must(qp.Close())
			mustGet(n.cq.Poll(wc[:]))
		}
	}
}
