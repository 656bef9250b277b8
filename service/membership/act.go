package membership

import (
	"context"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/rackweave/rackweave/service/membership/view"
	"github.com/rackweave/rackweave/service/racks"
)

// act claims the free keys, and decides if this aggregator is the leader.
func (m *Member) act(ctx context.Context) error {
	v := m.view
	c := &view.Claim{Rack: m.cfg.Cluster.Own, Aggregator: m.id, URL: m.url, Declared: v.Declared}
	own := v.Claims[c.Rack]
	if mended, err := m.mend(ctx); err != nil || !mended {
		return err
	}
	if own != nil && own.Aggregator != m.id {
		err := fmt.Errorf("%w: rack %q is served by the aggregator at %s, with token %d: end it, or give this one another rack",
			ErrTaken, c.Rack, own.URL, own.Revision)
		if !m.served {
			return m.standBy(err)
		}
		m.update(func() { m.standing.Fenced, m.standing.Refusal = true, err })
		return err
	}
	m.waited = time.Time{}
	if err := m.claim(ctx, v.Keys.Rack(c.Rack), c, own); err != nil || own == nil {
		return err
	}
	m.served = true
	if v.Leader != nil && v.Leader.Aggregator != m.id {
		return nil
	}
	if err := m.claim(ctx, v.Keys.Leader, c, v.Leader); err != nil || v.Leader == nil {
		return err
	}
	return m.decide(ctx)
}

// mend removes values that this cluster's aggregators did not write, which claim nothing. It returns false if aggregators with
// another secret may have written them. An aggregator that no plan has named gives way to these.
func (m *Member) mend(ctx context.Context) (bool, error) {
	v := m.view
	for key, f := range v.Foreign {
		if m.named || f.Lease == 0 {
			continue
		}
		lasts, err := m.store.lasts(ctx, clientv3.LeaseID(f.Lease))
		if err != nil {
			return false, err
		}
		if lasts > 0 && lasts <= MaxTTL { // as an aggregator's does
			return false, m.standBy(fmt.Errorf("%w: etcd's key %s: %w: give all aggregators the same secret, or remove the key",
				ErrTaken, key, f.Err))
		}
	}
	if len(v.Foreign) == 0 || time.Since(m.mended) < m.cfg.TTL/4 { // a stranger may write without pause: the next tick is soon enough
		return true, nil
	}
	m.mended = time.Now()
	for key, f := range v.Foreign {
		m.cfg.Log.Warn("removing a key of etcd that no aggregator of this cluster wrote", "key", key, "err", f.Err)
		if err := m.store.remove(ctx, key, f.Modified); err != nil {
			return false, err
		}
	}
	return true, nil
}

// standBy waits for the rack, because its aggregator may be dead, or always. It returns the error once it has waited for long.
func (m *Member) standBy(err error) error {
	if m.waited.IsZero() {
		m.waited = time.Now()
		m.cfg.Log.Info("waiting for the rack", "rack", m.cfg.Cluster.Own, "err", err)
	}
	if !m.cfg.Standby && time.Since(m.waited) > m.cfg.TTL+patience {
		return err
	}
	m.update(func() { m.standing.Refusal = err })
	return nil
}

// claim writes a key that is free, or that is this aggregator's under another lease. The watch returns it.
func (m *Member) claim(ctx context.Context, key string, c, seen *view.Claim) error {
	var created int64
	if seen != nil {
		if seen.Lease == int64(m.lease) {
			return nil
		}
		created = seen.Revision
	}
	value, err := view.Encode(m.cfg.Cluster.Secret, key, c)
	if err != nil {
		return err
	}
	return m.contest.claim(ctx, key, value, created, m.lease)
}

// decide writes the plan if it has changed.
func (m *Member) decide(ctx context.Context) error {
	d, differs := m.view.Decide(time.Now())
	if !differs {
		return nil
	}
	value, err := view.Encode(m.cfg.Cluster.Secret, m.view.Keys.Plan, d)
	if err != nil {
		return err
	}
	var seen int64
	if m.view.Plan != nil {
		seen = m.view.Plan.Epoch
	}
	return m.contest.decide(ctx, value, d.Token, seen)
}

// publish follows the plan that the leader has decided.
func (m *Member) publish() error {
	d, claim := m.view.Current(), m.view.Claims[m.cfg.Cluster.Own]
	if d == nil || claim == nil {
		return nil
	}
	if d.Declared != m.view.Declared {
		err := fmt.Errorf("%w: rack %q, whose aggregator decides, declares %q, this one of rack %q %q: give all aggregators the same",
			ErrDiffers, d.Leader, d.Declared, m.cfg.Cluster.Own, m.view.Declared)
		if m.standing.Plan.Epoch > 0 { // jobs that run go on
			m.update(func() { m.standing.Refusal = err })
			return nil
		}
		return err
	}
	if claim.Aggregator == m.id && claim.Lease == int64(m.lease) {
		m.update(func() { m.renewed = m.asked }) // not before the rack is known to be claimed under this lease
	}
	own := d.Holders[m.cfg.Cluster.Index()]
	held := own.Aggregator == m.id
	m.named = m.named || held
	if d.Epoch != m.standing.Plan.Epoch {
		m.cfg.Log.Info("plan", "epoch", d.Epoch, "leader", d.Leader, "holders", d.Holders)
	}
	m.update(func() {
		m.standing.Plan, m.standing.Store.Leader = racks.Plan{Epoch: d.Epoch, Holders: d.Holders}, d.Leader
		switch {
		case held:
			m.standing.Refusal = nil
		case own.Aggregator != "":
			m.standing.Refusal = fmt.Errorf("%w: rack %q is served by %v by the plan of epoch %d", ErrTaken, m.cfg.Cluster.Own, own, d.Epoch)
		default:
			m.standing.Refusal = fmt.Errorf("rack %q is served by no aggregator by the plan of epoch %d", m.cfg.Cluster.Own, d.Epoch)
		}
	})
	return nil
}
