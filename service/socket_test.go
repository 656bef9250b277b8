package service_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rackweave/rackweave/service"
	"github.com/rackweave/rackweave/service/api"
	"github.com/rackweave/rackweave/service/api/apiconnect"
)

// asUser runs f in a thread of another user, and ends the thread.
func asUser(uid int, f func()) (err error) {
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

func TestTheUnixSocketIsForItsUserOnly(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skipf("user %d cannot act as another", os.Geteuid())
	}
	t.Setenv("XDG_RUNTIME_DIR", t.TempDir())
	s, _ := serve(t, service.Options{})
	path := api.SocketPath(s.Addr().(*net.TCPAddr))
	drain := func() (code int, text string, err error) {
		dial := func(context.Context, string, string) (net.Conn, error) { return net.Dial("unix", path) }
		h := &http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}, Timeout: deadline}
		r, err := h.Post("http://x"+apiconnect.JobServiceDrainProcedure, "application/json", strings.NewReader(`{}`))
		if err != nil {
			return 0, "", err
		}
		defer r.Body.Close()
		b, err := io.ReadAll(r.Body)
		return r.StatusCode, string(b), err
	}
	connect := func() (c *net.UnixConn, err error) {
		if e := asUser(65534, func() { c, err = net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"}) }); e != nil {
			t.Fatal(e)
		}
		return c, err
	}
	if c, err := connect(); err == nil {
		c.Close()
		t.Error("another user reaches the socket")
	}
	// Were its folders open to others, the socket would still know them.
	for dir := path; dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o777); err != nil {
			t.Fatal(err)
		}
	}
	c, err := connect()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	io.WriteString(c, "POST "+apiconnect.JobServiceDrainProcedure+" HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"+
		"Connection: close\r\nContent-Length: 2\r\n\r\n{}")
	answer, err := io.ReadAll(c)
	if err != nil || !bytes.HasPrefix(answer, []byte("HTTP/1.1 403")) {
		t.Errorf("another user's drain: %.100s, %v, want it forbidden", answer, err)
	}
	if code, text, err := drain(); err != nil || code != http.StatusOK {
		t.Errorf("the user's own drain: %d %s, %v", code, text, err)
	}
}

func TestSocketsOfKilledAggregatorsAreRemoved(t *testing.T) {
	t.Setenv("XDG_RUNTIME_DIR", t.TempDir())
	first, _ := serve(t, service.Options{})
	alive := api.SocketPath(first.Addr().(*net.TCPAddr))
	dead := func(name string) string {
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(filepath.Dir(alive), name), Net: "unix"})
		if err != nil {
			t.Fatal(err)
		}
		l.SetUnlinkOnClose(false)
		l.Close()
		return l.Addr().String()
	}
	old, young := dead("127.0.0.1.1"), dead("127.0.0.1.2")
	hour := time.Now().Add(-time.Hour)
	if err := errors.Join(os.Chtimes(alive, hour, hour), os.Chtimes(old, hour, hour)); err != nil {
		t.Fatal(err)
	}
	serve(t, service.Options{})
	for path, want := range map[string]bool{alive: true, old: false, young: true} {
		if _, err := os.Lstat(path); (err == nil) != want {
			t.Errorf("%s is there: %v, want %v", path, err == nil, want)
		}
	}
}

func TestRefusalsAreCountedByReasonAndFewAreLogged(t *testing.T) {
	var log bytes.Buffer
	s, ended := serve(t, service.Options{Log: slog.New(slog.NewTextHandler(&log, nil))})
	const calls = 200
	for range calls {
		r, err := http.NewRequest(http.MethodPost, "http://x"+apiconnect.JobServiceRegisterProcedure, strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", "application/json")
		answer, err := direct{s.Handler()}.RoundTrip(r)
		if err != nil || answer.StatusCode != http.StatusUnauthorized {
			t.Fatalf("%v, %v", answer, err)
		}
	}
	page, err := http.Get(s.URL() + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer page.Body.Close()
	text, err := io.ReadAll(page.Body)
	if err != nil || !bytes.Contains(text, []byte(`rackweave_refused_total{reason="session"} 200`)) {
		t.Errorf("metrics tell of no 200 refusals for want of a session: %v", err)
	}
	s.Close()
	<-ended
	if n := strings.Count(log.String(), "turned away"); n == 0 || n > 10 {
		t.Errorf("%d of %d refusals are logged, want a few", n, calls)
	}
}
