package fabric

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"math"
	"runtime"
	"sync"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The shared memory as shm.h lays it out: what the active side publishes, then the passive side, then the rings.
const (
	offRecvPosted = 0
	offWakeAt     = 64
	offIssued     = 72
	offSent       = 80
	offPassive    = 128
	offRings      = 4096
	sealRings     = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL
)

// stranger is a peer that speaks the protocol by hand, to say what the provider never would.
type stranger struct {
	t      *testing.T
	sock   int
	rings  int
	shared []byte
	cookie [16]byte
}

func sealedFD(t *testing.T, size int64, seals int) int {
	t.Helper()
	fd, err := unix.MemfdCreate("stranger", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	if err := unix.Ftruncate(fd, size); err != nil {
		t.Fatal(err)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
		t.Fatal(err)
	}
	return fd
}

// newStranger has rings for depth receives each way.
func newStranger(t *testing.T, depth int) *stranger {
	s := &stranger{t: t, sock: -1, cookie: [16]byte{1, 2, 3}}
	size := offRings + 2*64*depth
	s.rings = sealedFD(t, int64(size), sealRings)
	var err error
	if s.shared, err = unix.Mmap(s.rings, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Munmap(s.shared) })
	return s
}

func (s *stranger) endpoint(depth uint32) []byte {
	b := []byte("RWSE\x01\x00\x00\x00")
	b = binary.LittleEndian.AppendUint32(b, 77)
	b = binary.LittleEndian.AppendUint32(b, depth)
	return append(append(b, make([]byte, 16)...), s.cookie[:]...)
}

func hello(to, from [16]byte) []byte {
	return append(append([]byte("RWSH\x01\x00\x00\x00"), to[:]...), from[:]...)
}

// dial connects to the listener that an endpoint names.
func dial(t *testing.T, ep shmEndpoint) int {
	t.Helper()
	sock := newSocket(t)
	dialBy(t, sock, ep)
	return sock
}

func newSocket(t *testing.T) int {
	t.Helper()
	sock, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(sock) })
	return sock
}

func dialBy(t *testing.T, sock int, ep shmEndpoint) {
	t.Helper()
	if err := unix.Connect(sock, &unix.SockaddrUnix{Name: "@rackweave-shm-" + hex.EncodeToString(ep.Listener[:])}); err != nil {
		t.Fatal(err)
	}
}

func send(t *testing.T, sock int, msg []byte, fds ...int) {
	t.Helper()
	var rights []byte
	if len(fds) > 0 {
		rights = unix.UnixRights(fds...)
	}
	if err := unix.Sendmsg(sock, msg, rights, nil, unix.MSG_NOSIGNAL); err != nil {
		t.Fatal(err)
	}
}

// connect makes the stranger the peer of a passive queue pair.
func (s *stranger) connect(qp *QP, depth uint32, attr ConnectConfig) {
	s.t.Helper()
	ep, _ := decodeShmEndpoint(endpoint(qp))
	must(qp.Connect(s.endpoint(depth), attr))
	s.sock = dial(s.t, ep)
	send(s.t, s.sock, hello(ep.Cookie, s.cookie), s.rings)
	var answer [8]byte
	if n, err := unix.Read(s.sock, answer[:]); err != nil || n != 1 || answer[0] != 'A' {
		s.t.Fatalf("greeting answered with %q, %v", answer[:n], err)
	}
	for end := time.Now().Add(patient); qp.State() != StateRTS; time.Sleep(time.Millisecond) { // it answers first
		if time.Now().After(end) {
			s.t.Fatalf("the queue pair is in state %d", qp.State())
		}
	}
}

// descriptor publishes one as the number seq.
func (s *stranger) descriptor(seq int, laddr, raddr uint64, lkey, rkey, length, byRef uint32) {
	d := s.shared[offRings+64*seq:]
	le := binary.LittleEndian
	le.PutUint64(d, laddr)
	le.PutUint64(d[8:], raddr)
	le.PutUint32(d[16:], lkey)
	le.PutUint32(d[20:], rkey)
	le.PutUint32(d[24:], length)
	le.PutUint32(d[32:], byRef)
	le.PutUint64(d[40:], uint64(seq)+1)
}

func ctl(kind, key, slot, access uint32, addr, length, offset uint64) []byte {
	var b []byte
	for _, v := range []uint32{kind, key, slot, access} {
		b = binary.LittleEndian.AppendUint32(b, v)
	}
	for _, v := range []uint64{addr, length, offset} {
		b = binary.LittleEndian.AppendUint64(b, v)
	}
	return b
}

func TestShmHostilePeerFailsOnlyItsOwnQueuePair(t *testing.T) {
	const depth = 8
	neighbour := newPair(t, depth, false)
	victim := neighbour.b
	mr := neighbour.mb.mr
	good := func(size int64) int { return sealedFD(t, size, unix.F_SEAL_SHRINK) }
	for _, c := range []struct {
		name  string
		byRef bool
		act   func(s *stranger)
	}{
		{"a key it was not given", false, func(s *stranger) { s.descriptor(0, 0, mr.Addr, 0, mr.RKey^0x1000, 8, 0) }},
		{"past the region's end", false, func(s *stranger) { s.descriptor(0, 0, mr.Addr+mr.Length-4, 0, mr.RKey, 8, 0) }},
		{"around 2^64", false, func(s *stranger) { s.descriptor(0, 0, math.MaxUint64-3, 0, mr.RKey, 8, 0) }},
		{"a length past any region", false, func(s *stranger) { s.descriptor(0, 0, mr.Addr, 0, mr.RKey, math.MaxUint32, 0) }},
		{"a reference it did not agree to", false, func(s *stranger) { s.descriptor(0, mr.Addr, mr.Addr, mr.RKey, mr.RKey, 8, 1) }},
		{"a reference into nowhere", true, func(s *stranger) { s.descriptor(0, 4096, mr.Addr, 0x7000, mr.RKey, 8, 1) }},
		{"a reference past its own region", true, func(s *stranger) {
			send(t, s.sock, ctl(1, 0x7001, 1, 1, 4096, 4096, 0), good(4096))
			s.descriptor(0, 8190, mr.Addr, 0x7001, mr.RKey, 8, 1)
		}},
		{"a message that is none", false, func(s *stranger) { send(t, s.sock, []byte("hello")) }},
		{"a message too long", false, func(s *stranger) { send(t, s.sock, make([]byte, 4096)) }},
		{"a region without a memfd", false, func(s *stranger) { send(t, s.sock, ctl(1, 0x7001, 1, 1, 4096, 4096, 0)) }},
		{"a region with two", false, func(s *stranger) {
			send(t, s.sock, ctl(1, 0x7001, 1, 1, 4096, 4096, 0), good(4096), good(4096))
		}},
		{"a region that may shrink", false, func(s *stranger) {
			send(t, s.sock, ctl(1, 0x7001, 1, 1, 4096, 4096, 0), sealedFD(t, 4096, unix.F_SEAL_GROW))
		}},
		{"a region past its memfd", false, func(s *stranger) { send(t, s.sock, ctl(1, 0x7001, 1, 1, 4096, 8192, 0), good(4096)) }},
		{"a region whose offset wraps", false, func(s *stranger) {
			send(t, s.sock, ctl(1, 0x7001, 1, 1, 4096, 4096, math.MaxUint64-100), good(4096))
		}},
		{"a region around 2^64", false,
			func(s *stranger) { send(t, s.sock, ctl(1, 0x7001, 1, 1, math.MaxUint64-100, 4096, 0), good(4096)) }},
		{"a region that cannot be written", false, func(s *stranger) {
			send(t, s.sock, ctl(1, 0x7001, 1, 3, 4096, 4096, 0), sealedFD(t, 4096, unix.F_SEAL_SHRINK|unix.F_SEAL_WRITE))
		}},
		{"a region in another's slot", false, func(s *stranger) {
			send(t, s.sock, ctl(1, 0x7001, 2, 1, 4096, 4096, 0), good(4096))
		}},
		{"a slot that is none", false, func(s *stranger) { send(t, s.sock, ctl(2, 0, 4096, 0, 0, 0, 0)) }},
		{"an unknown message", false, func(s *stranger) { send(t, s.sock, ctl(3, 0x7001, 1, 1, 4096, 4096, 0)) }},
		{"its end", false, func(s *stranger) { unix.Shutdown(s.sock, unix.SHUT_RDWR) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := bytes.Clone(neighbour.mb.data)
			qp := newQP(victim, depth, c.byRef)
			defer func() { must(qp.Close()) }()
			must(qp.PostRecv(5, depth))
			s := newStranger(t, depth)
			s.connect(qp, depth, ConnectConfig{})
			c.act(s)
			for i, wc := range polled(t, victim.cq, depth) {
				if wc.Status != 5 || wc.WRID != 5 {
					t.Errorf("completion %d: %+v", i, wc)
				}
			}
			if qp.State() != StateErr {
				t.Errorf("the queue pair is in state %d", qp.State())
			}
			if !bytes.Equal(before, neighbour.mb.data) {
				t.Error("the victim's memory changed")
			}
			must(neighbour.qb.PostRecv(9, 1))
			mustGet(neighbour.qa.PostSend([]SendWR{neighbour.write(3, 64, 64, SendSignaled)}))
			polled(t, neighbour.a.cq, 1)
			if wc := polled(t, victim.cq, 1)[0]; wc.Status != 0 || wc.WRID != 9 {
				t.Errorf("the neighbour's completion: %+v", wc)
			}
		})
	}
}

// A peer may lie about its receives and its wishes: what it gets is its own rings overwritten.
func TestShmScribbledCountersHarmNobody(t *testing.T) {
	const depth = 8
	n := newNode(256)
	defer n.close()
	qp := newQP(n, depth, false)
	defer func() { must(qp.Close()) }()
	s := newStranger(t, depth)
	s.connect(qp, depth, ConnectConfig{AckTimeout: 100 * time.Millisecond})
	m := newMemory(n, 4096, remote)
	defer m.close(n)
	le := binary.LittleEndian
	for i := range 100 {
		le.PutUint64(s.shared[offRecvPosted:], math.MaxUint64>>(i%3))
		le.PutUint64(s.shared[offWakeAt:], uint64(i))
		le.PutUint64(s.shared[offIssued:], uint64(i)+1)
		le.PutUint64(s.shared[offSent:], uint64(i)+1)
		mustGet(qp.PostSend([]SendWR{{WRID: uint64(i), Opcode: OpWriteWithImm, Flags: SendSignaled}}))
		if wc := polled(t, n.cq, 1)[0]; wc.Status != 0 || wc.WRID != uint64(i) {
			t.Fatalf("completion %+v", wc)
		}
	}
	// Messages that never come hold a send for the acknowledgement timeout, no longer.
	le.PutUint64(s.shared[offIssued:], 1<<40)
	start := time.Now()
	mustGet(qp.PostSend([]SendWR{{Opcode: OpWriteWithImm, Flags: SendSignaled, Length: 8, LAddr: m.mr.Addr, LKey: m.mr.LKey}}))
	if wc := polled(t, n.cq, 1)[0]; wc.Status != 12 || time.Since(start) < 50*time.Millisecond {
		t.Fatalf("a send that waits for messages completed with %d after %v", wc.Status, time.Since(start))
	}
}

func TestShmGarbageAtTheListenerHarmsNobody(t *testing.T) {
	const depth = 8
	n := newNode(256)
	defer n.close()
	qp := newQP(n, depth, false)
	defer func() { must(qp.Close()) }()
	s := newStranger(t, depth)
	ep, _ := decodeShmEndpoint(endpoint(qp))
	must(qp.Connect(s.endpoint(depth), ConnectConfig{}))
	stale := ep.Cookie
	stale[3] ^= 1
	for _, c := range []struct {
		name string
		msg  []byte
		fds  []int
	}{
		{"noise", []byte("GET / HTTP/1.1\r\n\r\n"), nil},
		{"too long", bytes.Repeat([]byte{7}, 60000), nil},
		{"no rings", hello(ep.Cookie, s.cookie), nil},
		{"two rings", hello(ep.Cookie, s.cookie), []int{s.rings, s.rings}},
		{"a cut greeting", hello(ep.Cookie, s.cookie)[:39], []int{s.rings}},
		{"another version", append([]byte("RWSH\x02\x00\x00\x00"), hello(ep.Cookie, s.cookie)[8:]...), []int{s.rings}},
		{"nobody's cookie", hello(stale, s.cookie), []int{s.rings}},
		{"another's cookie", hello(ep.Cookie, stale), []int{s.rings}},
		{"rings that may shrink", hello(ep.Cookie, s.cookie), []int{sealedFD(t, int64(len(s.shared)), unix.F_SEAL_GROW)}},
		{"rings too short", hello(ep.Cookie, s.cookie), []int{sealedFD(t, 4096, sealRings)}},
	} {
		t.Run(c.name, func(t *testing.T) {
			sock := dial(t, ep)
			send(t, sock, c.msg, c.fds...)
			unix.SetsockoptTimeval(sock, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 5})
			if k, err := unix.Read(sock, make([]byte, 8)); k != 0 && err != unix.ECONNRESET {
				t.Errorf("answered with %d bytes, %v; expected the end", k, err)
			}
		})
	}
	// Silent ones by the dozen, some of which greet for a queue pair that nobody has connected yet.
	idle := newQP(n, depth, false)
	defer func() { must(idle.Close()) }()
	idleEP, _ := decodeShmEndpoint(endpoint(idle))
	for i := range 200 {
		sock := dial(t, ep)
		if i%4 == 0 {
			send(t, sock, hello(idleEP.Cookie, s.cookie), s.rings)
		}
	}
	start := time.Now()
	s.sock = dial(t, ep)
	send(t, s.sock, hello(ep.Cookie, s.cookie), s.rings)
	if k, err := unix.Read(s.sock, make([]byte, 8)); k != 1 || err != nil {
		t.Fatalf("the honest one was answered with %d bytes, %v", k, err)
	}
	if took := time.Since(start); took > patient/2 {
		t.Errorf("the honest one waited %v", took)
	}
	for qp.State() != StateRTS {
		if time.Since(start) > patient/2 {
			t.Fatalf("the queue pair is in state %d", qp.State())
		}
	}
}

func TestShmWithoutADescriptorToSpareSleepsAndLetsInLater(t *testing.T) {
	n := newNode(16)
	defer n.close()
	qp := newQP(n, 8, false)
	defer func() { must(qp.Close()) }()
	ep, _ := decodeShmEndpoint(endpoint(qp))
	var old unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &old); err != nil {
		t.Fatal(err)
	}
	sock, late := dial(t, ep), newSocket(t)
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 64, Max: old.Max}); err != nil {
		t.Fatal(err)
	}
	defer unix.Setrlimit(unix.RLIMIT_NOFILE, &old)
	var taken []int
	closeTaken := sync.OnceFunc(func() {
		for _, fd := range taken {
			unix.Close(fd)
		}
	})
	defer closeTaken()
	for {
		fd, err := unix.Dup(sock)
		if err != nil {
			break
		}
		taken = append(taken, fd)
	}
	// The first newcomer may have been let in before; this one cannot be: no descriptor is free.
	dialBy(t, late, ep)
	cpu := func() time.Duration {
		var u unix.Rusage
		if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
			t.Fatal(err)
		}
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	before := cpu()
	time.Sleep(300 * time.Millisecond)
	if spent := cpu() - before; spent > 30*time.Millisecond {
		t.Errorf("300 ms with a newcomer that cannot be let in took %v of the CPU", spent)
	}
	closeTaken()
	send(t, late, []byte("noise"))
	unix.SetsockoptTimeval(late, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 5})
	k, err := unix.Read(late, make([]byte, 8))
	for err == unix.EINTR {
		k, err = unix.Read(late, make([]byte, 8))
	}
	if k != 0 && err != unix.ECONNRESET {
		t.Errorf("noise was answered with %d bytes, %v; expected the end", k, err)
	}
}

func TestShmRegistersOnlyMemoryThatCannotShrink(t *testing.T) {
	runtime.LockOSThread() // for LastError
	defer runtime.UnlockOSThread()
	n := newNode(16)
	defer n.close()
	m := newMemory(n, 8192, remote)
	defer m.close(n)
	if err := unix.Ftruncate(m.fd, 4096); err != unix.EPERM {
		t.Errorf("shrinking registered memory: %v", err)
	}
	loose, err := unix.MemfdCreate("loose", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(loose)
	unix.Ftruncate(loose, 8192)
	addr := unsafe.Pointer(&m.data[0])
	for _, c := range []struct {
		name           string
		length, offset uint64
		access         Access
		fd             int
	}{
		{"no memfd", 8192, 0, remote, -1},
		{"not a memfd", 1, 0, remote, 0},
		{"a memfd that takes no seals", 8192, 0, remote, loose},
		{"past the memfd's end", 8192, 4096, remote, m.fd},
		{"an offset past it", 1, 1 << 40, remote, m.fd},
		{"an offset that wraps", 8192, math.MaxUint64 - 4095, remote, m.fd},
		{"remote write alone", 8192, 0, 2, m.fd},
		{"unknown access", 8192, 0, 8, m.fd},
	} {
		if _, err := n.pd.RegisterMR(addr, c.length, c.access, c.fd, c.offset); err == nil {
			t.Errorf("%s: registered", c.name)
		}
	}
}
