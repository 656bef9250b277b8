package membership

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/rackweave/rackweave/service/api"
)

// Access is the address of an aggregator and the secrets for it.
type Access struct {
	Server   string        // URL
	CA       string        // file with the certificates to trust, or sha256:FINGERPRINT, for https; if empty, the system's
	Token    string        // of the job, or the admin's
	Insecure bool          // the token may be sent in clear, over http:// to another host
	Timeout  time.Duration // of calls without a deadline
	socket   string        // Unix, that leads to the server; may be empty
}

// UseSocket makes calls to an aggregator of this user on this host go over its Unix socket, where no token is needed.
func (a *Access) UseSocket() {
	u, err := url.Parse(a.Server)
	if err != nil || a.Token != "" {
		return
	}
	if a.socket = api.LocalSocket(u.Hostname(), u.Port()); a.socket != "" {
		a.Server, a.CA = "http://"+u.Host, ""
	}
}

// HTTP returns a client that speaks HTTP/2 to the server. Its pings notice a silent server, but not before TCP, whose pauses
// between retries double, has recovered from a link that was down for 3 s.
func (a *Access) HTTP() (*http.Client, error) {
	if a.socket == "" && !a.Insecure {
		if err := api.CheckSecret(a.Server, a.Token); err != nil {
			return nil, err
		}
	}
	dialer := &net.Dialer{
		Timeout: 5 * time.Second, KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 5 * time.Second, Interval: time.Second,
			Count: 5},
	}
	t := &http.Transport{
		DialContext: dialer.DialContext, TLSHandshakeTimeout: 5 * time.Second, Protocols: new(http.Protocols),
		HTTP2: &http.HTTP2Config{SendPingTimeout: 2 * time.Second, PingTimeout: 8 * time.Second, MaxReadFrameSize: 256 << 10},
	}
	if a.socket != "" {
		t.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return dialer.DialContext(ctx, "unix", a.socket)
		}
	}
	if strings.HasPrefix(a.Server, "http:") || a.socket != "" {
		t.Protocols.SetUnencryptedHTTP2(true)
	} else {
		t.Protocols.SetHTTP2(true)
		var err error
		if t.TLSClientConfig, err = api.TrustOf(a.CA); err != nil {
			return nil, err
		}
	}
	return &http.Client{Transport: t}, nil
}

// Bound returns a context with a call's deadline, and the timeout in ms for the server. The server's deadline passes first, so that
// its error arrives, which names the workers that are missing.
func Bound(ctx context.Context, timeout time.Duration) (context.Context, context.CancelFunc, uint32) {
	if d, ok := ctx.Deadline(); ok {
		timeout = min(timeout, time.Until(d))
	}
	ms := max(timeout.Milliseconds(), 1)
	call, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Duration(ms)*time.Millisecond+2*time.Second)
	stop := context.AfterFunc(ctx, func() {
		if errors.Is(ctx.Err(), context.Canceled) {
			cancel()
		}
	})
	return call, func() { stop(); cancel() }, uint32(ms)
}
