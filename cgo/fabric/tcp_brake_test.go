package fabric_test

import (
	"encoding/binary"
	"net"
	"net/netip"
	"os"
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
	check(t, fabric.ConnectQP(waits, endpoint(t, a.newQP(1, 1)), &fabric.ConnectAttr{TimeoutMS: 60_000}), "wait for a peer")
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

func TestTCPManyPeersOfOneAddressComeIn(t *testing.T) {
	a, b := newNode(t, "", 16), newNode(t, "", 16)
	for range 1000 {
		qa, rc := fabric.CreateQP(a.pd, &fabric.QPInit{SendCQ: a.cq, RecvCQ: a.cq, MaxSendWR: 1, MaxRecvWR: 1})
		check(t, rc, "create queue pair")
		qb, rc := fabric.CreateQP(b.pd, &fabric.QPInit{SendCQ: b.cq, RecvCQ: b.cq, MaxSendWR: 1, MaxRecvWR: 1})
		check(t, rc, "create queue pair")
		connect(t, qa, qb, testAttr)
		fabric.DestroyQP(qa)
		fabric.DestroyQP(qb)
	}
}
