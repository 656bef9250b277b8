package service

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/rackweave/rackweave/aggregate"
	"github.com/rackweave/rackweave/service/racks"
	"github.com/rackweave/rackweave/verbs"
)

// DefaultListen is the address of an empty [Options.Listen].
const DefaultListen = "127.0.0.1:7077"

// Limits that no option changes.
const (
	maxMessageBytes = 64 << 20 // of one request: 10^5 tensors take a tenth of it
	maxWait         = time.Hour
	defaultWait     = time.Minute
	watchWithin     = 10 * time.Second // from Join to Watch
	heartbeatEvery  = time.Second
	pingTimeout     = 8 * time.Second // of a peer that has sent nothing for a while
	endGrace        = 5 * time.Second // how long an ended job's memory waits for its workers
	maxHostName     = 64
	maxRunName      = 128
	maxFailureText  = 4096
	reasonWait      = 250 * time.Millisecond
	minLinkTimeout  = 100 * time.Millisecond
	maxLinkTimeout  = time.Minute
	maxGatherings   = 64      // barriers that one job waits in at once
	maxRegions      = 1 << 14 // of a worker's memory: a lane searches them when it fails over
)

// Quota bounds a job. A zero leaves only the machine's bound.
type Quota struct {
	Workers    int
	Tensors    int
	ModelBytes int64 // parameters in f32, without optimizer state
	// Of all that the job has at the aggregator.
	MemoryBytes     int64
	CheckpointBytes int64 // on disk
}

// JobPolicy is the configuration of a job by name.
type JobPolicy struct {
	Name   string
	Token  string
	Quota  Quota
	Weight int // of its share of the lanes; 0: 1
}

// Options configures a service. The zero value serves shm and tcp, without TLS, to any job.
type Options struct {
	Listen   string       // host:port; empty: DefaultListen; port 0: any
	Listener net.Listener // instead of Listen

	Providers       []string          // empty: every provider with a device here, sim excepted
	ProviderOptions map[string]string // of verbs.Open, by provider
	NICs            []string          // RDMA devices, or simulated ones, to serve; empty: all
	Cores           int               // 0: chosen, see numa.LaneConfig
	Unpinned        bool              // lanes float over the CPUs
	Window          int               // messages in flight per worker and lane; 0: what suits the provider
	Spin            int               // see aggregate.Config
	LinkTimeout     time.Duration     // how long a link may be down before its workers count as lost; 0: aggregate.DefaultLinkTimeout

	// An aggregator that other hosts reach is closed: it wants TLS, and a token from everybody. What of them is not given is made, and
	// kept in Keys. Insecure leaves it open, as one is that only this host reaches.
	Insecure        bool
	Keys            string // folder; empty: keys.Folder()
	TLSCert, TLSKey string // files; both or neither
	// What goes to other hosts is encrypted: provider tcp's payloads. Provider ibv, which cannot, is not served.
	Encrypt bool

	Jobs       []JobPolicy // if any, only those run
	Quota      Quota
	MaxJobs    int // 0: 64
	MaxWorkers int // over all jobs; 0: 1024

	Cluster *racks.Cluster // the racks that this one reduces with; nil: it is alone

	CheckpointDir string // empty: Save and Restore are refused
	AdminToken    string // empty: only this user administers the aggregator, over its Unix socket
	Version       string // for Status
	Log           *slog.Logger
}

// namePattern matches the names that jobs, checkpoints and barriers may have. They become file names and labels.
var namePattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)

func checkName(what, name string) error {
	if !namePattern.MatchString(name) {
		return fmt.Errorf("%s name %q: use 1 to 64 letters, digits, '.', '_' and '-', a letter or digit first", what, name)
	}
	return nil
}

// printable makes a text from anyone fit for logs, terminals and protobuf: it returns the first bytes, without control characters.
func printable(s string, most int) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, s[:min(len(s), most)])
}

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
	seen := map[string]bool{}
	for _, p := range o.Jobs {
		if err := checkName("job", p.Name); err != nil {
			return err
		}
		if seen[p.Name] {
			return fmt.Errorf("job %q is listed twice", p.Name)
		}
		seen[p.Name] = true
	}
	for _, p := range append(slices.Sorted(maps.Keys(o.ProviderOptions)), o.Providers...) {
		if !slices.Contains(verbs.Providers(), p) {
			return fmt.Errorf("unknown provider %q: use %s", p, list(verbs.Providers()))
		}
	}
	if o.Spin < -1 {
		return fmt.Errorf("spin of %d: use a count of polls, or -1 for none", o.Spin)
	}
	for _, n := range []struct {
		what  string
		value int64
	}{
		{"jobs", int64(o.MaxJobs)}, {"workers", int64(o.MaxWorkers)}, {"workers of a job", int64(o.Quota.Workers)},
		{"tensors of a job", int64(o.Quota.Tensors)}, {"bytes of a job", o.Quota.ModelBytes},
		{"bytes of memory of a job", o.Quota.MemoryBytes}, {"bytes of checkpoints of a job", o.Quota.CheckpointBytes},
		{"messages in the window", int64(o.Window)},
	} {
		if n.value < 0 {
			return fmt.Errorf("at most %d %s: use 0 or more", n.value, n.what)
		}
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

// policy returns the policy for a job by its name. ok is false if jobs are listed and it is not.
func (o *Options) policy(job string) (p JobPolicy, ok bool) {
	for _, p := range o.Jobs {
		if p.Name == job {
			p.Quota.Workers = cmp.Or(p.Quota.Workers, o.Quota.Workers)
			p.Quota.Tensors = cmp.Or(p.Quota.Tensors, o.Quota.Tensors)
			p.Quota.ModelBytes = cmp.Or(p.Quota.ModelBytes, o.Quota.ModelBytes)
			p.Quota.CheckpointBytes = cmp.Or(p.Quota.CheckpointBytes, o.Quota.CheckpointBytes)
			p.Quota.MemoryBytes = cmp.Or(p.Quota.MemoryBytes, o.Quota.MemoryBytes)
			return p, true
		}
	}
	return JobPolicy{Name: job, Quota: o.Quota}, len(o.Jobs) == 0
}

func (q Quota) maxWorkers() int {
	return min(cmp.Or(q.Workers, aggregate.MaxWorkers), aggregate.MaxWorkers)
}

// sharesWithAnyUser reports whether provider shm takes workers of other users.
func (o *Options) sharesWithAnyUser() bool {
	return slices.Contains(strings.Split(o.ProviderOptions[verbs.ProviderSHM], ","), "users=any")
}
