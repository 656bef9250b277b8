package membership

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/rackweave/rackweave/service/membership/view"
	"github.com/rackweave/rackweave/service/racks"
)

// Errors that end a membership.
var (
	ErrTaken   = errors.New("the rack is served by another aggregator")
	ErrDiffers = errors.New("the clusters' files differ")
)

// Config describes an aggregator's membership.
type Config struct {
	Cluster *racks.Cluster
	Access  Access
	// TTL is the time for which the rack stays this aggregator's without its renewal, in whole seconds. If 0, it is DefaultTTL.
	TTL time.Duration
	// GoOnAfter is the time for which a rack may have no aggregator until jobs begin without it, if they go on. If 0, it is
	// DefaultGoOnAfter.
	GoOnAfter time.Duration
	// Standby waits as long as another aggregator serves the rack, instead of giving up.
	Standby bool
	Log     *slog.Logger
}

// Bounds of a lease's time.
const (
	DefaultTTL = 5 * time.Second
	MinTTL     = 2 * time.Second // etcd has no shorter ones
	MaxTTL     = time.Minute
)

// DefaultGoOnAfter is long enough for an aggregator that is started again at once.
const DefaultGoOnAfter = 10 * time.Second

const (
	retryAfter = 500 * time.Millisecond
	// patience is the time, beyond a lease's, for which the end of the claim of an aggregator that may be dead is awaited.
	patience = time.Second
)

// Member is this aggregator's membership. It implements [racks.Members].
type Member struct {
	cfg     Config
	id      string
	url     string
	store   *store
	contest contest
	view    *view.View // of the goroutine of Run

	lease  clientv3.LeaseID
	asked  time.Time // when the lease was renewed, or granted
	served bool      // the rack was this aggregator's
	named  bool      // a plan gave it the rack
	waited time.Time // since when another one is seen to serve the rack
	mended time.Time // when keys were removed that others wrote

	mu       sync.Mutex
	standing racks.Standing // without the state of etcd and of the lease
	renewed  time.Time      // of the lease under which the rack is claimed. If zero, it never was.
	failure  error          // of the last call of etcd, or nil
	changed  chan struct{}
}

// Check validates the configuration. It reaches nothing.
func (c *Config) Check() error {
	if ttl := cmp.Or(c.TTL, DefaultTTL); ttl < MinTTL || ttl > MaxTTL || ttl%time.Second != 0 {
		return fmt.Errorf("a lease of %v: use whole seconds, from %v to %v", ttl, MinTTL, MaxTTL)
	}
	return c.Access.check()
}

// Open reaches etcd, and returns an aggregator's membership, which [Member.Run] begins.
func Open(ctx context.Context, c Config) (*Member, error) {
	if err := c.Check(); err != nil {
		return nil, err
	}
	c.TTL = cmp.Or(c.TTL, DefaultTTL)
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	client, err := c.Access.open()
	if err != nil {
		return nil, err
	}
	v := view.New(c.Cluster, cmp.Or(c.GoOnAfter, DefaultGoOnAfter))
	s := &store{client, v.Keys}
	m := &Member{cfg: c, id: rand.Text(), store: s, contest: s, view: v, changed: make(chan struct{}),
		standing: racks.Standing{Refusal: fmt.Errorf("rack %q is not claimed yet", c.Cluster.Own)}}
	ctx, cancel := context.WithTimeout(ctx, startWithin)
	defer cancel()
	for {
		if _, _, err = s.read(ctx, v.Read()); err == nil {
			return m, nil
		}
		if err = c.Access.explain(err); errors.Is(err, ErrCredentials) || ctx.Err() != nil {
			return nil, errors.Join(err, client.Close())
		}
		pause(ctx, retryAfter)
	}
}

// Close closes the client. Call it after Run has returned.
func (m *Member) Close() error { return m.store.client.Close() }

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// ID implements [racks.Members].
func (m *Member) ID() string { return m.id }

// Changed implements [racks.Members].
func (m *Member) Changed() <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.changed
}

// Standing implements [racks.Members].
func (m *Member) Standing() racks.Standing {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.standing
	s.Store.Reachable, s.Store.Seconds = m.failure == nil, -1
	if !m.renewed.IsZero() {
		age := time.Since(m.renewed)
		s.Store.Seconds = age.Seconds()
		if age >= m.cfg.TTL && s.Refusal == nil {
			s.Refusal = m.cfg.Access.explain(fmt.Errorf("this aggregator's lease was renewed last %.0fs ago: %w; jobs that run go on",
				age.Seconds(), cmp.Or(m.failure, errLate)))
		}
	}
	return s
}

var errLate = errors.New("it is late")

// update changes the standing.
func (m *Member) update(change func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	change()
	close(m.changed)
	m.changed = make(chan struct{})
}

// record records the outcome of a call of etcd.
func (m *Member) record(err error) {
	switch {
	case err != nil && m.failure == nil:
		m.cfg.Log.Warn("etcd fails: jobs that run go on, changes wait", "err", m.cfg.Access.explain(err))
	case err == nil && m.failure != nil:
		m.cfg.Log.Info("etcd answers again")
	}
	m.update(func() { m.failure = err })
}
