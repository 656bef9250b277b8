package fabric_test

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"
	"unsafe"

	"github.com/rackweave/rackweave/cgo/fabric"
	"github.com/rackweave/rackweave/cgo/fabric/fabrictest"
)

// rawPeer speaks the wire format by hand, to say what the provider never would.
type rawPeer struct {
	net.Conn
	t testing.TB
}

// dialRaw connects to the listener of the queue pair an endpoint names.
func dialRaw(t testing.TB, ep []byte) rawPeer {
	t.Helper()
	addr := netip.AddrPortFrom(netip.AddrFrom4([4]byte(ep[16:20])), binary.LittleEndian.Uint16(ep[12:]))
	conn, err := net.Dial("tcp", addr.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	conn.SetDeadline(time.Now().Add(patience))
	return rawPeer{conn, t}
}

// rawHello is a valid hello to the queue pair of endpoint to, from that of endpoint from.
func rawHello(to, from []byte) []byte {
	h := binary.LittleEndian.AppendUint32(nil, 0x48545752)
	h = binary.LittleEndian.AppendUint16(h, 3)
	h = binary.LittleEndian.AppendUint16(h, 1)
	h = append(h, to[8:12]...)
	h = append(h, from[8:12]...)
	h = append(h, make([]byte, 16)...)
	h = binary.LittleEndian.AppendUint32(h, 1<<20)
	h = binary.LittleEndian.AppendUint32(h, 0)
	proof := hmac.New(sha256.New, to[32:48])
	proof.Write(h)
	copy(h[16:32], proof.Sum(nil))
	return h
}

// attachRaw makes a queue pair of n whose peer is a rawPeer.
func attachRaw(t testing.TB, n *node) (*fabric.QP, rawPeer) {
	t.Helper()
	qp := n.newQP(8, 8)
	return qp, attachRawTo(t, qp)
}

func attachRawTo(t testing.TB, qp *fabric.QP) rawPeer {
	t.Helper()
	self := endpoint(t, qp)
	from := bytes.Clone(self)
	binary.LittleEndian.PutUint32(from[8:], 0x1234)
	check(t, qp.Connect(from, testAttr))
	p := dialRaw(t, self)
	if _, err := p.Write(rawHello(self, from)); err != nil {
		t.Fatal(err)
	}
	reply := make([]byte, 40)
	if _, err := io.ReadFull(p, reply); err != nil {
		t.Fatal(err)
	}
	waitState(t, qp, fabric.StateRTS)
	return p
}

type rawEntry struct {
	raddr                  uint64
	rkey, length, imm, seq uint32
	flags                  uint64
}

func rawFrame(entries ...rawEntry) []byte {
	f := []byte{0xa7, 1, byte(len(entries)), 0}
	f = binary.LittleEndian.AppendUint32(f, 0)
	f = binary.LittleEndian.AppendUint64(f, 0)
	for _, e := range entries {
		f = binary.LittleEndian.AppendUint64(f, e.raddr)
		for _, v := range []uint32{e.rkey, e.length, e.imm, e.seq} {
			f = binary.LittleEndian.AppendUint32(f, v)
		}
		f = binary.LittleEndian.AppendUint64(f, e.flags)
	}
	return f
}

func TestTCPGarbageMidStreamFailsOnlyItsQueuePair(t *testing.T) {
	r := newRig(t, 4096, testAttr)
	good := rawEntry{raddr: r.dst.Addr, rkey: r.dst.RKey, length: 4, flags: 1}
	with := func(f func(e *rawEntry)) []byte { e := good; f(&e); return append(rawFrame(e), "abcd"...) }
	head := func(i int, v byte) []byte { b := append(rawFrame(good), "abcd"...); b[i] = v; return b }
	for _, c := range []struct {
		name  string
		bytes []byte
	}{
		{"text", []byte("GET / HTTP/1.1\r\nHost: example\r\n\r\n")},
		{"wrong magic", head(0, 0)},
		{"unknown kind", head(1, 7)},
		{"too many entries", head(2, 33)},
		{"reserved byte", head(3, 1)},
		{"receives run backwards", head(7, 0xff)},
		{"acknowledges what was not sent", head(9, 1)},
		{"sequence", with(func(e *rawEntry) { e.seq = 5 })},
		{"unknown flags", with(func(e *rawEntry) { e.flags |= 8 })},
		{"immediate before the end", with(func(e *rawEntry) { e.flags = 2 })},
		{"empty fragment", with(func(e *rawEntry) { e.flags, e.length = 0, 0 })},
		{"refusal of nothing", append([]byte{0xa7, 2, 1, 0}, make([]byte, 44)...)},
		{"no receive posted", with(func(e *rawEntry) { e.flags = 3 })},
		{"unknown key", with(func(e *rawEntry) { e.rkey++ })},
	} {
		t.Run(c.name, func(t *testing.T) {
			qp, p := attachRaw(t, r.b)
			if _, err := p.Write(c.bytes); err != nil {
				t.Fatal(err)
			}
			waitErr(t, r.b, qp)
			io.Copy(io.Discard, p) // ends: the connection was shut down
		})
	}
	check(t, r.qb.PostRecv(1, 1))
	post(t, r.qa, r.write(0, 4096, 1))
	sent, _ := pollBoth(t, r.a, r.b, 1, 1)
	wantStatus(t, sent[0], 1, fabric.WCSuccess)
}

func TestTCPWritesWithoutImmediateFailAQueuePairThatTakesNone(t *testing.T) {
	for immOnly, want := range map[bool]fabric.QPState{false: fabric.StateRTS, true: fabric.StateErr} {
		r := newRig(t, 4096, testAttr)
		qp, err := r.b.pd.CreateQP(fabric.QPConfig{CQ: r.b.cq, MaxSendWR: 8, MaxRecvWR: 8, ImmOnly: immOnly})
		check(t, err)
		t.Cleanup(func() { qp.Close() })
		p := attachRawTo(t, qp)
		check(t, qp.PostRecv(1, 1))
		plain := rawEntry{raddr: r.dst.Addr, rkey: r.dst.RKey, length: 4, flags: 1}
		p.Write(append(rawFrame(plain, rawEntry{seq: 1, flags: 3}), "data"...))
		if wc := r.b.poll(1)[0]; (wc.Status == fabric.WCSuccess) != (want == fabric.StateRTS) || qp.State() != want {
			t.Errorf("immediates alone %v: completion %+v, state %d", immOnly, wc, qp.State())
		}
	}
}

// TestTCPFramesThatBringNothingEndTheirConnection takes what costs its receiver time and the sender's job nothing.
func TestTCPFramesThatBringNothingEndTheirConnection(t *testing.T) {
	r := newRig(t, 4096, testAttr)
	fragment := func(i uint32) []byte {
		return append(rawFrame(rawEntry{raddr: r.dst.Addr, rkey: r.dst.RKey, length: 1}), byte(i))
	}
	posting := func(i uint32) []byte {
		f := rawFrame()
		binary.LittleEndian.PutUint32(f[4:], i)
		return f
	}
	for _, c := range []struct {
		name  string
		frame func(i uint32) []byte
		few   uint32 // do no harm
	}{
		{"empty", func(uint32) []byte { return rawFrame() }, 60},
		{"a byte of a message that never ends", fragment, 60},
		{"receives beyond all that can be posted", posting, 1 << 14},
	} {
		t.Run(c.name, func(t *testing.T) {
			qp, p := attachRaw(t, r.b)
			var few []byte
			for i := range c.few {
				few = append(few, c.frame(i)...)
			}
			if _, err := p.Write(few); err != nil {
				t.Fatal(err)
			}
			for end := time.Now().Add(200 * time.Millisecond); time.Now().Before(end); {
				_, err := r.b.cq.Poll(nil)
				check(t, err)
			}
			waitState(t, qp, fabric.StateRTS)
			go func() {
				for i := c.few; ; i++ {
					if _, err := p.Write(c.frame(i)); err != nil {
						return
					}
				}
			}()
			waitErr(t, r.b, qp)
			io.Copy(io.Discard, p)
		})
	}
}

func TestTCPFramesMayArriveByteByByte(t *testing.T) {
	n := newNode(t, "", 64)
	target := memory(t, 64)
	dst := n.register(target, accessAll)
	qp, p := attachRaw(t, n)
	check(t, qp.PostRecv(1, 2))
	stream := append(rawFrame(
		rawEntry{raddr: dst.Addr, rkey: dst.RKey, length: 3, flags: 0},
		rawEntry{raddr: dst.Addr + 3, rkey: dst.RKey, length: 2, imm: 42, flags: 3},
		rawEntry{seq: 1, imm: 43, flags: 3}), "hello"...)
	for _, b := range stream {
		if _, err := p.Write([]byte{b}); err != nil {
			t.Fatal(err)
		}
		n.cq.Poll(nil)
	}
	got := n.poll(2)
	if got[0].Imm != 42 || got[0].ByteLen != 5 || got[1].Imm != 43 || got[1].ByteLen != 0 || string(target[:6]) != "hello\x00" {
		t.Fatalf("%+v, %q", got, target[:6])
	}
}

func TestTCPStrangersAtTheListenerHurtNobody(t *testing.T) {
	a, b := newNode(t, "", 16), newNode(t, "", 16)
	idle := endpoint(t, b.newQP(1, 1))
	for i := range 100 {
		p := dialRaw(t, idle)
		switch i % 5 {
		case 4: // the cookie itself proves nothing
			h := rawHello(idle, idle)
			copy(h[16:32], idle[32:48])
			p.Write(h)
		case 0: // says nothing
		case 1:
			p.Write([]byte("RWTH"))
		case 2:
			p.Write(bytes.Repeat([]byte{0xff}, 4096))
		case 3:
			h := rawHello(idle, idle)
			h[20] ^= 1
			p.Write(h)
		}
	}
	start := time.Now()
	for range 5 {
		qa, qb := a.newQP(1, 1), b.newQP(1, 1)
		connect(t, qa, qb, testAttr)
	}
	if d := time.Since(start); d > patience/2 {
		t.Errorf("connecting past strangers took %v", d)
	}
}

func FuzzTCPEndpoint(f *testing.F) {
	n := newNode(f, "", 1)
	valid := endpoint(f, n.newQP(1, 1))
	f.Add(valid)
	f.Add(valid[:20])
	f.Fuzz(func(t *testing.T, b []byte) {
		family := func(v uint16) bool { return v == 4 && len(b) >= 32 && allZero(b[20:32]) || v == 6 }
		want := len(b) == 48 && bytes.Equal(b[:6], valid[:6]) && family(binary.LittleEndian.Uint16(b[6:])) &&
			!allZero(b[8:12]) && !allZero(b[12:14]) && b[14] <= 1 && b[15] == 0
		if got := fabrictest.TCPEndpointValid(b); got != want {
			t.Errorf("valid: %v, want %v: %x", got, want, b)
		}
	})
}

// FuzzTCPStream feeds a connected queue pair whatever bytes: it must neither crash nor touch memory beside its region.
// Keys and addresses differ from process to process, so the corpus has marks in their place: a key is KEYK, an address
// its offset in two bytes and then ADDRES.
func FuzzTCPStream(f *testing.F) {
	n := newNode(f, "", 1024)
	arena := memory(f, 3*4096)
	mr, err := n.pd.RegisterMR(unsafe.Pointer(&arena[4096]), 4096, accessAll, -1, 0)
	check(f, err)
	f.Cleanup(func() { n.pd.DeregisterMR(mr) })
	address, key := []byte("ADDRES"), []byte("KEYK")
	at := func(e rawEntry) rawEntry {
		e.raddr += binary.LittleEndian.Uint64(append([]byte{0, 0}, address...))
		e.rkey = binary.LittleEndian.Uint32(key)
		return e
	}
	f.Add(append(rawFrame(at(rawEntry{length: 5, flags: 3})), "hello"...))
	f.Add(append(rawFrame(at(rawEntry{length: 2}), at(rawEntry{raddr: 4094, length: 2, flags: 1})), "four"...))
	f.Add(append(rawFrame(), rawFrame(at(rawEntry{raddr: 4095, length: 2, flags: 1}))...))
	f.Add([]byte{0xa7, 2, 1, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		stream := bytes.ReplaceAll(b, key, binary.LittleEndian.AppendUint32(nil, mr.RKey))
		for i := 0; i+8 <= len(stream); i++ {
			if bytes.Equal(stream[i+2:i+8], address) {
				offset := binary.LittleEndian.Uint16(stream[i:])
				binary.LittleEndian.PutUint64(stream[i:], mr.Addr+uint64(offset))
			}
		}
		qp, err := n.pd.CreateQP(fabric.QPConfig{CQ: n.cq, MaxSendWR: 8, MaxRecvWR: 8})
		check(t, err)
		defer qp.Close()
		self := endpoint(t, qp)
		check(t, qp.Connect(self, testAttr))
		check(t, qp.PostRecv(1, 4))
		p := dialRaw(t, self)
		p.Write(append(rawHello(self, self), stream...))
		p.Conn.(*net.TCPConn).CloseWrite()
		waitErr(t, n, qp)
		p.Close()
		if !allZero(arena[:4096]) || !allZero(arena[8192:]) {
			t.Fatal("memory beside the region was written")
		}
	})
}
