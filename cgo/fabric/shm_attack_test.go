package fabric

import (
	"bytes"
	"cmp"
	"runtime"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/rackweave/rackweave/cgo/fabric/fabrictest"
)

// blocks returns how many bytes of a file have pages.
func blocks(t *testing.T, fd int) int64 {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		t.Fatal(err)
	}
	return st.Blocks * 512
}

// attack is a stranger at a queue pair with a region of its own, registered as key.
const strangersKey = 0x7001

type attack struct {
	*stranger
	victim *node
	qp     *QP
	slots  *memory // where the stranger may write
	fd     int     // of its region
}

func newAttack(t *testing.T, depth int, byRef bool, size int64, whole bool) *attack {
	t.Helper()
	a := &attack{victim: newNode(8 * depth)}
	a.slots = newMemory(a.victim, 1<<20, remote)
	a.qp = newQP(a.victim, depth, byRef)
	must(a.qp.PostRecv(5, depth))
	a.stranger = newStranger(t, depth)
	a.connect(a.qp, uint32(depth), ConnectConfig{RNRTimeout: 5 * time.Second})
	a.fd = sealedFD(t, size, unix.F_SEAL_SHRINK)
	if whole {
		if err := unix.Fallocate(a.fd, 0, 0, size); err != nil {
			t.Fatal(err)
		}
	}
	send(t, a.sock, ctl(1, strangersKey, 1, uint32(remote), 1<<30, uint64(size), 0), a.fd)
	t.Cleanup(func() {
		must(a.qp.Close())
		a.slots.close(a.victim)
		a.victim.close()
	})
	return a
}

func at(addr uint64, n int) []byte {
	return unsafe.Slice((*byte)(*(*unsafe.Pointer)(unsafe.Pointer(&addr))), n)
}

func TestShmPayloadsInHolesFillNone(t *testing.T) {
	const depth, chunk, size = 64, 32 << 10, 256 << 20
	a := newAttack(t, depth, true, size, false)
	data := bytes.Repeat([]byte{7}, chunk)
	if _, err := unix.Pwrite(a.fd, data, 5*chunk); err != nil {
		t.Fatal(err)
	}
	before := blocks(t, a.fd)
	for i := range depth {
		raddr := a.slots.mr.Addr + uint64(i%8*chunk)
		offset := uint64(i) * (size / depth)
		if i == 9 {
			offset = 5 * chunk
		}
		a.descriptor(i, 1<<30+offset, raddr, strangersKey, a.slots.mr.RKey, chunk, 1)
		wc := polled(t, a.victim.cq, 1)[0]
		if wc.Status != 0 || wc.SrcAddr != 1<<30+offset {
			t.Fatalf("payload %d: %+v", i, wc)
		}
		want := make([]byte, chunk)
		if i == 9 {
			want = data
		}
		if !bytes.Equal(at(wc.Addr, chunk), want) {
			t.Errorf("payload %d is not what the file has", i)
		}
	}
	if after := blocks(t, a.fd); after != before {
		t.Errorf("reading a file with holes filled %d bytes of them", after-before)
	}
}

func TestShmWritesFillFewHoles(t *testing.T) {
	const depth, chunk, size = 64, 32 << 10, 512 << 20
	a := newAttack(t, depth, true, size, false)
	src := newMemory(a.victim, chunk, remote)
	defer src.close(a.victim)
	le := func(off int, v uint64) { *(*uint64)(unsafe.Pointer(&a.shared[off])) = v }
	le(offRecvPosted, 1<<30)
	le(offIssued, 1)
	le(offSent, 1)
	n := 0
	for ; n < size/chunk; n++ {
		wr := SendWR{LAddr: src.mr.Addr, LKey: src.mr.LKey, RAddr: 1<<30 + uint64(n*chunk), RKey: strangersKey, Length: chunk,
			Opcode: OpWriteWithImm, Flags: SendSignaled}
		if _, err := a.qp.PostSend([]SendWR{wr}); err != nil {
			break
		}
		if polled(t, a.victim.cq, 1)[0].Status != 0 {
			break
		}
	}
	if got := blocks(t, a.fd); got > 70<<20 || n == 0 {
		t.Errorf("%d writes filled %d MiB of a peer's holes", n, got>>20)
	}
}

func TestShmPagesTakenBackFailOnlyTheirQueuePair(t *testing.T) {
	const depth, size = 8, 4 << 20
	// Pages that are not there raise SIGBUS: of huge pages when the pool is empty, here because the kernel is asked to.
	uffd, _, errno := unix.Syscall(unix.SYS_USERFAULTFD, unix.O_CLOEXEC|1, 0, 0) // 1: UFFD_USER_MODE_ONLY
	if errno != 0 {
		t.Skipf("userfaultfd(2): %v", errno)
	}
	defer unix.Close(int(uffd))
	const sigbus, shmem = 1 << 7, 1 << 5
	api := struct{ api, features, ioctls uint64 }{0xaa, sigbus | shmem, 0}
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uffd, 0xc018aa3f, uintptr(unsafe.Pointer(&api))); errno != 0 {
		t.Skipf("userfaultfd's SIGBUS: %v", errno)
	}
	for _, reader := range []string{"Go", "C"} {
		t.Run(reader, func(t *testing.T) {
			a := newAttack(t, depth, true, size, true)
			neighbour := newPair(t, depth, false)
			a.descriptor(0, 1<<30, a.slots.mr.Addr, strangersKey, a.slots.mr.RKey, 4096, 1)
			wc := polled(t, a.victim.cq, 1)[0]
			if wc.Status != 0 || wc.Addr == 0 {
				t.Fatalf("the payload: %+v", wc)
			}
			reg := struct{ start, length, mode, ioctls uint64 }{wc.Addr, size, 1, 0}
			if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uffd, 0xc020aa00, uintptr(unsafe.Pointer(&reg))); errno != 0 {
				t.Skipf("userfaultfd of shared memory: %v", errno)
			}
			if err := unix.Fallocate(a.fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, size); err != nil {
				t.Fatal(err)
			}
			got := make([]byte, 4096)
			if reader == "Go" {
				copy(got, at(wc.Addr, 4096))
			} else {
				fabrictest.ShmCopy(got, at(wc.Addr, 4096), false)
			}
			if !bytes.Equal(got, make([]byte, 4096)) {
				t.Error("a page that is gone reads as something")
			}
			for _, wc := range polled(t, a.victim.cq, depth-1) {
				if wc.Status != 5 {
					t.Errorf("completion %+v", wc)
				}
			}
			if a.qp.State() != StateErr {
				t.Errorf("the queue pair is in state %d", a.qp.State())
			}
			must(neighbour.qb.PostRecv(9, 1))
			mustGet(neighbour.qa.PostSend([]SendWR{neighbour.write(3, 64, 64, SendSignaled)}))
			if wc := polled(t, neighbour.b.cq, 1)[0]; wc.Status != 0 {
				t.Errorf("the neighbour's completion: %+v", wc)
			}
		})
	}
}

func TestShmInlineSendsWithoutReceivesAreBounded(t *testing.T) {
	const depth, chunk = 1024, 1 << 20
	a := newAttack(t, 8, true, 64<<20, true)
	cq := a.victim.cq
	qp := mustGet(a.victim.pd.CreateQP(QPConfig{CQ: cq, MaxSendWR: depth, MaxRecvWR: 8, MaxInline: chunk}))
	defer func() { must(qp.Close()) }()
	s := newStranger(t, 8)
	s.connect(qp, 8, ConnectConfig{RNRTimeout: 5 * time.Second})
	src := make([]byte, chunk)
	n, refused := 0, error(nil)
	for ; n < depth; n++ {
		wr := SendWR{LAddr: uint64(uintptr(unsafe.Pointer(&src[0]))), RAddr: 1 << 30, RKey: strangersKey, Length: chunk,
			Opcode: OpWriteWithImm, Flags: SendInline}
		if _, refused = qp.PostSend([]SendWR{wr}); refused != nil {
			break
		}
	}
	if n == 0 || n > 8 || refused == nil {
		t.Errorf("%d MiB were copied for a peer that takes nothing, then: %v", n, refused)
	}
}

func TestShmARegionForAPeerIsToldToNobodyElse(t *testing.T) {
	const depth = 8
	a := newAttack(t, depth, false, 4096, true)
	other := newMemory(a.victim, 8192, remote|AccessForPeer(7))
	defer other.close(a.victim)
	unix.SetsockoptTimeval(a.sock, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 200_000})
	told := 0
	for {
		msg, oob := make([]byte, 64), make([]byte, 64)
		n, oobn, _, _, err := unix.Recvmsg(a.sock, msg, oob, unix.MSG_CMSG_CLOEXEC)
		if err != nil {
			break
		}
		if n > 1 {
			told++
		}
		if rights, _ := unix.ParseSocketControlMessage(oob[:oobn]); len(rights) > 0 {
			fds, _ := unix.ParseUnixRights(&rights[0])
			for _, fd := range fds {
				unix.Close(fd)
			}
		}
	}
	if told != 1 {
		t.Errorf("the stranger was told of %d regions, expected only the one for all", told)
	}
	a.descriptor(0, 0, other.mr.Addr, 0, other.mr.RKey, 8, 0)
	if wc := polled(t, a.victim.cq, depth)[0]; wc.Status != 5 {
		t.Errorf("it wrote to a region for another: %+v", wc)
	}
}

func TestShmRegionsTakeASmallPartOfTheTime(t *testing.T) {
	const first, inAMillisecond = 256, 2
	a := newAttack(t, 8, false, 4096, true)
	region := ctl(1, strangersKey, 1, uint32(remote), 1<<30, 4096, 0)
	sent, held, began := 0, 0, time.Now() // the socket holds some
	for time.Since(began) < 300*time.Millisecond {
		err := unix.Sendmsg(a.sock, region, unix.UnixRights(a.fd), nil, unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT)
		if err == nil {
			sent++
			continue
		}
		if err != unix.EAGAIN && err != unix.ETOOMANYREFS {
			t.Fatal(err)
		}
		held = cmp.Or(held, sent)
		a.victim.progress()
	}
	ms := int(time.Since(began).Milliseconds()) + 20
	if taken, most := sent-held, first+inAMillisecond*ms; taken > most {
		t.Errorf("%d regions were taken in %d ms, want at most %d", taken, ms, most)
	}
}

func TestShmAPeerCannotTakeAllMappings(t *testing.T) {
	const depth = 8
	a := newAttack(t, depth, true, 4096, true)
	refused := false
	for slot := uint32(2); slot < 4096 && !refused; slot++ {
		msg := ctl(1, 0x7000|slot|1<<13, slot, uint32(remote), 1<<32+uint64(slot)<<12, 4096, 0)
		for {
			err := unix.Sendmsg(a.sock, msg, unix.UnixRights(a.fd), nil, unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT)
			if err == nil {
				break
			}
			if err != unix.EAGAIN && err != unix.ETOOMANYREFS {
				refused = true
				break
			}
			a.victim.progress()
		}
		a.victim.progress()
	}
	b := newAttack(t, depth, true, 4096, true)
	b.descriptor(0, 1<<30, b.slots.mr.Addr, strangersKey, b.slots.mr.RKey, 4096, 1)
	if wc := polled(t, b.victim.cq, 1)[0]; wc.Status != 0 {
		t.Errorf("the next peer's payload: %+v", wc)
	}
}

func TestShmOtherUsersStayOutsideUnlessTold(t *testing.T) {
	if unix.Geteuid() != 0 {
		t.Skip("geteuid(2): not root, and only root can be another user")
	}
	for options, let := range map[string]bool{"": false, "users=same": false, "users=any": true} {
		t.Run(options, func(t *testing.T) {
			n := newNodeWith(64, options)
			defer n.close()
			qp := newQP(n, 8, false)
			defer func() { must(qp.Close()) }()
			s := newStranger(t, 8)
			ep, _ := decodeShmEndpoint(endpoint(qp))
			must(qp.Connect(s.endpoint(8), ConnectConfig{}))
			answered := make(chan int)
			go func() {
				runtime.LockOSThread() // the thread ends with the goroutine, and its user with it
				if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, ^uintptr(0), 65534, ^uintptr(0)); errno != 0 {
					answered <- -1
					return
				}
				s.sock = dial(t, ep)
				unix.Sendmsg(s.sock, hello(ep.Cookie, s.cookie), unix.UnixRights(s.rings), nil, unix.MSG_NOSIGNAL)
				unix.SetsockoptTimeval(s.sock, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 5})
				k, _ := unix.Read(s.sock, make([]byte, 8))
				answered <- max(k, 0)
			}()
			if k := <-answered; k < 0 || (k == 1) != let {
				t.Errorf("a process of another user read %d bytes of an answer, expected to be let in: %v", k, let)
			}
		})
	}
	if _, err := Open("shm", "", "users=some"); err == nil {
		t.Error("users=some was taken")
	}
}
