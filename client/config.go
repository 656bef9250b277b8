package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/service/api"
	"github.com/rackweave/rackweave/verbs"
)

// AnyRank lets the aggregator choose the worker's rank.
const AnyRank = -1

// DefaultTimeout bounds waits that have no deadline of their own.
const DefaultTimeout = time.Minute

// Config says which job to join, and how. Workers of a job must agree on Workers, Mode, Policy, Outer, OnLoss, Optimizer,
// Hyper, WireType and ChunkBytes, and need a provider that all of them can use. A worker that differs is refused, and told what
// the job has.
type Config struct {
	// URL of the aggregator: http://host:7077 or https://host:7077. With several, and commas between them, the job is spread over
	// all: each has some of the chunks, and memory for those. All workers give the same, in the same order.
	Server string
	// For https: a file with the certificates to trust, in PEM form, or sha256: and the fingerprint of the aggregator's; empty: the
	// system's.
	CA    string
	Job   string // name; the first worker that joins creates the job
	Token string // whoever joins must know the job's
	// Rank of this worker, 0 to Workers-1, or [AnyRank].
	Rank    int
	Workers int // in the job

	// Mode says what a pushpull answers and when parameters are updated. aggregate: with the sum of the gradients; there are no
	// parameters. eager: with the parameters, updated as soon as the last gradient is there. two-phase: gradients gather, and
	// [Worker.Commit] updates the parameters. stream: with the parameters, updated by each gradient alone; [Worker.EndStep] ends
	// this worker's step. Empty: eager if there is an optimizer, else aggregate; with a policy, stream.
	Mode string
	// Run tells the workers of this run from those of another that names its job alike, which the aggregator then refuses. Empty:
	// unknown, and not compared.
	Run string
	// Policy says who waits for whom in mode stream: asp, ssp:s=3, lagtuner:sl=3,su=15 and others. Empty: asp.
	Policy string
	// Outer says how the job's racks that train on their own meet, in mode eager: every=24,rule=nesterov,lr=0.7,momentum=0.9 for
	// instance. Empty: as their cluster's file says; none: they add their gradients in every step.
	Outer string
	// OnLoss says how the job begins after a rack of its cluster was lost, where etcd keeps who serves which rack: wait, until the
	// rack is served again, or fail. Empty: as the cluster's file says, which may say go-on, too: without the rack.
	OnLoss    string
	Optimizer string             // an update rule, such as sgd_torch
	Hyper     map[string]float64 // overrides the rule's defaults: lr, wd, momentum and others

	WireType   chunk.DType // of tensors that name none: how elements travel; 0: F32
	MemoryType chunk.DType // of tensors that name none: how elements lie in this worker's buffers; 0: F32
	ChunkBytes int         // a power of two; 0: the aggregator's default

	Provider        string   // shm, tcp, ibv or sim; empty or auto: the fastest that all workers can use
	Devices         []string // names of the provider's; empty: its first one, of ibv all that have a link
	ProviderOptions string   // for verbs.Open

	Timeout time.Duration // of waits that have no deadline of their own; 0: DefaultTimeout
	Spin    int           // empty polls before a wait sleeps; 0: 64; -1: none

	socket string // Unix, that leads to the server; empty: none
}

// useSocket calls an aggregator of this user on this host over its Unix socket, where no token is needed.
func (c *Config) useSocket() {
	u, err := url.Parse(c.Server)
	if err != nil || c.Token != "" {
		return
	}
	if c.socket = api.LocalSocket(u.Hostname(), u.Port()); c.socket != "" {
		c.Server, c.CA = "http://"+u.Host, ""
	}
}

func (c *Config) complete() error {
	if c.Mode == "" {
		c.Mode = "aggregate"
		if c.Optimizer != "" {
			c.Mode = "eager"
		}
		if c.Policy != "" && c.Policy != "bsp" {
			c.Mode = "stream"
		}
	}
	c.WireType = cmp.Or(c.WireType, chunk.F32)
	c.MemoryType = cmp.Or(c.MemoryType, chunk.F32)
	c.Provider = cmp.Or(c.Provider, "auto")
	c.Timeout = cmp.Or(c.Timeout, DefaultTimeout)
	switch c.Spin = cmp.Or(c.Spin, 64); {
	case c.Spin == -1:
		c.Spin = 0
	case c.Spin < -1:
		return fmt.Errorf("spin of %d: use a count of polls, or -1 for none", c.Spin)
	}
	servers := c.servers()
	for i, server := range servers {
		u, err := url.Parse(server)
		if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
			return fmt.Errorf("server %q: use a URL such as http://host:7077 or https://host:7077", server)
		}
		if u.Scheme == "http" && c.CA != "" {
			return fmt.Errorf("server %q: a CA file is given, so TLS is wanted: use https://", server)
		}
		servers[i] = strings.TrimRight(server, "/")
		if slices.Contains(servers[:i], servers[i]) {
			return fmt.Errorf("server %q is there twice: name each aggregator once", server)
		}
	}
	c.Server = strings.Join(servers, ",")
	if c.Timeout < time.Millisecond {
		return fmt.Errorf("timeout of %v: use at least a millisecond", c.Timeout)
	}
	return nil
}

// httpClient returns a client that speaks HTTP/2 to the server. Its pings notice a silent server, but not before TCP, whose pauses
// between retries double, has recovered from a link that was down for 3 s.
func (c *Config) httpClient() (*http.Client, *http.Transport, error) {
	dialer := &net.Dialer{
		Timeout: 5 * time.Second, KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 5 * time.Second, Interval: time.Second,
			Count: 5},
	}
	t := &http.Transport{
		DialContext: dialer.DialContext, TLSHandshakeTimeout: 5 * time.Second, Protocols: new(http.Protocols),
		HTTP2: &http.HTTP2Config{SendPingTimeout: 2 * time.Second, PingTimeout: 8 * time.Second},
	}
	if c.socket != "" {
		t.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return dialer.DialContext(ctx, "unix", c.socket)
		}
	}
	if strings.HasPrefix(c.Server, "http:") || c.socket != "" {
		t.Protocols.SetUnencryptedHTTP2(true)
	} else {
		t.Protocols.SetHTTP2(true)
		var err error
		if t.TLSClientConfig, err = api.TrustOf(c.CA); err != nil {
			return nil, nil, err
		}
	}
	return &http.Client{Transport: t}, t, nil
}

// providersHere lists the providers that this process can use. A provider that is named is not checked: opening it says what is
// missing.
func (c *Config) providersHere() ([]string, error) {
	if c.Provider != "auto" {
		return []string{c.Provider}, nil
	}
	here := verbs.ProvidersHere()
	if len(here) == 0 {
		return nil, errors.New("no provider has a device here: see rackweave doctor")
	}
	return here, nil
}

// callTimeout returns a context with a call's deadline, and the timeout in ms to tell the server. The server's deadline passes
// first, so that its error arrives, which says what was waited for.
func callTimeout(ctx context.Context, timeout time.Duration) (context.Context, context.CancelFunc, uint32) {
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
