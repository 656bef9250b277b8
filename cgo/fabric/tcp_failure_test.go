package fabric_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/rackweave/rackweave/cgo/fabric"
	"github.com/rackweave/rackweave/cgo/fabric/fabrictest"
)

// The peer's host goes on answering, though only that its buffer is full.
func TestTCPPeerThatDoesNotPollIsNotDead(t *testing.T) {
	attr := testAttr
	attr.AckTimeout = 150 * time.Millisecond
	r := newRigWith(t, "window=8388608,sndbuf=262144,rcvbuf=65536", 4<<20, attr)
	check(t, r.qb.PostRecv(1, 1))
	post(t, r.qa, r.write(0, 4<<20, 1))
	r.a.quiet(1200 * time.Millisecond) // some window probes
	sent, _ := pollBoth(t, r.a, r.b, 1, 1)
	wantStatus(t, sent[0], 1, fabric.WCSuccess)
	if !bytes.Equal(r.source, r.target) {
		t.Error("the target differs from the source")
	}
}

// TestTCPSilentLinkIsAnErrorInTime runs in a child with a network namespace of its own, whose loopback it takes down.
func TestTCPSilentLinkIsAnErrorInTime(t *testing.T) {
	if os.Getenv("RWF_TCP_LINK") != "" {
		silentLink(t)
		return
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestTCPSilentLinkIsAnErrorInTime$", "-test.timeout=30s")
	cmd.Env = append(os.Environ(), "RWF_TCP_LINK=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNET,
		UidMappings: []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}},
	}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	switch err := cmd.Start(); {
	case errors.Is(err, os.ErrPermission), errors.Is(err, syscall.ENOSPC): // the latter under user.max_user_namespaces=0
		t.Skipf("this user may not make a network namespace: %v", err)
	case err != nil:
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("%v:\n%s", err, out.String())
	}
}

func setLoopback(t *testing.T, flags uint16) {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_DGRAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(fd)
	var ifreq [40]byte // struct ifreq of netdevice(7)
	copy(ifreq[:], "lo")
	binary.NativeEndian.PutUint16(ifreq[16:], flags)
	if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, uintptr(fd), syscall.SIOCSIFFLAGS,
		uintptr(unsafe.Pointer(&ifreq))); errno != 0 {
		t.Fatal(errno)
	}
}

func silentLink(t *testing.T) {
	setLoopback(t, syscall.IFF_UP)
	busy, idle := newRig(t, 1<<20, testAttr), newRig(t, 4096, testAttr)
	check(t, idle.qa.PostRecv(8, 1))
	check(t, busy.qb.PostRecv(9, 2))
	post(t, busy.qa, busy.write(0, 1000, 1))
	pollBoth(t, busy.a, busy.b, 1, 1)
	setLoopback(t, 0)
	start := time.Now()
	post(t, busy.qa, busy.write(0, 1000, 2))
	sent, flushed := pollBoth(t, busy.a, idle.a, 1, 1)
	wantStatus(t, sent[0], 2, fabric.WCRetryExcErr)
	wantStatus(t, flushed[0], 8, fabric.WCFlushErr)
	if d := time.Since(start); d > patience/2 {
		t.Errorf("a dead link was found after %v", d)
	}
	setLoopback(t, syscall.IFF_UP) // so that the rigs close quickly
}

func TestTCPRefusesBadTargetsAndPlacesWhatStoodBefore(t *testing.T) {
	readOnly := func(r *rig) fabric.MR { return r.b.register(memory(t, 4096), 1) }
	foreign := func(r *rig) fabric.MR {
		pd, err := r.b.dev.AllocPD()
		check(t, err)
		b := memory(t, 4096)
		mr, err := pd.RegisterMR(unsafe.Pointer(&b[0]), 4096, accessAll, -1, 0)
		check(t, err)
		r.b.t.Cleanup(func() { pd.DeregisterMR(mr); check(t, pd.Close()) })
		return mr
	}
	stale := func(r *rig) fabric.MR {
		mr := r.b.register(r.target, accessAll)
		check(t, r.b.pd.DeregisterMR(mr))
		return mr
	}
	for _, c := range []struct {
		name string
		bad  func(r *rig, wr *fabric.SendWR)
	}{
		{"unknown key", func(r *rig, wr *fabric.SendWR) { wr.RKey ^= 0x5a5a0000 }},
		{"key zero", func(r *rig, wr *fabric.SendWR) { wr.RKey = 0 }},
		{"stale key", func(r *rig, wr *fabric.SendWR) { wr.RKey = stale(r).RKey }},
		{"another domain's key", func(r *rig, wr *fabric.SendWR) { mr := foreign(r); wr.RKey, wr.RAddr = mr.RKey, mr.Addr }},
		{"no remote write", func(r *rig, wr *fabric.SendWR) { mr := readOnly(r); wr.RKey, wr.RAddr = mr.RKey, mr.Addr }},
		{"one byte past the end", func(r *rig, wr *fabric.SendWR) { wr.RAddr = r.dst.Addr + r.dst.Length - uint64(wr.Length) + 1 }},
		{"before the start", func(r *rig, wr *fabric.SendWR) { wr.RAddr = r.dst.Addr - 1 }},
		{"address wraps", func(r *rig, wr *fabric.SendWR) { wr.RAddr = ^uint64(0) - 10 }},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, 1<<20, testAttr)
			check(t, r.qb.PostRecv(9, 3))
			good, bad, after := r.write(0, 4096, 1), r.write(8192, 4096, 2), r.write(16384, 4096, 3)
			c.bad(r, &bad)
			post(t, r.qa, good, bad, after)
			sent, got := pollBoth(t, r.a, r.b, 3, 3)
			wantStatus(t, sent[0], 1, fabric.WCSuccess)
			wantStatus(t, sent[1], 2, fabric.WCRemAccessErr)
			wantStatus(t, sent[2], 3, fabric.WCFlushErr)
			wantStatus(t, got[0], 9, fabric.WCSuccess)
			wantStatus(t, got[1], 9, fabric.WCFlushErr)
			wantStatus(t, got[2], 9, fabric.WCFlushErr)
			if r.qa.State() != fabric.StateErr || r.qb.State() != fabric.StateErr {
				t.Error("a queue pair is not in ERR")
			}
			if !bytes.Equal(r.target[:4096], r.source[:4096]) || !allZero(r.target[4096:]) {
				t.Error("not exactly the first message was placed")
			}
		})
	}
}

func TestTCPBadLocalKeyFailsTheSendItBelongsTo(t *testing.T) {
	r := newRig(t, 1<<20, testAttr)
	check(t, r.qb.PostRecv(9, 3))
	good, bad, after := r.write(0, 300_000, 1), r.write(0, 4096, 2), r.write(0, 4096, 3)
	bad.LAddr = r.src.Addr + r.src.Length
	post(t, r.qa, good, bad, after)
	sent, _ := pollBoth(t, r.a, r.b, 3, 3)
	wantStatus(t, sent[0], 1, fabric.WCSuccess)
	wantStatus(t, sent[1], 2, fabric.WCLocProtErr)
	wantStatus(t, sent[2], 3, fabric.WCFlushErr)
}

func TestTCPWaitsForAPostedReceiveThenGivesUp(t *testing.T) {
	attr := testAttr
	attr.RNRTimeout = 150 * time.Millisecond
	r := newRig(t, 1<<20, attr)
	post(t, r.qa, r.write(0, 4096, 1))
	r.a.quiet(50 * time.Millisecond)
	r.b.quiet(10 * time.Millisecond)
	check(t, r.qb.PostRecv(5, 1))
	sent, got := pollBoth(t, r.a, r.b, 1, 1)
	wantStatus(t, sent[0], 1, fabric.WCSuccess)
	wantStatus(t, got[0], 5, fabric.WCSuccess)

	start := time.Now()
	post(t, r.qa, r.write(0, 4096, 2), r.write(0, 4096, 3))
	sent, _ = pollBoth(t, r.a, r.b, 2, 0)
	wantStatus(t, sent[0], 2, fabric.WCRNRRetryExcErr)
	wantStatus(t, sent[1], 3, fabric.WCFlushErr)
	if d := time.Since(start); d < 140*time.Millisecond || d > patience/2 {
		t.Errorf("the send failed after %v, the timeout is 150 ms", d)
	}
	waitErr(t, r.b, r.qb)
}

// waitErr polls until the queue pair is in ERR.
func waitErr(t testing.TB, n *node, qp *fabric.QP) {
	t.Helper()
	for end := time.Now().Add(patience); qp.State() != fabric.StateErr; {
		_, err := n.cq.Poll(make([]fabric.WC, 16))
		check(t, err)
		if time.Now().After(end) {
			t.Fatal("the queue pair does not fail")
		}
	}
}

func TestTCPStarvedWaitReturnsWhenTheSendFails(t *testing.T) {
	attr := testAttr
	attr.RNRTimeout = 100 * time.Millisecond
	r := newRig(t, 4096, attr)
	post(t, r.qa, r.write(0, 16, 1))
	check(t, r.a.cq.Arm(1))
	if woken, err := r.a.cq.Wait(5 * time.Second); !woken {
		t.Fatalf("wait: %v", err)
	}
	wantStatus(t, r.a.poll(1)[0], 1, fabric.WCRNRRetryExcErr)
}

func TestTCPCompletionQueueOverrunIsAnError(t *testing.T) {
	a, b := newNode(t, "", 64), newNode(t, "", 4)
	buf := memory(t, 4096)
	src, dst := a.register(buf, accessAll), b.register(memory(t, 4096), accessAll)
	qa, qb := a.newQP(16, 16), b.newQP(16, 16)
	check(t, qb.PostRecv(0, 8))
	connect(t, qa, qb, testAttr)
	for range 8 {
		post(t, qa, fabric.SendWR{LAddr: src.Addr, LKey: src.LKey, RAddr: dst.Addr, RKey: dst.RKey, Length: 8,
			Opcode: fabric.OpWriteWithImm})
	}
	var got int
	var err error
	for end := time.Now().Add(patience); got == 0 && err == nil; {
		got, err = b.cq.Poll(make([]fabric.WC, 1))
		if time.Now().After(end) {
			t.Fatal("nothing came")
		}
	}
	// The first poll may have seen less than all: the queue overruns only if it is not emptied in time.
	for end := time.Now().Add(200 * time.Millisecond); err == nil && time.Now().Before(end); {
		_, err = b.cq.Poll(nil)
	}
	if !errors.Is(err, syscall.EOVERFLOW) {
		t.Fatalf("8 completions into 4 entries: %v", err)
	}
	if qb.State() != fabric.StateErr {
		t.Error("the queue pair is not in ERR")
	}
	waitErr(t, a, qa)
}

func TestTCPFailingOneSideFailsBoth(t *testing.T) {
	r := newRig(t, 1<<20, testAttr)
	check(t, r.qa.PostRecv(1, 2))
	check(t, r.qb.PostRecv(2, 2))
	check(t, r.qb.Fail())
	wa, wb := pollBoth(t, r.a, r.b, 2, 2)
	for i := range 2 {
		wantStatus(t, wa[i], 1, fabric.WCFlushErr)
		wantStatus(t, wb[i], 2, fabric.WCFlushErr)
	}
	post(t, r.qa, r.write(0, 8, 4))
	wantStatus(t, r.a.poll(1)[0], 4, fabric.WCFlushErr)
}

func TestTCPClosedPeerFailsOutstandingSends(t *testing.T) {
	r := newRig(t, 4<<20, testAttr)
	check(t, r.qb.PostRecv(2, 2))
	post(t, r.qa, r.write(0, 3<<20, 1), r.write(0, 8, 2))
	check(t, r.qb.Fail())
	sent := r.a.poll(2)
	wantStatus(t, sent[0], 1, fabric.WCRetryExcErr)
	wantStatus(t, sent[1], 2, fabric.WCFlushErr)
	if !r.a.sawEventSoon(fabric.EventQPFatal, r.qa.Num()) {
		t.Error("no event says that the queue pair failed")
	}
}

func (n *node) sawEventSoon(kind fabric.EventType, qpNum uint32) bool {
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if n.sawEvent(kind, qpNum) {
			return true
		}
	}
	return false
}

func TestTCPDeregistrationStopsWritesThatWait(t *testing.T) {
	r := newRig(t, 4<<20, testAttr)
	check(t, r.qb.PostRecv(2, 1))
	// The sender fills the socket; the receiver has placed nothing yet when it takes the region back.
	post(t, r.qa, r.write(0, 4<<20, 1))
	check(t, r.b.pd.DeregisterMR(r.dst))
	sent, got := pollBoth(t, r.a, r.b, 1, 1)
	wantStatus(t, sent[0], 1, fabric.WCRemAccessErr)
	wantStatus(t, got[0], 2, fabric.WCFlushErr)
	if !allZero(r.target) {
		t.Error("a deregistered region was written")
	}
}

func TestTCPConnectErrors(t *testing.T) {
	a, b := newNode(t, "", 16), newNode(t, "", 16)
	qb := b.newQP(1, 1)
	active := fabric.ConnectConfig{Active: true, Timeout: 200 * time.Millisecond}
	good := endpoint(t, qb)
	badCookie := bytes.Clone(good)
	badCookie[40] ^= 1
	badQP := bytes.Clone(good)
	badQP[10] ^= 0x80
	nobody := bytes.Clone(good)
	binary.LittleEndian.PutUint16(nobody[12:], 1)
	for _, c := range []struct {
		name string
		peer []byte
		err  syscall.Errno
		text string
	}{
		{"not waiting", good, syscall.ETIMEDOUT, "time ran out"},
		{"wrong cookie", badCookie, syscall.ECONNREFUSED, "no queue pair waiting"},
		{"wrong queue pair", badQP, syscall.ECONNREFUSED, "no queue pair waiting"},
		{"nobody listens", nobody, syscall.ECONNREFUSED, "refused"},
		{"short", good[:20], syscall.EINVAL, "20 bytes"},
	} {
		qa := a.newQP(1, 1)
		if err := qa.Connect(c.peer, active); !errors.Is(err, c.err) || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

func TestTCPPeerMayArriveBeforeItIsExpected(t *testing.T) {
	a, b := newNode(t, "", 16), newNode(t, "", 16)
	qa, qb := a.newQP(1, 1), b.newQP(1, 1)
	peer := endpoint(t, qb)
	connected := make(chan error, 1)
	go func() {
		connected <- qa.Connect(peer, fabric.ConnectConfig{Active: true, Timeout: 5 * time.Second})
	}()
	time.Sleep(30 * time.Millisecond)
	check(t, qb.Connect(endpoint(t, qa), fabric.ConnectConfig{Timeout: 5 * time.Second}))
	check(t, <-connected)
	waitState(t, qb, fabric.StateRTS)
	if !b.sawEventSoon(fabric.EventQPEstablished, qb.Num()) {
		t.Error("no event says that the peer arrived")
	}
}

func TestTCPPassiveQueuePairFailsWhenNobodyComes(t *testing.T) {
	a, b := newNode(t, "", 16), newNode(t, "", 16)
	qa, qb := a.newQP(1, 1), b.newQP(1, 2)
	check(t, qb.PostRecv(3, 2))
	check(t, qb.Connect(endpoint(t, qa), fabric.ConnectConfig{Timeout: 50 * time.Millisecond}))
	if _, err := qb.PostSend([]fabric.SendWR{{Opcode: fabric.OpWriteWithImm}}); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("posting on a queue pair without a peer: %v", err)
	}
	for _, c := range b.poll(2) {
		wantStatus(t, c, 3, fabric.WCFlushErr)
	}
	if qb.State() != fabric.StateErr || !b.sawEventSoon(fabric.EventQPFatal, qb.Num()) {
		t.Error("the queue pair did not fail with an event")
	}
}

func TestTCPOpenErrorsNameTheOption(t *testing.T) {
	for _, c := range []struct{ device, options, text string }{
		{"", "colour=red", `no option "colour"`},
		{"", "listen=nowhere", "listen=nowhere"},
		{"", "window=12", "window=12"},
		{"", "rcvbuf=lots", "rcvbuf=lots"},
		{"", "encrypt=maybe", "encrypt=maybe"},
		{"eth-none", "", "eth-none"},
		{"203.0.113.7", "", "203.0.113.7"},
	} {
		dev, err := fabric.Open("tcp", c.device, c.options)
		if err == nil {
			dev.Close()
			t.Errorf("open %q %q succeeds", c.device, c.options)
		} else if !strings.Contains(err.Error(), c.text) {
			t.Errorf("open %q %q: %v", c.device, c.options, err)
		}
	}
}

func TestTCPAPeerThatListensOnEveryAddressIsLocatedByItsEndpoint(t *testing.T) {
	cases := []struct{ listen, peer string }{{"0.0.0.0", "127.0.0.1"}}
	names, err := fabric.Devices("tcp")
	check(t, err)
	if slices.Contains(names, "::1") { // there are hosts without IPv6
		cases = append(cases, []struct{ listen, peer string }{{"::", "127.0.0.1"}, {"::", "::1"}}...)
	}
	for _, c := range cases {
		b := newNode(t, "listen="+c.listen, 16)
		qp, own, attr := b.newQP(1, 1), newNode(t, "", 16).newQP(1, 1), testAttr
		at := fabric.TCPLocated(endpoint(t, qp), netip.MustParseAddr(c.peer))
		check(t, qp.Connect(endpoint(t, own), attr))
		attr.Active = true
		check(t, own.Connect(at, attr))
		if !fabrictest.TCPEndpointValid(at) || !bytes.Equal(fabric.TCPLocated(at, netip.MustParseAddr("192.0.2.1")), at) {
			t.Errorf("%x is not an endpoint at %s", at, c.peer)
		}
		lost := newNode(t, "", 16).newQP(1, 1)
		err := lost.Connect(endpoint(t, b.newQP(1, 1)), fabric.ConnectConfig{Active: true, Timeout: time.Second})
		if !errors.Is(err, syscall.EDESTADDRREQ) || !strings.Contains(err.Error(), "advertise") {
			t.Errorf("without an address: %v", err)
		}
	}
}

// TestTCPKilledPeerIsAnError runs in two processes: the child is killed while it streams.
func TestTCPKilledPeerIsAnError(t *testing.T) {
	if peer := os.Getenv("RWF_TCP_CHILD"); peer != "" {
		streamForever(t)
		return
	}
	n := newNode(t, "", 1024)
	target := memory(t, 1<<20)
	dst := n.register(target, accessAll)
	qp := n.newQP(64, 64)
	check(t, qp.PostRecv(7, 64))

	cmd := exec.Command(os.Args[0], "-test.run=^TestTCPKilledPeerIsAnError$")
	cmd.Env = append(os.Environ(), "RWF_TCP_CHILD=1")
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Process.Kill()
	peer := make([]byte, len(endpoint(t, qp)))
	if _, err := io.ReadFull(stdout, peer); err != nil {
		t.Fatal(err)
	}
	check(t, qp.Connect(peer, testAttr))
	hello := append(endpoint(t, qp), make([]byte, 12)...)
	binary.LittleEndian.PutUint64(hello[len(peer):], dst.Addr)
	binary.LittleEndian.PutUint32(hello[len(peer)+8:], dst.RKey)
	if _, err := stdin.Write(hello); err != nil {
		t.Fatal(err)
	}

	for got := 0; got < 2000; {
		wcs := n.poll(1)
		wantStatus(t, wcs[0], 7, fabric.WCSuccess)
		check(t, qp.PostRecv(7, 1))
		got++
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	killed := time.Now()
	for flushed := 0; flushed < 64; {
		wc := n.poll(1)[0]
		if wc.Status == fabric.WCSuccess {
			qp.PostRecv(7, 1)
			continue
		}
		wantStatus(t, wc, 7, fabric.WCFlushErr)
		flushed++
	}
	if d := time.Since(killed); d > patience/2 { // a second, on a machine without other work
		t.Errorf("the receives were flushed %v after the peer was killed", d)
	}
	cmd.Wait()
}

func streamForever(t *testing.T) {
	n := newNode(t, "", 1024)
	source := memory(t, 32<<10)
	src := n.register(source, accessAll)
	qp := n.newQP(64, 1)
	mine := endpoint(t, qp)
	os.Stdout.Write(mine)
	in := make([]byte, len(mine)+12)
	if _, err := io.ReadFull(os.Stdin, in); err != nil {
		t.Fatal(err)
	}
	attr := testAttr
	attr.Active = true
	check(t, qp.Connect(in[:len(mine)], attr))
	wr := []fabric.SendWR{{LAddr: src.Addr, LKey: src.LKey, Length: 32 << 10, Opcode: fabric.OpWriteWithImm,
		Flags: fabric.SendSignaled, RAddr: binary.LittleEndian.Uint64(in[len(mine):]),
		RKey: binary.LittleEndian.Uint32(in[len(mine)+8:])}}
	wc := make([]fabric.WC, 64)
	for end := time.Now().Add(patience); time.Now().Before(end); {
		qp.PostSend(wr)
		if got, err := n.cq.Poll(wc); err != nil || (got > 0 && wc[0].Status != fabric.WCSuccess) {
			return
		}
	}
}
