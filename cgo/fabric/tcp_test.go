package fabric_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/rackweave/rackweave/cgo/fabric"
)

const accessAll = fabric.AccessLocalWrite | fabric.AccessRemoteWrite

// patience bounds every wait of these tests: far more than any of them needs on a loaded machine.
const patience = 10 * time.Second

// memory maps n bytes that are not Go's.
func memory(t testing.TB, n int) []byte {
	t.Helper()
	b, err := syscall.Mmap(-1, 0, n, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { syscall.Munmap(b) })
	return b
}

func fillRandom(b []byte, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 1))
	for i := 0; i+8 <= len(b); i += 8 {
		binary.LittleEndian.PutUint64(b[i:], r.Uint64())
	}
}

func check(t testing.TB, rc int, what string) {
	t.Helper()
	if rc < 0 {
		t.Fatalf("%s: %v: %s", what, syscall.Errno(-rc), fabric.LastError())
	}
}

// node is a device with one protection domain and completion queue, and a goroutine that lets peers in.
type node struct {
	t   testing.TB
	dev fabric.Device
	pd  fabric.PD
	cq  fabric.CQ

	mu     sync.Mutex
	events []fabric.AsyncEvent
}

func newNode(t testing.TB, options string, cqe uint32) *node {
	t.Helper()
	n := &node{t: t}
	var rc int
	n.dev, rc = fabric.Open("tcp", "", options)
	check(t, rc, "open")
	n.pd, rc = fabric.AllocPD(n.dev)
	check(t, rc, "allocate protection domain")
	n.cq, rc = fabric.CreateCQ(n.dev, cqe)
	check(t, rc, "create completion queue")
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			var ev fabric.AsyncEvent
			if fabric.GetAsyncEvent(n.dev, 20, &ev) == 1 {
				n.mu.Lock()
				n.events = append(n.events, ev)
				n.mu.Unlock()
			}
		}
	}()
	t.Cleanup(func() {
		cancel()
		<-done
		check(t, fabric.DestroyCQ(n.cq), "destroy completion queue")
		check(t, fabric.DeallocPD(n.pd), "deallocate protection domain")
		check(t, fabric.Close(n.dev), "close")
	})
	return n
}

func (n *node) sawEvent(kind fabric.EventType, qpNum uint32) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, ev := range n.events {
		if ev.Type == kind && ev.QPNum == qpNum {
			return true
		}
	}
	return false
}

func (n *node) register(b []byte, access fabric.Access) fabric.MR {
	n.t.Helper()
	var mr fabric.MR
	check(n.t, fabric.RegMR(n.pd, unsafe.Pointer(&b[0]), uint64(len(b)), access, -1, 0, &mr), "register memory")
	n.t.Cleanup(func() { fabric.DeregMR(n.pd, mr.LKey) })
	return mr
}

func (n *node) newQP(send, recv uint32) fabric.QP {
	n.t.Helper()
	qp, rc := fabric.CreateQP(n.pd, &fabric.QPInit{CQ: n.cq, MaxSendWR: send, MaxRecvWR: recv, MaxInline: 64})
	check(n.t, rc, "create queue pair")
	n.t.Cleanup(func() { fabric.DestroyQP(qp) })
	return qp
}

// poll takes want completions, or fails the test.
func (n *node) poll(want int) []fabric.WC {
	n.t.Helper()
	var all []fabric.WC
	for end := time.Now().Add(patience); len(all) < want; {
		wc := make([]fabric.WC, want-len(all))
		got := fabric.PollCQ(n.cq, wc)
		check(n.t, got, "poll")
		all = append(all, wc[:got]...)
		if got == 0 {
			if time.Now().After(end) {
				n.t.Fatalf("%d of %d completions came: %+v", len(all), want, all)
			}
			runtime.Gosched()
		}
	}
	return all
}

// quiet makes progress for a moment and fails the test if anything completes.
func (n *node) quiet(d time.Duration) {
	n.t.Helper()
	for end := time.Now().Add(d); time.Now().Before(end); {
		wc := make([]fabric.WC, 1)
		if got := fabric.PollCQ(n.cq, wc); got != 0 {
			n.t.Fatalf("poll: %d, %+v", got, wc)
		}
		time.Sleep(time.Millisecond)
	}
}

func endpoint(t testing.TB, qp fabric.QP) []byte {
	t.Helper()
	buf := make([]byte, fabric.EndpointMax)
	n := fabric.QPEndpoint(qp, buf)
	check(t, n, "endpoint")
	return buf[:n]
}

var testAttr = fabric.ConnectAttr{TimeoutMS: 5000, RNRTimeoutMS: 1000, AckTimeoutMS: 1000}

// connect joins two queue pairs; a is the active one.
func connect(t testing.TB, a, b fabric.QP, attr fabric.ConnectAttr) {
	t.Helper()
	check(t, fabric.ConnectQP(b, endpoint(t, a), &attr), "connect passive")
	attr.Active = 1
	check(t, fabric.ConnectQP(a, endpoint(t, b), &attr), "connect active")
	waitState(t, b, fabric.StateRTS)
}

func waitState(t testing.TB, qp fabric.QP, state fabric.QPState) {
	t.Helper()
	for end := time.Now().Add(patience); fabric.State(qp) != state; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("queue pair is in state %d, not %d", fabric.State(qp), state)
		}
	}
}

// rig is two connected queue pairs with memory on both sides: from a's source to b's target.
type rig struct {
	a, b           *node
	qa, qb         fabric.QP
	source, target []byte
	src, dst       fabric.MR
}

func newRig(t testing.TB, bytes int, attr fabric.ConnectAttr) *rig {
	t.Helper()
	return newRigWith(t, "", bytes, attr)
}

func newRigWith(t testing.TB, options string, bytes int, attr fabric.ConnectAttr) *rig {
	t.Helper()
	r := &rig{a: newNode(t, options, 1024), b: newNode(t, options, 1024), source: memory(t, bytes), target: memory(t, bytes)}
	r.src, r.dst = r.a.register(r.source, accessAll), r.b.register(r.target, accessAll)
	r.qa, r.qb = r.a.newQP(64, 64), r.b.newQP(64, 64)
	fillRandom(r.source, uint64(bytes))
	connect(t, r.qa, r.qb, attr)
	return r
}

// write is a signaled write with immediate of length bytes at offset to the same offset.
func (r *rig) write(offset, length int, imm uint32) fabric.SendWR {
	return fabric.SendWR{WRID: uint64(imm), LAddr: r.src.Addr + uint64(offset), RAddr: r.dst.Addr + uint64(offset),
		Length: uint32(length), LKey: r.src.LKey, RKey: r.dst.RKey, Imm: imm,
		Opcode: fabric.OpWriteWithImm, Flags: fabric.SendSignaled}
}

func post(t testing.TB, qp fabric.QP, wr ...fabric.SendWR) {
	t.Helper()
	if n := fabric.PostSend(qp, wr); n != len(wr) {
		t.Fatalf("posted %d of %d: %s", n, len(wr), fabric.LastError())
	}
}

// pollBoth polls both nodes in turn, as two processes would, until each has what it wants.
func pollBoth(t testing.TB, a, b *node, wantA, wantB int) (wa, wb []fabric.WC) {
	t.Helper()
	for end := time.Now().Add(patience); len(wa) < wantA || len(wb) < wantB; {
		wc := make([]fabric.WC, 64)
		n := fabric.PollCQ(a.cq, wc)
		check(t, n, "poll")
		wa = append(wa, wc[:n]...)
		m := fabric.PollCQ(b.cq, wc)
		check(t, m, "poll")
		wb = append(wb, wc[:m]...)
		if time.Now().After(end) {
			t.Fatalf("%d of %d and %d of %d completions came:\n%+v\n%+v", len(wa), wantA, len(wb), wantB, wa, wb)
		}
	}
	return wa, wb
}

func wantStatus(t testing.TB, wc fabric.WC, id uint64, status fabric.Status) {
	t.Helper()
	if wc.WRID != id || wc.Status != status {
		t.Fatalf("completion of %d is %q, want %d with %q", wc.WRID, wc.Status, id, status)
	}
}

func TestTCPPlacesMessagesOfAnySizeInOrder(t *testing.T) {
	sizes := []int{0, 1, 63, 64, 4095, 4096, 4097, 32 << 10, 100_001, 512 << 10, 1<<20 + 1, 5<<20 + 7}
	r := newRig(t, 16<<20, testAttr)
	check(t, fabric.PostRecv(r.qb, 77, len(sizes)), "post receive")
	var wrs []fabric.SendWR
	offset := 3
	for i, size := range sizes {
		wrs = append(wrs, r.write(offset, size, uint32(i)))
		offset += size
	}
	post(t, r.qa, wrs...)
	sent, got := pollBoth(t, r.a, r.b, len(sizes), len(sizes))
	for i, size := range sizes {
		wantStatus(t, sent[i], uint64(i), fabric.WCSuccess)
		wantStatus(t, got[i], 77, fabric.WCSuccess)
		if got[i].Imm != uint32(i) || got[i].ByteLen != uint32(size) || got[i].Opcode != fabric.WCRecvImm ||
			got[i].QPNum != fabric.QPNum(r.qb) {
			t.Errorf("message %d arrived as %+v", i, got[i])
		}
	}
	if !bytes.Equal(r.target[3:offset], r.source[3:offset]) {
		t.Error("the target differs from the source")
	}
	if r.target[0] != 0 || r.target[offset] != 0 {
		t.Error("bytes beside the target were touched")
	}
}

func TestTCPPlainWritesAndInlineNeedNoReceive(t *testing.T) {
	r := newRig(t, 1<<20, testAttr)
	w := r.write(0, 1<<20, 1)
	w.Opcode = fabric.OpWrite
	small := []byte("inline payload")
	post(t, r.qa, w, fabric.SendWR{WRID: 2, LAddr: uint64(uintptr(unsafe.Pointer(&small[0]))), RAddr: r.dst.Addr, RKey: r.dst.RKey,
		Length: uint32(len(small)), Opcode: fabric.OpWrite, Flags: fabric.SendSignaled | fabric.SendInline})
	want := append([]byte(nil), small...)
	clear(small) // the source is the caller's again
	sent, _ := pollBoth(t, r.a, r.b, 2, 0)
	wantStatus(t, sent[0], 1, fabric.WCSuccess)
	wantStatus(t, sent[1], 2, fabric.WCSuccess)
	if !bytes.Equal(r.target[:len(want)], want) || !bytes.Equal(r.target[len(want):], r.source[len(want):]) {
		t.Error("the target differs from the source")
	}
}

func TestTCPStreamsBothWaysAtOnce(t *testing.T) {
	const chunk, depth, total = 32 << 10, 32, 600
	r := newRig(t, chunk*depth*2, testAttr)
	nodes, qps := [2]*node{r.a, r.b}, [2]fabric.QP{r.qa, r.qb}
	out, in := [2]fabric.MR{r.src, r.dst}, [2]fabric.MR{r.dst, r.src}
	var done [2]chan error
	var finished atomic.Int32
	for side := range 2 {
		check(t, fabric.PostRecv(qps[side], 0, 64), "post receive")
		done[side] = make(chan error, 1)
	}
	for side := range 2 {
		go func() {
			done[side] <- func() error {
				posted, completed, received := 0, 0, 0
				end := time.Now().Add(patience)
				// Who is done goes on polling: the other's last sends complete by that.
				for counted := false; finished.Load() < 2; {
					if !counted && completed == total && received == total {
						counted = true
						finished.Add(1)
					}
					for posted < total && posted-completed < depth {
						// a sends from its lower half to b's lower half, b from its upper half to a's.
						off := uint64(side*chunk*depth + posted%depth*chunk)
						wr := []fabric.SendWR{{WRID: uint64(posted), LAddr: out[side].Addr + off, RAddr: in[side].Addr + off,
							Length: chunk,
							LKey:   out[side].LKey, RKey: in[side].RKey, Imm: uint32(posted),
							Opcode: fabric.OpWriteWithImm, Flags: fabric.SendSignaled}}
						if fabric.PostSend(qps[side], wr) != 1 {
							return fmt.Errorf("post: %s", fabric.LastError())
						}
						posted++
					}
					wc := make([]fabric.WC, 16)
					n := fabric.PollCQ(nodes[side].cq, wc)
					for _, c := range wc[:max(n, 0)] {
						switch {
						case c.Status != fabric.WCSuccess:
							return fmt.Errorf("completion %+v", c)
						case c.Opcode == fabric.WCSend:
							completed++
						case c.Imm != uint32(received):
							return fmt.Errorf("immediate %d, want %d", c.Imm, received)
						default:
							received++
							fabric.PostRecv(qps[side], 0, 1)
						}
					}
					if n < 0 || time.Now().After(end) {
						return fmt.Errorf("poll %d after %d sent, %d received", n, completed, received)
					}
				}
				return nil
			}()
		}()
	}
	for side := range 2 {
		select {
		case err := <-done[side]:
			if err != nil {
				t.Fatal(err)
			}
		case <-time.After(patience):
			t.Fatal("the exchange hangs")
		}
	}
	if half := chunk * depth; !bytes.Equal(r.source[:half], r.target[:half]) || !bytes.Equal(r.source[half:], r.target[half:]) {
		t.Error("the memories differ")
	}
}

func TestTCPRooflineMovesItsBytes(t *testing.T) {
	r := fabric.TCPRoofline{Connections: 3, Hubs: 2, Peers: 3, Block: 64 << 10, Span: 100_000, Bytes: 3 << 20, Timeout: patience}
	if took, err := r.Run(); err != nil || took <= 0 {
		t.Errorf("%v, %v", took, err)
	}
	r.Peers = 4
	if _, err := r.Run(); err == nil {
		t.Error("more threads than connections: no error")
	}
}

func allZero(b []byte) bool {
	for _, v := range b {
		if v != 0 {
			return false
		}
	}
	return true
}

func TestTCPFullQueuesAreErrors(t *testing.T) {
	runtime.LockOSThread() // for LastError
	defer runtime.UnlockOSThread()
	r := newRig(t, 1<<20, testAttr)
	wrs := make([]fabric.SendWR, 70)
	for i := range wrs {
		wrs[i] = r.write(0, 64, uint32(i))
		wrs[i].Opcode = fabric.OpWrite
		wrs[i].Flags = 0
	}
	wrs[62].Flags = fabric.SendSignaled
	if n := fabric.PostSend(r.qa, wrs); n != 64 || !strings.Contains(fabric.LastError(), "64 work requests") {
		t.Fatalf("posted %d of 70 into 64 entries: %s", n, fabric.LastError())
	}
	if n := fabric.PostSend(r.qa, wrs[:1]); n != -int(syscall.ENOMEM) {
		t.Fatalf("posting into a full queue: %d", n)
	}
	// Unsignaled sends hold their entries until a later completion is polled; the one after it still does.
	sent, _ := pollBoth(t, r.a, r.b, 1, 0)
	wantStatus(t, sent[0], 62, fabric.WCSuccess)
	if n := fabric.PostSend(r.qa, wrs); n != 63 {
		t.Fatalf("posted %d with 63 entries free", n)
	}
	if rc := fabric.PostRecv(r.qb, 0, 65); rc != -int(syscall.ENOMEM) {
		t.Fatalf("65 receives into 64 entries: %d", rc)
	}
	check(t, fabric.PostRecv(r.qb, 0, 64), "post receive")
	if rc := fabric.PostRecv(r.qb, 0, 1); rc != -int(syscall.ENOMEM) {
		t.Fatalf("a 65th receive: %d", rc)
	}
}

func TestTCPManyQueuePairsShareAQueueFairly(t *testing.T) {
	const pairs, messages, size = 40, 20, 8 << 10
	a, b := newNode(t, "", 4096), newNode(t, "", 4096)
	source, target := memory(t, pairs*messages*size), memory(t, pairs*messages*size)
	fillRandom(source, 5)
	src, dst := a.register(source, accessAll), b.register(target, accessAll)
	var qa, qb [pairs]fabric.QP
	for i := range pairs {
		qa[i], qb[i] = a.newQP(messages, 1), b.newQP(1, messages)
		check(t, fabric.PostRecv(qb[i], uint64(i), messages), "post receive")
		connect(t, qa[i], qb[i], testAttr)
	}
	for i := range pairs {
		wrs := make([]fabric.SendWR, messages)
		for m := range wrs {
			off := uint64((i*messages + m) * size)
			wrs[m] = fabric.SendWR{LAddr: src.Addr + off, LKey: src.LKey, RAddr: dst.Addr + off, RKey: dst.RKey, Length: size,
				Imm: uint32(m), Opcode: fabric.OpWriteWithImm, Flags: fabric.SendSignaled}
		}
		post(t, qa[i], wrs...)
	}
	_, got := pollBoth(t, a, b, pairs*messages, pairs*messages)
	next := map[uint64]uint32{}
	for _, c := range got {
		if c.Imm != next[c.WRID] {
			t.Fatalf("queue pair %d delivered %d, want %d", c.WRID, c.Imm, next[c.WRID])
		}
		next[c.WRID]++
	}
	if !bytes.Equal(source, target) {
		t.Error("the target differs from the source")
	}
}

func TestTCPWaitSleepsUntilSomethingComesOrAWake(t *testing.T) {
	r := newRig(t, 4096, testAttr)
	check(t, fabric.PostRecv(r.qb, 1, 4), "post receive")
	start := time.Now()
	if rc := fabric.WaitCQ(r.b.cq, 30_000); rc != 0 || time.Since(start) < 30*time.Millisecond {
		t.Fatalf("waiting for nothing: %d after %v", rc, time.Since(start))
	}
	go func() { time.Sleep(20 * time.Millisecond); fabric.WakeCQ(r.b.cq) }()
	if rc := fabric.WaitCQ(r.b.cq, patience.Microseconds()); rc != 1 {
		t.Fatalf("waiting for a wake: %d", rc)
	}
	go func() {
		time.Sleep(20 * time.Millisecond)
		fabric.PostSend(r.qa, []fabric.SendWR{r.write(0, 8, 1), r.write(0, 8, 2)})
	}()
	check(t, fabric.ReqNotifyCQ(r.b.cq, 2), "arm")
	if rc := fabric.WaitCQ(r.b.cq, patience.Microseconds()); rc != 1 {
		t.Fatalf("waiting for two messages: %d", rc)
	}
	r.b.poll(2)
	// Fewer than asked for are handed over after a moment, not at the timeout.
	go func() { time.Sleep(20 * time.Millisecond); fabric.PostSend(r.qa, []fabric.SendWR{r.write(0, 8, 3)}) }()
	check(t, fabric.ReqNotifyCQ(r.b.cq, 3), "arm")
	if rc := fabric.WaitCQ(r.b.cq, patience.Microseconds()); rc != 1 {
		t.Fatalf("waiting for one of three messages: %d", rc)
	}
	r.b.poll(1)
}

func TestTCPDevicesAreThisHostsAddresses(t *testing.T) {
	buf := make([]byte, 4096)
	n := fabric.List("tcp", buf)
	names := strings.Split(string(buf[:bytes.IndexByte(buf, 0)]), "\n")
	if n != len(names) || !strings.Contains(strings.Join(names, " "), "127.0.0.1") {
		t.Fatalf("%d devices: %q", n, names)
	}
	for _, name := range names {
		dev, rc := fabric.Open("tcp", name, "")
		check(t, rc, "open "+name)
		var attr fabric.DeviceAttr
		check(t, fabric.Query(dev, &attr), "query")
		if got := string(attr.Name[:bytes.IndexByte(attr.Name[:], 0)]); got != name {
			t.Errorf("device %q says it is %q", name, got)
		}
		check(t, fabric.Close(dev), "close")
	}
}

func openDescriptors(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

func TestTCPLeaksNoDescriptors(t *testing.T) {
	newRigAndClose := func() {
		t.Run("rig", func(t *testing.T) {
			r := newRig(t, 4096, testAttr)
			dialRaw(t, endpoint(t, r.qb))
			check(t, fabric.ConnectQP(r.b.newQP(1, 1), endpoint(t, r.qa), &testAttr), "connect passive")
		})
	}
	newRigAndClose()
	before := openDescriptors(t)
	for range 5 {
		newRigAndClose()
	}
	// Fewer are no leak: the collector closes what earlier tests left.
	if after := openDescriptors(t); after > before {
		t.Errorf("%d descriptors before, %d after", before, after)
	}
}

// poll(2) takes no more entries than a process may have files, used or not.
func TestTCPConnectsWhereFewFilesMayBeOpen(t *testing.T) {
	var old syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &old); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: 64, Max: old.Max}); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &old); err != nil {
			t.Error(err)
		}
	}()
	newRig(t, 64, fabric.ConnectAttr{TimeoutMS: 2000})
}

func TestTCPHotCallsDoNotAllocate(t *testing.T) {
	r := newRig(t, 1<<20, testAttr)
	wr := []fabric.SendWR{r.write(0, 4096, 1)}
	wa, wb := make([]fabric.WC, 4), make([]fabric.WC, 4)
	allocs := testing.AllocsPerRun(50, func() {
		fabric.PostRecv(r.qb, 1, 1)
		fabric.PostSend(r.qa, wr)
		for sent, got := 0, 0; sent < 1 || got < 1; {
			sent += fabric.PollCQ(r.a.cq, wa)
			got += fabric.PollCQ(r.b.cq, wb)
		}
	})
	if allocs != 0 {
		t.Errorf("%v allocations per message", allocs)
	}
}
