package client

import (
	"cmp"
	"errors"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/rackweave/rackweave/chunk"
	"github.com/rackweave/rackweave/client/membership"
	"github.com/rackweave/rackweave/service/api"
	"github.com/rackweave/rackweave/verbs"
)

// AnyRank lets the aggregator choose the worker's rank.
const AnyRank = -1

// DefaultTimeout bounds waits that have no deadline of their own.
const DefaultTimeout = time.Minute

// Config says which job to join, and how. Workers of a job must agree on Workers, Mode, Policy, Outer, Compress, Optimizer,
// Hyper, WireType and ChunkBytes, and need a provider that all of them can use. A worker that differs is refused, and told what
// the job has.
type Config struct {
	// URL of the aggregator: http://host:7077 or https://host:7077. With several, and commas between them, the job is spread over
	// all: each has some of the chunks, and memory for those. All workers give the same, in the same order.
	Server string
	// For https: a file with the certificates to trust, in PEM form, or sha256: and the fingerprint of the aggregator's. If empty, the
	// system's are trusted.
	CA    string
	Job   string // name; the first worker that joins creates the job
	Token string // whoever joins must know the job's
	// Insecure lets the token be sent in clear, over http:// to another host.
	Insecure bool
	// Rank of this worker, 0 to Workers-1, or [AnyRank].
	Rank    int
	Workers int // in the job

	// Mode chooses the answer of a pushpull and the time of an update. aggregate: with the sum of the gradients; there are not any
	// parameters. eager: with the parameters, updated as soon as the last gradient is there. two-phase: gradients gather, and
	// [Worker.Commit] updates the parameters. stream: with the parameters, updated by a worker's gradient, or a set of workers', as
	// the policy says; [Worker.EndStep] ends this worker's step. If empty, it is eager if there is an optimizer, else aggregate; with
	// a policy, stream.
	Mode string
	// Run tells the workers of this run from those of another that names its job alike, which the aggregator then refuses. If
	// empty, it is unknown, and not compared.
	Run string
	// Policy decides who waits for whom in mode stream: asp, ssp:s=3, lagtuner:sl=3,su=15 and others. If empty, it is asp.
	Policy string
	// Outer is the way in which racks that train on their own meet, in mode eager: every=24,rule=nesterov,lr=0.7,momentum=0.9 for
	// instance, or every=24,drift=0.02 for every 1 to 24 steps, as often as they drift apart. If empty, it is as their cluster's file
	// says; with none they add their gradients in every step.
	Outer string
	// Compress names the codecs of gradients and answers, as CODEC or CODEC/ANSWERS: int8, sign/int8, 2bit:0.5/none. If empty, none.
	Compress  string
	Optimizer string             // an update rule, such as sgd_torch
	Hyper     map[string]float64 // overrides the rule's defaults: lr, wd, momentum and others

	WireType   chunk.DType // of tensors that name none: how elements travel; if 0, F32
	MemoryType chunk.DType // of tensors that name none: how elements lie in this worker's buffers; if 0, F32
	ChunkBytes int         // a power of two; if 0, the aggregator's default

	Provider        string   // shm, tcp or ibv; empty or auto: the fastest that all workers can use
	Devices         []string // names of the provider's; if empty, its first one, of ibv all that have a link
	ProviderOptions string   // for verbs.Open

	Timeout time.Duration // of waits that have no deadline of their own; if 0, DefaultTimeout
	Spin    int           // empty polls before a wait sleeps; if 0, 64; if negative, none
}

// servers splits the URLs of several aggregators.
func (c *Config) servers() []string { return strings.Split(c.Server, ",") }

// access returns the configuration's access to its aggregators.
func (c *Config) access() membership.Access {
	return membership.Access{Server: c.Server, CA: c.CA, Token: c.Token, Insecure: c.Insecure, Timeout: c.Timeout}
}

func (c *Config) complete() error {
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
		if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || strings.Trim(u.RequestURI(), "/") != "" {
			return fmt.Errorf("server %q: use a URL such as http://host:7077 or https://host:7077, without a path", server)
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

// request returns the worker's request to join.
func (c *Config) request() (*api.JoinRequest, error) {
	providers := []string{c.Provider} // opening it names what is missing
	if c.Provider == "auto" {
		if providers = verbs.ProvidersHere(); len(providers) == 0 {
			return nil, errors.New("no provider has a device here: see rackweave doctor")
		}
	}
	return &api.JoinRequest{
		Job: c.Job, Rank: int32(c.Rank), Workers: uint32(c.Workers), Mode: c.Mode,
		Policy: c.Policy, Outer: c.Outer, Compress: c.Compress, Optimizer: c.Optimizer, Hyper: c.Hyper,
		ChunkBytes: uint32(c.ChunkBytes),
		Provider:   c.Provider, Providers: providers, Pid: int64(os.Getpid()),
		Uid: uint32(os.Geteuid()), Run: c.Run,
	}, nil
}
