package fabric_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
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
const patience = time.Minute

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

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// node is a device with one protection domain and completion queue, and a goroutine that lets peers in.
type node struct {
	t   testing.TB
	dev *fabric.Device
	pd  *fabric.PD
	cq  *fabric.CQ

	mu     sync.Mutex
	events []fabric.AsyncEvent
}

func newNode(t testing.TB, options string, cqe int) *node {
	t.Helper()
	n := &node{t: t}
	var err error
	n.dev, err = fabric.Open("tcp", "", options)
	check(t, err)
	n.pd, err = n.dev.AllocPD()
	check(t, err)
	n.cq, err = n.dev.CreateCQ(cqe)
	check(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			if ev, ok, _ := n.dev.AsyncEvent(20 * time.Millisecond); ok {
				n.mu.Lock()
				n.events = append(n.events, ev)
				n.mu.Unlock()
			}
		}
	}()
	t.Cleanup(func() {
		cancel()
		<-done
		check(t, n.cq.Close())
		check(t, n.pd.Close())
		check(t, n.dev.Close())
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
	mr, err := n.pd.RegisterMR(unsafe.Pointer(&b[0]), uint64(len(b)), access, -1, 0)
	check(n.t, err)
	n.t.Cleanup(func() { n.pd.DeregisterMR(mr) })
	return mr
}

func (n *node) newQP(send, recv int) *fabric.QP {
	n.t.Helper()
	qp, err := n.pd.CreateQP(fabric.QPConfig{CQ: n.cq, MaxSendWR: send, MaxRecvWR: recv, MaxInline: 64})
	check(n.t, err)
	n.t.Cleanup(func() { qp.Close() })
	return qp
}

// poll takes want completions, or fails the test.
func (n *node) poll(want int) []fabric.WC {
	n.t.Helper()
	var all []fabric.WC
	for end := time.Now().Add(patience); len(all) < want; {
		wc := make([]fabric.WC, want-len(all))
		got, err := n.cq.Poll(wc)
		check(n.t, err)
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
		if got, err := n.cq.Poll(wc); got != 0 || err != nil {
			n.t.Fatalf("poll: %d, %v, %+v", got, err, wc)
		}
		time.Sleep(time.Millisecond)
	}
}

func endpoint(t testing.TB, qp *fabric.QP) []byte {
	t.Helper()
	e, err := qp.Endpoint()
	check(t, err)
	return e
}

var testAttr = fabric.ConnectConfig{Timeout: 5 * time.Second, RNRTimeout: time.Second, AckTimeout: time.Second}

// connect joins two queue pairs; a is the active one.
func connect(t testing.TB, a, b *fabric.QP, attr fabric.ConnectConfig) {
	t.Helper()
	check(t, b.Connect(endpoint(t, a), attr))
	attr.Active = true
	check(t, a.Connect(endpoint(t, b), attr))
	waitState(t, b, fabric.StateRTS)
}

func waitState(t testing.TB, qp *fabric.QP, state fabric.QPState) {
	t.Helper()
	for end := time.Now().Add(patience); qp.State() != state; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("queue pair is in state %d, not %d", qp.State(), state)
		}
	}
}

// rig is two connected queue pairs with memory on both sides: from a's source to b's target.
type rig struct {
	a, b           *node
	qa, qb         *fabric.QP
	source, target []byte
	src, dst       fabric.MR
}

func newRig(t testing.TB, bytes int, attr fabric.ConnectConfig) *rig {
	t.Helper()
	return newRigWith(t, "", bytes, attr)
}

func newRigWith(t testing.TB, options string, bytes int, attr fabric.ConnectConfig) *rig {
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

func post(t testing.TB, qp *fabric.QP, wr ...fabric.SendWR) {
	t.Helper()
	_, err := qp.PostSend(wr)
	check(t, err)
}

// pollBoth polls both nodes in turn, as two processes would, until each has what it wants.
func pollBoth(t testing.TB, a, b *node, wantA, wantB int) (wa, wb []fabric.WC) {
	t.Helper()
	for end := time.Now().Add(patience); len(wa) < wantA || len(wb) < wantB; {
		wc := make([]fabric.WC, 64)
		n, err := a.cq.Poll(wc)
		check(t, err)
		wa = append(wa, wc[:n]...)
		m, err := b.cq.Poll(wc)
		check(t, err)
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
	check(t, r.qb.PostRecv(77, len(sizes)))
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
			got[i].QPNum != r.qb.Num() {
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
	nodes, qps := [2]*node{r.a, r.b}, [2]*fabric.QP{r.qa, r.qb}
	out, in := [2]fabric.MR{r.src, r.dst}, [2]fabric.MR{r.dst, r.src}
	var done [2]chan error
	var finished atomic.Int32
	for side := range 2 {
		check(t, qps[side].PostRecv(0, 64))
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
						if _, err := qps[side].PostSend(wr); err != nil {
							return err
						}
						posted++
					}
					wc := make([]fabric.WC, 16)
					n, err := nodes[side].cq.Poll(wc)
					for _, c := range wc[:n] {
						switch {
						case c.Status != fabric.WCSuccess:
							return fmt.Errorf("completion %+v", c)
						case c.Opcode == fabric.WCSend:
							completed++
						case c.Imm != uint32(received):
							return fmt.Errorf("immediate %d, want %d", c.Imm, received)
						default:
							received++
							qps[side].PostRecv(0, 1)
						}
					}
					if err != nil || time.Now().After(end) {
						return fmt.Errorf("poll after %d sent, %d received: %v", completed, received, err)
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
	r := newRig(t, 1<<20, testAttr)
	wrs := make([]fabric.SendWR, 70)
	for i := range wrs {
		wrs[i] = r.write(0, 64, uint32(i))
		wrs[i].Opcode = fabric.OpWrite
		wrs[i].Flags = 0
	}
	wrs[62].Flags = fabric.SendSignaled
	if n, err := r.qa.PostSend(wrs); n != 64 || err == nil || !strings.Contains(err.Error(), "64 work requests") {
		t.Fatalf("posted %d of 70 into 64 entries: %v", n, err)
	}
	if _, err := r.qa.PostSend(wrs[:1]); !errors.Is(err, syscall.ENOMEM) {
		t.Fatalf("posting into a full queue: %v", err)
	}
	// Unsignaled sends hold their entries until a later completion is polled; the one after it still does.
	sent, _ := pollBoth(t, r.a, r.b, 1, 0)
	wantStatus(t, sent[0], 62, fabric.WCSuccess)
	if n, _ := r.qa.PostSend(wrs); n != 63 {
		t.Fatalf("posted %d with 63 entries free", n)
	}
	if err := r.qb.PostRecv(0, 65); !errors.Is(err, syscall.ENOMEM) {
		t.Fatalf("65 receives into 64 entries: %v", err)
	}
	check(t, r.qb.PostRecv(0, 64))
	if err := r.qb.PostRecv(0, 1); !errors.Is(err, syscall.ENOMEM) {
		t.Fatalf("a 65th receive: %v", err)
	}
}

func TestTCPManyQueuePairsShareAQueueFairly(t *testing.T) {
	const pairs, messages, size = 40, 20, 8 << 10
	a, b := newNode(t, "", 4096), newNode(t, "", 4096)
	source, target := memory(t, pairs*messages*size), memory(t, pairs*messages*size)
	fillRandom(source, 5)
	src, dst := a.register(source, accessAll), b.register(target, accessAll)
	var qa, qb [pairs]*fabric.QP
	for i := range pairs {
		qa[i], qb[i] = a.newQP(messages, 1), b.newQP(1, messages)
		check(t, qb[i].PostRecv(uint64(i), messages))
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
	check(t, r.qb.PostRecv(1, 4))
	start := time.Now()
	if woken, err := r.b.cq.Wait(30 * time.Millisecond); woken || err != nil || time.Since(start) < 30*time.Millisecond {
		t.Fatalf("waiting for nothing: %v, %v after %v", woken, err, time.Since(start))
	}
	go func() { time.Sleep(20 * time.Millisecond); r.b.cq.Wake() }()
	if woken, err := r.b.cq.Wait(patience); !woken {
		t.Fatalf("waiting for a wake: %v", err)
	}
	go func() {
		time.Sleep(20 * time.Millisecond)
		r.qa.PostSend([]fabric.SendWR{r.write(0, 8, 1), r.write(0, 8, 2)})
	}()
	check(t, r.b.cq.Arm(2))
	if woken, err := r.b.cq.Wait(patience); !woken {
		t.Fatalf("waiting for two messages: %v", err)
	}
	r.b.poll(2)
	// Fewer than asked for are handed over after a moment, not at the timeout.
	go func() { time.Sleep(20 * time.Millisecond); r.qa.PostSend([]fabric.SendWR{r.write(0, 8, 3)}) }()
	check(t, r.b.cq.Arm(3))
	if woken, err := r.b.cq.Wait(patience); !woken {
		t.Fatalf("waiting for one of three messages: %v", err)
	}
	r.b.poll(1)
}

func TestTCPDevicesAreThisHostsAddresses(t *testing.T) {
	names, err := fabric.Devices("tcp")
	if err != nil || !strings.Contains(strings.Join(names, " "), "127.0.0.1") {
		t.Fatalf("devices: %q, %v", names, err)
	}
	for _, name := range names {
		dev, err := fabric.Open("tcp", name, "")
		check(t, err)
		if got := dev.Attr().Name; got != name {
			t.Errorf("device %q says it is %q", name, got)
		}
		check(t, dev.Close())
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
			check(t, r.b.newQP(1, 1).Connect(endpoint(t, r.qa), testAttr))
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
	newRig(t, 64, fabric.ConnectConfig{Timeout: 2000 * time.Millisecond})
}

func TestTCPHotCallsDoNotAllocate(t *testing.T) {
	r := newRig(t, 1<<20, testAttr)
	wr := []fabric.SendWR{r.write(0, 4096, 1)}
	wa, wb := make([]fabric.WC, 4), make([]fabric.WC, 4)
	allocs := testing.AllocsPerRun(50, func() {
		r.qb.PostRecv(1, 1)
		r.qa.PostSend(wr)
		for sent, got := 0, 0; sent < 1 || got < 1; {
			n, _ := r.a.cq.Poll(wa)
			m, _ := r.b.cq.Poll(wb)
			sent, got = sent+n, got+m
		}
	})
	if allocs != 0 {
		t.Errorf("%v allocations per message", allocs)
	}
}
