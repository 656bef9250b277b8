package membership

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
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

// Config is an aggregator's membership.
type Config struct {
	Cluster *racks.Cluster
	Access  Access
	// TTL is how long the rack stays this aggregator's when it is not heard of, in whole seconds; 0: DefaultTTL.
	TTL time.Duration
	// GoOnAfter is how long a rack may have no aggregator until jobs begin without it, where they go on; 0: DefaultGoOnAfter.
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
	// patience is how long, beyond a lease's time, the claim of an aggregator that may be dead is waited for.
	patience = time.Second
)

// Member is this aggregator's membership. It implements [racks.Members].
type Member struct {
	cfg   Config
	id    string
	url   string
	close func() error
	store calls
	view  *view.View // of the goroutine of Run

	lease  clientv3.LeaseID
	asked  time.Time        // when the lease was renewed, or granted
	claims clientv3.LeaseID // the lease that the rack's claim is under
	leads  clientv3.LeaseID // the lease that the leader's claim is under
	held   bool             // the rack was this aggregator's
	waited time.Time        // since when another one is seen to serve the rack

	mu      sync.Mutex
	plan    racks.Plan
	leader  string
	refusal error // other than that etcd is unreachable
	fenced  bool
	renewed time.Time // when the lease was, under which the rack is claimed; zero: never
	failure error     // of the last call on etcd; nil: it answered
	changed chan struct{}
}

// Check returns what of the configuration cannot be. It reaches nothing.
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
	var id [16]byte
	rand.Read(id[:]) // never fails
	m := &Member{cfg: c, id: hex.EncodeToString(id[:]), changed: make(chan struct{}),
		view: view.New(c.Cluster, cmp.Or(c.GoOnAfter, DefaultGoOnAfter))}
	m.close, m.store, m.refusal = client.Close, &store{client, m.view.Keys}, fmt.Errorf("rack %q is not claimed yet", c.Cluster.Own)
	ctx, cancel := context.WithTimeout(ctx, startWithin)
	defer cancel()
	for {
		if _, err = m.store.list(ctx); err == nil {
			return m, nil
		}
		if err = c.Access.explain(err); errors.Is(err, ErrCredentials) || ctx.Err() != nil {
			return nil, errors.Join(err, client.Close())
		}
		pause(ctx, retryAfter)
	}
}

// Close forgets the client. Call it after Run has returned.
func (m *Member) Close() error { return m.close() }

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
	s := racks.Standing{Plan: m.plan, Fenced: m.fenced, Refusal: m.refusal, Store: racks.StoreStatus{
		Reachable: m.failure == nil, Leader: m.leader, Seconds: -1}}
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

// update changes what others see.
func (m *Member) update(change func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	change()
	close(m.changed)
	m.changed = make(chan struct{})
}

// fails takes note of a failed call.
func (m *Member) fails(err error) {
	m.mu.Lock()
	first := m.failure == nil
	m.mu.Unlock()
	if first {
		m.cfg.Log.Warn("etcd fails: jobs that run go on, changes wait", "err", m.cfg.Access.explain(err))
	}
	m.update(func() { m.failure = err })
}

// answers takes note that etcd does, and has renewed the lease.
func (m *Member) answers(asked time.Time) {
	m.asked = asked
	m.mu.Lock()
	back := m.failure != nil
	m.mu.Unlock()
	if back {
		m.cfg.Log.Info("etcd answers again")
	}
	m.update(func() { m.failure = nil })
}
