// Package attacks starts a real aggregator, attacks it as a stranger or a hostile tenant would, and watches a victim beside it.
package attacks

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/rackweave/rackweave/launch"
)

// patience bounds waits that end at once on a quiet machine.
const patience = 3 * time.Minute

// Aggregator is the process under attack.
type Aggregator struct {
	URL  string
	p    *launch.Server
	pid  int
	idle int64 // resident bytes before any job
	log  bytes.Buffer
}

// Start starts an aggregator with these flags of rackweave serve.
func Start(ctx context.Context, binary string, flags ...string) (*Aggregator, error) {
	a := &Aggregator{}
	argv := append([]string{binary, "serve", "--until-eof", "--listen", "127.0.0.1:0", "--unpinned"}, flags...)
	var err error
	if a.p, err = launch.StartAggregator(ctx, argv, &a.log); err != nil {
		return nil, err
	}
	a.URL = a.p.URL
	a.pid = a.p.PID()
	if a.idle, err = a.resident(); err != nil {
		return nil, errors.Join(err, a.Stop())
	}
	return a, nil
}

// startUnread starts an aggregator whose log goes into a small pipe that nobody reads, and returns its URL.
func startUnread(ctx context.Context, binary string) (url string, end func() error, err error) {
	read, write, err := os.Pipe()
	if err != nil {
		return "", nil, err
	}
	defer write.Close()
	const setPipeSize, page = 1031, 4096 // F_SETPIPE_SZ
	if _, _, errno := syscall.Syscall(syscall.SYS_FCNTL, write.Fd(), setPipeSize, page); errno != 0 {
		return "", nil, errors.Join(errno, read.Close())
	}
	cmd := exec.CommandContext(ctx, binary, "serve", "--listen", "127.0.0.1:0", "--unpinned", "--until-eof", "--log-level", "debug")
	cmd.Stderr = write
	in, err := cmd.StdinPipe()
	if err != nil {
		return "", nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return "", nil, err
	}
	if err := cmd.Start(); err != nil {
		return "", nil, err
	}
	url, err = bufio.NewReader(out).ReadString('\n')
	return strings.TrimSpace(url), func() error { return errors.Join(in.Close(), read.Close(), cmd.Wait()) }, err
}

// Stop ends the process. It returns an error if the process failed or had ended before.
func (a *Aggregator) Stop() error {
	select {
	case <-a.p.Ended():
		return fmt.Errorf("the aggregator ended: %w", a.p.Err())
	default:
		return a.p.Stop()
	}
}

// Addr returns the host and port that the aggregator listens on.
func (a *Aggregator) Addr() string {
	_, addr, _ := strings.Cut(a.URL, "://")
	return addr
}

// Recovers waits until the process is within extra bytes of its idle size.
func (a *Aggregator) Recovers(extra int64) error {
	var now int64
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		var err error
		if now, err = a.resident(); err != nil {
			return err
		}
		if now < a.idle+extra {
			return nil
		}
	}
	return fmt.Errorf("%d MiB are resident, and %d were when it was idle", now>>20, a.idle>>20)
}

// Metrics returns the page of metrics.
func (a *Aggregator) Metrics(ctx context.Context) (string, error) {
	for {
		text, err := a.get(ctx, "/metrics")
		if err == nil || ctx.Err() != nil {
			return text, err
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func (a *Aggregator) get(ctx context.Context, path string) (string, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, a.URL+path, nil)
	if err != nil {
		return "", err
	}
	h := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 10 * time.Second}
	answer, err := h.Do(r)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", path, answer.Status)
	}
	return string(text), err
}

// dialer dials as another peer than the victims: limits are by address.
var dialer = &net.Dialer{Timeout: time.Second, LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}

// moveOn makes the attacker another peer: one may call only so often.
func moveOn() {
	at := dialer.LocalAddr.(*net.TCPAddr).IP.To4()
	n := 256*int(at[2]) + int(at[3]) + 1
	if n%256 == 255 {
		n += 2 // past what may be a broadcast's address, and a network's
	}
	dialer.LocalAddr = &net.TCPAddr{IP: net.IPv4(127, 0, byte(n>>8), byte(n))}
}

// stranger returns an HTTP client of that peer.
func stranger() *http.Client {
	t := &http.Transport{DialContext: dialer.DialContext, DisableKeepAlives: true}
	return &http.Client{Timeout: 30 * time.Second, Transport: t}
}
