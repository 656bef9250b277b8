package fabric

import (
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const lingers = 20 * time.Second

// lingering returns n descriptors of TCP sockets with data that nobody takes: the last close of one lasts as long as it lingers.
func lingering(t *testing.T, n int) (fds []int) {
	t.Helper()
	check := func(err error) {
		if err != nil {
			t.Helper()
			t.Fatal(err)
		}
	}
	listener, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	check(err)
	defer unix.Close(listener)
	check(unix.SetsockoptInt(listener, unix.SOL_SOCKET, unix.SO_RCVBUF, 4096))
	check(unix.Bind(listener, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}))
	check(unix.Listen(listener, 1))
	at, err := unix.Getsockname(listener)
	check(err)
	for range n {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		check(err)
		check(unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, 4096))
		check(unix.Connect(fd, at))
		reader, _, err := unix.Accept4(listener, unix.SOCK_CLOEXEC)
		check(err)
		t.Cleanup(func() { unix.Close(reader) }) // with unread data, which ends the lingering
		for sent := 1; sent > 0; {
			sent, _ = unix.SendmsgN(fd, make([]byte, 1<<16), nil, nil, unix.MSG_DONTWAIT)
		}
		check(unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1, Linger: int32(lingers.Seconds())}))
		fds = append(fds, fd)
	}
	return fds
}

// handOver sends descriptors in a message, and leaves them to its receiver.
func handOver(t *testing.T, sock int, msg []byte, fds ...int) {
	t.Helper()
	send(t, sock, msg, fds...)
	for _, fd := range fds {
		unix.Close(fd)
	}
}

func TestShmNothingThatAPeerHandsOverHoldsUpOthers(t *testing.T) {
	const depth = 8
	region := ctl(1, strangersKey, 1, uint32(remote), 1<<30, 4096, 0)
	greet := func(t *testing.T, n *node, msg []byte, fds ...int) {
		qp := newQP(n, depth, false)
		defer func() { must(qp.Close()) }()
		ep, _ := decodeShmEndpoint(endpoint(qp))
		s := newStranger(t, depth)
		must(qp.Connect(s.endpoint(depth), ConnectConfig{Timeout: 100 * time.Millisecond}))
		n.shut() // the last to close is to be the door
		handOver(t, dial(t, ep), slices.Concat(hello(ep.Cookie, s.cookie), msg), fds...)
		n.letIn()
		for end := time.Now().Add(patient); qp.State() != StateErr; n.progress() {
			if time.Now().After(end) {
				t.Fatal("the queue pair waits for its peer after its time")
			}
		}
	}
	attacked := func(t *testing.T, n *node) (*stranger, *QP) {
		qp := newQP(n, depth, false)
		must(qp.PostRecv(5, depth))
		s := newStranger(t, depth)
		s.connect(qp, depth, ConnectConfig{RNRTimeout: 5 * time.Second})
		return s, qp
	}
	for _, c := range []struct {
		name   string
		attack func(t *testing.T, n *node)
	}{
		{"as a region, to a lane", func(t *testing.T, n *node) {
			s, qp := attacked(t, n)
			handOver(t, s.sock, region, lingering(t, 1)...)
			polled(t, n.cq, depth)
			must(qp.Close())
		}},
		{"more than a region has, to a lane", func(t *testing.T, n *node) {
			s, qp := attacked(t, n)
			handOver(t, s.sock, region, lingering(t, 12)...)
			polled(t, n.cq, depth)
			must(qp.Close())
		}},
		{"with a wake-up, to a lane", func(t *testing.T, n *node) {
			s, qp := attacked(t, n)
			handOver(t, s.sock, []byte("W"), lingering(t, 1)...)
			polled(t, n.cq, depth)
			must(qp.Close())
		}},
		{"unread when the queue pair goes", func(t *testing.T, n *node) {
			s, qp := attacked(t, n)
			handOver(t, s.sock, region, sealedFD(t, 4096, unix.F_SEAL_SHRINK))
			handOver(t, s.sock, nil)
			handOver(t, s.sock, region, lingering(t, 1)...)
			must(qp.Close())
		}},
		{"as rings, to the door", func(t *testing.T, n *node) { greet(t, n, nil, lingering(t, 1)...) }},
		{"more than rings, to the door", func(t *testing.T, n *node) { greet(t, n, nil, lingering(t, 12)...) }},
		{"with a malformed greeting, to the door", func(t *testing.T, n *node) { greet(t, n, []byte("!"), lingering(t, 1)...) }},
		{"behind a malformed greeting, to the door", func(t *testing.T, n *node) {
			qp := newQP(n, depth, false)
			defer func() { must(qp.Close()) }()
			ep, _ := decodeShmEndpoint(endpoint(qp))
			n.shut()
			sock := dial(t, ep)
			handOver(t, sock, []byte("!"))
			handOver(t, sock, []byte("!"), lingering(t, 1)...)
			n.letIn()
		}},
		{"when the door shuts", func(t *testing.T, _ *node) {
			n := newNode(depth)
			qp := newQP(n, depth, false)
			ep, _ := decodeShmEndpoint(endpoint(qp))
			n.shut()
			handOver(t, dial(t, ep), []byte("!"), lingering(t, 1)...)
			must(qp.Close())
			n.close()
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			began := time.Now()
			n := newNode(8 * depth)
			t.Run("attacked", func(t *testing.T) { c.attack(t, n) })
			neighbour := newNode(8 * depth)
			qa, qb := newQP(neighbour, depth, false), newQP(n, depth, false)
			connect(qa, qb, ConnectConfig{})
			must(qa.Close())
			must(qb.Close())
			neighbour.close()
			n.close()
			if took := time.Since(began); took > lingers/2 {
				t.Errorf("lane and door were held up for %v", took)
			}
		})
	}
}
