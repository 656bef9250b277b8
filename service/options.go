package service

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/rackweave/rackweave/aggregate"
	"github.com/rackweave/rackweave/service/engine"
	"github.com/rackweave/rackweave/service/job"
	"github.com/rackweave/rackweave/service/racks"
	"github.com/rackweave/rackweave/service/rpc"
	"github.com/rackweave/rackweave/verbs"
)

// DefaultListen is the address of an empty [Options.Listen].
const DefaultListen = "127.0.0.1:7077"

// Limits that no option changes.
const (
	maxMessageBytes = 64 << 20 // of one request: 10^5 tensors take a tenth of it
	minLinkTimeout  = 100 * time.Millisecond
	maxLinkTimeout  = time.Minute
)

// Quota bounds a job. A zero leaves only the machine's bound.
type Quota = job.Quota

// Options configures a service. The zero value serves shm and tcp, without TLS, to any job.
type Options struct {
	Listen   string       // host:port. If empty, DefaultListen. Port 0 is any
	Listener net.Listener // instead of Listen

	Providers       []string          // empty: every provider with a device here
	ProviderOptions map[string]string // of verbs.Open, by provider
	NICs            []string          // to serve, of providers with NICs. If empty, all
	Cores           int               // 0: chosen, see numa.Topology.Lanes
	Unpinned        bool              // lanes float over the CPUs
	Window          int               // messages in flight per worker and lane. If 0, the provider's default
	LinkTimeout     time.Duration     // a link down for longer loses its workers. If 0, aggregate.DefaultLinkTimeout

	// An aggregator that other hosts reach is closed: it wants TLS, and a token from everybody. A missing certificate or token is
	// made, and stored in Keys. If Insecure is set, the aggregator stays open, as one that only this host reaches is.
	Insecure        bool
	Keys            string // folder. If empty, keys.Folder()
	TLSCert, TLSKey string // files; both or neither
	// What goes to other hosts is encrypted: provider tcp's payloads. Provider ibv, which cannot, is not served.
	Encrypt bool

	Jobs       map[string]string // tokens by job. If any, only those run
	Quota      Quota             // of each job
	MaxJobs    int               // 0: 64
	MaxWorkers int               // over all jobs. If 0, 1024

	Cluster *racks.Cluster // the racks that this one reduces with. If nil, none

	CheckpointDir string // empty: Save and Restore are refused
	DataDir       string // of manifests of training sets. If empty, jobs open sets without
	// The service deals rows, beside an aggregator: it has no engines. If nil, it is an aggregator.
	Beside     *Beside
	AdminToken string // empty: only this user administers the aggregator, over its Unix socket
	Version    string // for Status
	Log        *slog.Logger
}

// Beside configures a service that deals rows beside an aggregator.
type Beside struct {
	Journal      string        // a file for what is dealt, to go on from. If empty, that is lost with the service
	JournalBytes int64         // most bytes of it
	Replay       string        // the journal of a run whose batches are dealt again. If empty, none
	LeaseTimeout time.Duration // between two calls of a worker, after which it is lost. If 0, a minute
}

// CheckJobName returns why a job cannot have a name.
func CheckJobName(name string) error { return rpc.CheckName("job", name) }

// complete fills in defaults and checks.
func (o *Options) complete() error {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	o.Listen = cmp.Or(o.Listen, DefaultListen)
	o.MaxJobs = cmp.Or(o.MaxJobs, 64)
	o.MaxWorkers = cmp.Or(o.MaxWorkers, 1024)
	if o.LinkTimeout = cmp.Or(o.LinkTimeout, aggregate.DefaultLinkTimeout); o.LinkTimeout < minLinkTimeout ||
		o.LinkTimeout > maxLinkTimeout {
		return fmt.Errorf("link timeout of %v: use %v to %v", o.LinkTimeout, minLinkTimeout, maxLinkTimeout)
	}
	if (o.TLSCert == "") != (o.TLSKey == "") {
		return errors.New("TLS needs a certificate and a key: give both files, or neither")
	}
	if err := o.encrypt(); err != nil {
		return err
	}
	for name := range o.Jobs {
		if err := CheckJobName(name); err != nil {
			return err
		}
	}
	for _, p := range append(slices.Sorted(maps.Keys(o.ProviderOptions)), o.Providers...) {
		if !slices.Contains(verbs.Providers(), p) {
			return fmt.Errorf("unknown provider %q: use %s", p, rpc.List(verbs.Providers()))
		}
	}
	for _, n := range []struct {
		what  string
		value int64
	}{
		{"jobs", int64(o.MaxJobs)}, {"workers", int64(o.MaxWorkers)}, {"workers of a job", int64(o.Quota.Workers)},
		{"bytes of memory of a job", o.Quota.MemoryBytes}, {"bytes of checkpoints of a job", o.Quota.CheckpointBytes},
		{"messages in the window", int64(o.Window)},
	} {
		if n.value < 0 {
			return fmt.Errorf("at most %d %s: use 0 or more", n.value, n.what)
		}
	}
	if _, err := os.Stat(o.DataDir + "/."); o.DataDir != "" && err != nil {
		return fmt.Errorf("--data-dir %s: %w: name the folder of manifests, or make it", o.DataDir, errors.Unwrap(err))
	}
	return o.checkCheckpointDir()
}

// encrypt has provider tcp encrypt, and leaves out what cannot.
func (o *Options) encrypt() error {
	if !o.Encrypt {
		return nil
	}
	if o.Insecure {
		return errors.New("encrypted payloads, insecure: their keys are told over the control plane, which needs TLS: choose one")
	}
	if o.Cluster != nil {
		if r, is := o.Cluster.Exposed(); is {
			return fmt.Errorf("encrypted payloads, and rack %q at %s: their keys are told over the control plane, which needs TLS: use https://",
				r.Name, r.URL)
		}
	}
	if slices.Contains(o.Providers, verbs.ProviderIBV) {
		return fmt.Errorf("provider %s cannot encrypt: leave it out, or serve without encryption", verbs.ProviderIBV)
	}
	if len(o.Providers) == 0 {
		o.Providers = slices.DeleteFunc(verbs.ProvidersHere(), func(p string) bool { return p == verbs.ProviderIBV })
	}
	o.ProviderOptions = maps.Clone(o.ProviderOptions)
	if o.ProviderOptions == nil {
		o.ProviderOptions = map[string]string{}
	}
	o.ProviderOptions[verbs.ProviderTCP] = strings.TrimPrefix(o.ProviderOptions[verbs.ProviderTCP]+",encrypt=yes", ",")
	return nil
}

// checkCheckpointDir makes the directory if it is missing and tries to write to it. Hours into a job would be too late.
func (o *Options) checkCheckpointDir() error {
	if o.CheckpointDir == "" {
		return nil
	}
	err := os.MkdirAll(o.CheckpointDir, 0o750)
	if err == nil {
		var f *os.File
		if f, err = os.CreateTemp(o.CheckpointDir, ".writable-"); err == nil {
			err = errors.Join(f.Close(), os.Remove(f.Name()))
		}
	}
	if err != nil {
		return fmt.Errorf("checkpoint directory %q: %w: give one that can be written, or none", o.CheckpointDir, err)
	}
	return nil
}

// engines returns the configuration of the engines.
func (o *Options) engines() *engine.Config {
	return &engine.Config{Log: o.Log, Providers: o.Providers, ProviderOptions: o.ProviderOptions, NICs: o.NICs, Cores: o.Cores,
		Unpinned: o.Unpinned, Window: o.Window, LinkTimeout: o.LinkTimeout}
}
