package verbs_test

import (
	"errors"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rackweave/rackweave/verbs"
	"github.com/rackweave/rackweave/verbs/verbstest"
)

// rdmaDevice is the device that RDMA_DEVICE names: soft-RoCE in the lab's guests, or this machine's own.
func rdmaDevice(t *testing.T) string {
	t.Helper()
	device := os.Getenv("RDMA_DEVICE")
	if device == "" {
		t.Skip("RDMA_DEVICE names no RDMA device of this machine; the lab runs this test in its guests")
	}
	return device
}

// ibvEnd is one end of a connection on an RDMA device.
type ibvEnd struct {
	t   *testing.T
	dev *verbs.Device
	pd  *verbs.PD
	cq  *verbs.CQ
	qp  *verbs.QP
	mr  verbs.MR
	wc  [64]verbs.WC
}

func openIBV(t *testing.T) *ibvEnd {
	t.Helper()
	e := &ibvEnd{t: t}
	var err error
	e.dev, err = verbs.Open(verbs.ProviderIBV, rdmaDevice(t), "")
	e.must(err)
	t.Cleanup(func() { e.must(e.dev.Close()) })
	e.pd, err = e.dev.AllocPD()
	e.must(err)
	t.Cleanup(func() { e.must(e.pd.Close()) })
	e.cq, err = e.dev.CreateCQ(512)
	e.must(err)
	t.Cleanup(func() { e.must(e.cq.Close()) })
	buf := verbstest.Private(t, 64<<10)
	e.mr, err = e.pd.RegisterMR(buf.Addr, uint64(buf.Len), verbs.AccessLocalWrite|verbs.AccessRemoteWrite, -1, 0)
	e.must(err)
	t.Cleanup(func() { e.must(e.pd.DeregisterMR(e.mr)) })
	e.qp, err = e.pd.CreateQP(verbs.QPConfig{CQ: e.cq, MaxSendWR: 256, MaxRecvWR: 256})
	e.must(err)
	t.Cleanup(func() { e.must(e.qp.Close()) })
	return e
}

func (e *ibvEnd) must(err error) {
	e.t.Helper()
	if err != nil {
		e.t.Fatal(err)
	}
}

func (e *ibvEnd) connect(to *ibvEnd, c verbs.ConnectConfig) error {
	peer, err := to.qp.Endpoint()
	e.must(err)
	return e.qp.Connect(peer, c)
}

// take polls until n completions came, all of success.
func (e *ibvEnd) take(n int) {
	e.t.Helper()
	for end := time.Now().Add(2 * time.Minute); n > 0; {
		got, err := e.cq.Poll(e.wc[:])
		e.must(err)
		for _, wc := range e.wc[:got] {
			if wc.Status != verbs.WCSuccess {
				e.t.Fatalf("work request %d: %s", wc.WRID, wc.Status)
			}
		}
		if n -= got; time.Now().After(end) {
			e.t.Fatalf("%d completions are missing", n)
		}
		time.Sleep(50 * time.Microsecond)
	}
}

// write is a write with immediate of 64 bytes.
func (e *ibvEnd) write(to *ibvEnd, flags verbs.SendFlags) verbs.SendWR {
	return verbs.SendWR{
		LAddr: e.mr.Addr, LKey: e.mr.LKey, RAddr: to.mr.Addr, RKey: to.mr.RKey, Length: 64,
		Opcode: verbs.OpWriteWithImm, Flags: flags,
	}
}

func TestIBVRefusesWhatTheDeviceHasNot(t *testing.T) {
	device := rdmaDevice(t)
	for _, c := range []struct {
		device, options string
		errno           syscall.Errno
		want            string
	}{
		{"no-such-device", "", unix.ENODEV, "no RDMA device named no-such-device"},
		{device, "port=200", unix.EINVAL, "has ports 1 to"},
		{device, "port=0", unix.EINVAL, "port=0 is not a number from 1 to 255"},
		{device, "gid=255", unix.EINVAL, "no usable GID at index 255; it has: 0 fe80::"},
		{device, "timeout=many", unix.EINVAL, "timeout=many is not a number"},
		{device, "color=red", unix.EINVAL, "color"},
	} {
		t.Run(c.device+" "+c.options, func(t *testing.T) {
			d, err := verbs.Open(verbs.ProviderIBV, c.device, c.options)
			if err == nil {
				d.Close()
			}
			if !errors.Is(err, c.errno) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %v with %q", err, c.errno, c.want)
			}
		})
	}
}

func TestIBVDeviceOptionsHold(t *testing.T) {
	d, err := verbs.Open(verbs.ProviderIBV, rdmaDevice(t), "port=1,tc=106,sl=3,timeout=12,retry=3")
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if d.Attr().MTU == 0 || d.Attr().Provider != verbs.ProviderIBV {
		t.Errorf("got %+v", d.Attr())
	}
	names, err := verbs.Devices(verbs.ProviderIBV)
	if err != nil || !strings.Contains(strings.Join(names, " "), d.Attr().Name) {
		t.Errorf("devices %v, error %v", names, err)
	}
}

func TestIBVConnectsToAPeerThatComesLater(t *testing.T) {
	a, b := openIBV(t), openIBV(t)
	a.must(a.qp.PostRecv(7, 3)) // survives the attempts
	late := make(chan error, 1)
	go func() {
		time.Sleep(600 * time.Millisecond)
		late <- b.connect(a, verbs.ConnectConfig{})
	}()
	err := a.connect(b, verbs.ConnectConfig{Active: true, Timeout: 10 * time.Second, AckTimeout: 100 * time.Millisecond})
	a.must(<-late)
	a.must(err)
	for range 3 {
		_, err := b.qp.PostSend([]verbs.SendWR{b.write(a, verbs.SendSignaled)})
		a.must(err)
	}
	b.take(3)
	a.take(3)
	if a.wc[0].WRID != 7 {
		t.Errorf("the receive has id %d, expected 7", a.wc[0].WRID)
	}
}

func TestIBVSaysHowToLockMoreMemory(t *testing.T) {
	e := openIBV(t)
	if os.Getuid() != 0 {
		t.Skip("only root can lower its limits and rights for the time of a test")
	}
	buf := verbstest.Private(t, 8<<20)
	var old unix.Rlimit
	e.must(unix.Getrlimit(unix.RLIMIT_MEMLOCK, &old))
	e.must(unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: 1 << 20, Max: old.Max}))
	defer unix.Setrlimit(unix.RLIMIT_MEMLOCK, &old)
	result := make(chan error)
	go func() {
		// This thread alone becomes an ordinary user's, and ends with the goroutine.
		runtime.LockOSThread()
		const nobody = 65534
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, nobody, nobody, nobody); errno != 0 {
			result <- errno
			return
		}
		_, err := e.pd.RegisterMR(buf.Addr, uint64(buf.Len), verbs.AccessLocalWrite, -1, 0)
		result <- err
	}()
	err := <-result
	if !errors.Is(err, unix.ENOMEM) {
		t.Fatalf("got %v, want ENOMEM", err)
	}
	for _, want := range []string{"8192 KiB more", "1024 KiB in all", "ulimit -l", "LimitMEMLOCK", "limits.conf"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not say %q: %v", want, err)
		}
	}
}

func TestIBVReportsItsPortsLink(t *testing.T) {
	device := rdmaDevice(t)
	netdev := os.Getenv("RDMA_TEST_NETDEV")
	if netdev == "" {
		t.Skip("RDMA_TEST_NETDEV names no network device that the test may take down; the lab's guests have one")
	}
	d, err := verbs.Open(verbs.ProviderIBV, device, "")
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	for _, c := range []struct {
		to   string
		want verbs.EventType
	}{{"down", verbs.EventPortErr}, {"up", verbs.EventPortActive}} {
		if out, err := exec.Command("ip", "link", "set", netdev, c.to).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		for end := time.Now().Add(2 * time.Minute); ; {
			ev, ok, err := d.AsyncEvent(time.Second)
			if err != nil || time.Now().After(end) {
				t.Fatalf("link %s: no %v, error %v", c.to, c.want, err)
			}
			if ok && ev.Type == c.want {
				break
			}
		}
		if c.to == "down" {
			if d, err := verbs.Open(verbs.ProviderIBV, device, ""); !errors.Is(err, unix.ENETDOWN) {
				t.Errorf("opening a device without a link: %v, error %v", d, err)
			}
			here := verbs.ProvidersHere()
			names, err := verbs.Devices(verbs.ProviderIBV)
			if err != nil || len(names) == 1 && slices.Contains(here, verbs.ProviderIBV) {
				t.Errorf("of %v none has a link, and these can be used: %v; error %v", names, here, err)
			}
		}
	}
}
