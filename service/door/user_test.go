package door

import (
	"fmt"
	"net"
	"os"
	"runtime"
	"syscall"
	"testing"
	"time"
)

func TestAPeerOnLoopbackIsKnownByItsUser(t *testing.T) {
	own := fmt.Sprint("::1%user ", os.Geteuid())
	for listen, want := range map[string]string{"127.0.0.1:0": own, "[::1]:0": own, "127.0.0.9:0": "127.0.0.9"} {
		l, err := net.Listen("tcp", listen)
		if err != nil {
			t.Logf("listen on %s: %v", listen, err)
			continue
		}
		defer l.Close()
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: l.Addr().(*net.TCPAddr).IP}, Timeout: 10 * time.Second}
		there, err := d.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		here, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		if got := whose(here).String(); got != want {
			_, err := userOf(here)
			t.Errorf("a peer at %v is known as %s, want %s: %v", here.RemoteAddr(), got, want, err)
		}
		there.(*net.TCPConn).SetLinger(0)
		there.Close()
		if got := whose(here); got != address(here.RemoteAddr()) && listen != "127.0.0.9:0" {
			t.Errorf("a peer that has gone is known as %s", got)
		}
		here.Close()
	}
}

// as runs f in a thread of another user, and ends the thread.
func as(uid int, f func()) (err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // for ever: the thread ends with the goroutine
		keep := ^uintptr(0)
		if _, _, errno := syscall.RawSyscall(syscall.SYS_SETRESUID, keep, uintptr(uid), keep); errno != 0 {
			err = errno
			return
		}
		f()
	}()
	<-done
	return err
}

func TestAUserWhoFloodsLoopbackKeepsNoOtherOut(t *testing.T) {
	if err := as(65534, func() {}); err != nil {
		t.Skipf("user %d cannot act as another: %v", os.Geteuid(), err)
	}
	d := New(Limits{Connections: 1000, Rate: 0.01, Burst: 50, AllRate: 1000, AllBurst: 1000, KeptOut: time.Minute}, func(string) {})
	l := welcome(t, d, "127.0.0.1:0")
	came := 0
	if err := as(65534, func() {
		for range 200 {
			if dial(t, l, "127.0.0.1", 100*time.Millisecond) {
				came++
			}
		}
	}); err != nil {
		t.Fatal(err)
	}
	if came > 50 {
		t.Errorf("a user who floods came in %d times, want at most 50", came)
	}
	for i := range 20 {
		if !dial(t, l, "127.0.0.1", 10*time.Second) {
			t.Fatalf("another user's connection %d was not let in: kept out are %v", i, d.keptOutNow())
		}
	}
}
