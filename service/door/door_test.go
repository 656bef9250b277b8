package door

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/time/rate"
)

// dial connects from an address of this host and reports whether it was let in, that is whether the listener answers.
func dial(t *testing.T, l net.Listener, from string, within time.Duration) bool {
	t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}, Timeout: within}
	c, err := d.Dial("tcp", l.Addr().String())
	if err != nil {
		return false
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(time.Minute))
	_, err = c.Read(make([]byte, 1))
	return err == nil
}

// welcome answers each connection that the door lets in with a byte.
func welcome(t *testing.T, d *Door, address string) net.Listener {
	t.Helper()
	raw, err := Listen(t.Context(), address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { raw.Close() })
	l := d.Listen(raw)
	go func() {
		for {
			c, err := l.Accept()
			if errors.Is(err, net.ErrClosed) {
				return
			}
			c.Write([]byte{'x'})
			time.AfterFunc(time.Second, func() { c.Close() })
		}
	}()
	return raw
}

func TestAnAddressThatConnectsTooOftenIsKeptOutByTheKernelForAWhile(t *testing.T) {
	var refused atomic.Int64
	d := New(Limits{Connections: 100, Rate: 0.01, Burst: 3, AllRate: 1000, AllBurst: 1000, KeptOut: time.Minute},
		func(string) { refused.Add(1) })
	l := welcome(t, d, "127.0.0.1:0")
	for i := range 3 {
		if !dial(t, l, "127.0.0.2", 10*time.Second) {
			t.Fatalf("connection %d, as the address may have three, was not let in", i)
		}
	}
	for end := time.Now().Add(2 * time.Minute); len(d.keptOutNow()) == 0 && time.Now().Before(end); {
		dial(t, l, "127.0.0.2", 100*time.Millisecond)
	}
	time.Sleep(100 * time.Millisecond) // the filter follows
	for range 5 {
		if refused := refused.Load(); dial(t, l, "127.0.0.2", 200*time.Millisecond) {
			t.Fatalf("an address that is kept out came in after %d refusals", refused)
		}
	}
	if n := refused.Load(); n > 2 {
		t.Errorf("%d connections reached the process, want the kernel to drop them", n)
	}
	if !dial(t, l, "127.0.0.3", 10*time.Second) {
		t.Error("another address was not let in")
	}
	d.mu.Lock()
	for a := range d.keptOut {
		d.keptOut[a] = time.Now().Add(-time.Second)
	}
	for _, p := range d.peers {
		p.rate = rate.NewLimiter(rate.Inf, 1)
	}
	d.mu.Unlock()
	if err := keepOut(l.(*net.TCPListener), d.keptOutNow()); err != nil {
		t.Fatal(err)
	}
	if !dial(t, l, "127.0.0.2", 10*time.Second) {
		t.Error("the address was not let in when its time was over")
	}
}

func TestWhereManyAddressesComeEachGetsAFew(t *testing.T) {
	d := New(Limits{Connections: 1000, Rate: 0.01, Burst: 1000, AllRate: 0.01, AllBurst: 10, KeptOut: time.Minute}, func(string) {})
	n := map[string]int{}
	for _, from := range []string{"10.0.0.1", "10.0.0.2", "fd00::1", "fd00::2"} {
		for range 100 {
			c, other := net.Pipe()
			defer other.Close()
			if d.enter(from4{c, from}) != nil {
				n[from]++
			}
		}
	}
	// The first spends what all have. The last two are one network.
	if n["10.0.0.1"] != 10 || n["10.0.0.2"] != leastOfPeer || n["fd00::1"] != leastOfPeer || n["fd00::2"] != 0 {
		t.Errorf("let in: %v", n)
	}
}

// from4 is a connection from a given address.
type from4 struct {
	net.Conn
	ip string
}

func (c from4) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.ParseIP(c.ip), Port: 1} }

func TestAFilterOfManyAddressesKeepsOutItsOwn(t *testing.T) {
	for listen, from := range map[string][2]string{"127.0.0.1:0": {"127.0.0.7", "127.0.0.8"}, "[::1]:0": {"::1", ""}} {
		l, err := Listen(t.Context(), listen)
		if err != nil {
			t.Logf("listen on %s: %v", listen, err)
			continue
		}
		defer l.Close()
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from[0])}, Timeout: 10 * time.Second}
		open, err := d.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer open.Close()
		many := []netip.Addr{address(&net.TCPAddr{IP: net.ParseIP(from[0])})}
		for i := range byte(100) {
			many = append(many, netip.AddrFrom4([4]byte{10, 0, 0, i}), address(&net.TCPAddr{IP: net.IP{0xfd, i, 15: 1}}))
		}
		for len(many) < maxKeptOut {
			many = append(many, address(&net.TCPAddr{IP: net.IP{0xfe, byte(len(many)), byte(len(many) >> 8), 15: 1}}))
		}
		if err := keepOut(l.(*net.TCPListener), many); err != nil {
			t.Fatalf("a filter of %d addresses: %v", len(many), err)
		}
		d.Timeout = 200 * time.Millisecond
		if c, err := d.Dial("tcp", l.Addr().String()); err == nil {
			t.Errorf("%s: %v answers, want nothing", from[0], c.RemoteAddr())
		}
		if from[1] != "" {
			d.LocalAddr, d.Timeout = &net.TCPAddr{IP: net.ParseIP(from[1])}, 10*time.Second
			c, err := d.Dial("tcp", l.Addr().String())
			if err != nil {
				t.Errorf("%s: %v", from[1], err)
				continue
			}
			c.Close()
		}
		if err := keepOut(l.(*net.TCPListener), nil); err != nil {
			t.Error(err)
		}
	}
}

// A connection knows when something last came from its peer: bytes, or its end.
func TestAConnectionKnowsHowLongItsPeerIsSilent(t *testing.T) {
	d := New(Limits{Connections: 1, Rate: 1, Burst: 1, AllRate: 1, AllBurst: 1}, func(string) {})
	here, there := net.Pipe()
	c := d.enter(here)
	grew := func() (long bool) {
		before := c.Silent()
		time.Sleep(20 * time.Millisecond)
		return c.Silent() >= before+20*time.Millisecond
	}
	if !grew() {
		t.Error("nothing came, and the connection is not silent")
	}
	read := func(what string, want bool) {
		t.Helper()
		before := c.Silent()
		c.Read(make([]byte, 1))
		if heard := c.Silent() < before; heard != want {
			t.Errorf("%s: heard %v, want %v", what, heard, want)
		}
	}
	go there.Write([]byte{1})
	read("a byte", true)
	grew()
	c.SetReadDeadline(time.Now())
	read("a deadline", false)
	c.SetReadDeadline(time.Time{})
	grew()
	there.Close()
	read("the peer's end", true)
	if silent := (*Conn)(nil).Silent(); silent != 0 {
		t.Errorf("no connection is silent for %v", silent)
	}
}

// spent is a listener of a process that has no descriptors left.
type spent struct{ net.Listener }

func (spent) Accept() (net.Conn, error) {
	return nil, &net.OpError{Op: "accept", Err: os.NewSyscallError("accept4", syscall.EMFILE)}
}

func TestAConnectionForWhichNoDescriptorIsLeftIsCounted(t *testing.T) {
	var reasons []string
	d := New(Limits{}, func(reason string) { reasons = append(reasons, reason) })
	if _, err := d.Listen(spent{}).Accept(); !errors.Is(err, syscall.EMFILE) || !slices.Equal(reasons, []string{"descriptors"}) {
		t.Errorf("%v, turned away %q", err, reasons)
	}
}
