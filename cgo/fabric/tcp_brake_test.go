package fabric_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/rackweave/rackweave/cgo/fabric"
)

// reachable reports whether the listener of an endpoint lets in who comes from an address of loopback.
func reachable(t *testing.T, ep []byte, from net.IP) bool {
	t.Helper()
	d := net.Dialer{Timeout: 200 * time.Millisecond, LocalAddr: &net.TCPAddr{IP: from}}
	c, err := d.Dial("tcp", netip.AddrPortFrom(netip.AddrFrom4([4]byte(ep[16:20])), binary.LittleEndian.Uint16(ep[12:])).String())
	if err != nil {
		if !os.IsTimeout(err) {
			t.Fatal(err)
		}
		return false
	}
	c.(*net.TCPConn).SetLinger(0)
	c.Close()
	return true
}

func TestTCPAnAddressThatFloodsIsKeptOutThoughItsQueuePairWaits(t *testing.T) {
	a, b := newNode(t, "", 16), newNode(t, "", 16)
	waits := b.newQP(1, 1)
	check(t, waits.Connect(endpoint(t, a.newQP(1, 1)), fabric.ConnectConfig{Timeout: time.Minute}))
	flooder, ep := net.IPv4(127, 0, 1, 1), endpoint(t, waits)
	for n := 0; reachable(t, ep, flooder); n++ {
		if n == 5000 {
			t.Fatalf("%d connections of one address came in", n)
		}
	}
	if !reachable(t, ep, net.IPv4(127, 0, 1, 2)) {
		t.Error("another address is kept out too")
	}
	connect(t, a.newQP(1, 1), b.newQP(1, 1), testAttr)
	for end := time.Now().Add(patience); !reachable(t, ep, flooder); {
		if time.Now().After(end) {
			t.Fatal("the flood is over, and its address is kept out still")
		}
	}
}

// TestTCPAPeerHasAMomentToSayWhomItWants lets a crowd that says nothing come between a peer's connection and its hello.
func TestTCPAPeerHasAMomentToSayWhomItWants(t *testing.T) {
	n := newNode(t, "", 16)
	const tries, crowd, moment = 9, 100, 100 * time.Millisecond
	in, late := 0, 0
	for try := range tries {
		qp := n.newQP(1, 1)
		self := endpoint(t, qp)
		from := bytes.Clone(self)
		check(t, qp.Connect(from, testAttr))
		began := time.Now()
		p := dialRaw(t, self)
		var others []net.Conn
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 2, byte(1+try))}} // one address alone is kept out
		for range crowd {
			c, err := d.Dial("tcp", p.RemoteAddr().String())
			if err != nil {
				t.Fatal(err)
			}
			others = append(others, c)
		}
		time.Sleep(10 * time.Millisecond) // for those to come in who may
		p.Write(rawHello(self, from))
		if time.Since(began) > moment/2 {
			late++
		} else if _, err := io.ReadFull(p, make([]byte, 40)); err == nil {
			in++
		}
		for _, c := range others {
			c.Close()
		}
	}
	if late > tries/2 {
		t.Skipf("%d of %d peers said whom they want after %v or more, because the machine is busy", late, tries, moment/2)
	}
	if in <= (tries-late)/2 {
		t.Errorf("%d of %d peers came in that said whom they want within %v", in, tries-late, moment/2)
	}
}

func TestTCPAPeerThatIsTurnedAwayTriesOnceMore(t *testing.T) {
	door, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer door.Close()
	a, b := newNode(t, "", 16), newNode(t, "", 16)
	peer := endpoint(t, b.newQP(1, 1))
	binary.LittleEndian.PutUint16(peer[12:], uint16(door.Addr().(*net.TCPAddr).Port))
	came := make(chan int)
	go func() {
		n := 0
		for ; ; n++ {
			c, err := door.Accept()
			if err != nil {
				break
			}
			c.Close()
		}
		came <- n
	}()
	attr := testAttr
	attr.Active = true
	if err := a.newQP(1, 1).Connect(peer, attr); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("a peer that is turned away twice gets %v", err)
	}
	door.Close()
	if n := <-came; n != 2 {
		t.Errorf("it came %d times", n)
	}
}

func TestTCPManyPeersOfOneAddressComeIn(t *testing.T) {
	a, b := newNode(t, "", 16), newNode(t, "", 16)
	for range 1000 {
		qa, err := a.pd.CreateQP(fabric.QPConfig{CQ: a.cq, MaxSendWR: 1, MaxRecvWR: 1})
		check(t, err)
		qb, err := b.pd.CreateQP(fabric.QPConfig{CQ: b.cq, MaxSendWR: 1, MaxRecvWR: 1})
		check(t, err)
		connect(t, qa, qb, testAttr)
		qa.Close()
		qb.Close()
	}
}
