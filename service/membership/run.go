package membership

import (
	"context"
	"errors"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// Run claims the rack for the aggregator at a URL, and keeps it until ctx ends. It returns an error if the rack is another's.
func (m *Member) Run(ctx context.Context, url string) error {
	m.url = url
	for {
		err := m.serve(ctx)
		if m.lease != 0 && (ctx.Err() != nil || fatal(err)) {
			if err := m.store.revoke(m.lease); err != nil {
				m.cfg.Log.Debug("the claim stays until its lease ends", "err", err)
			}
		}
		switch {
		case ctx.Err() != nil:
			return nil
		case fatal(err):
			m.update(func() { m.standing.Refusal = err })
			return err
		}
		m.record(err)
		pause(ctx, retryAfter)
	}
}

func fatal(err error) bool { return errors.Is(err, ErrTaken) || errors.Is(err, ErrDiffers) }

// serve follows the membership under one lease, until the lease is gone.
func (m *Member) serve(ctx context.Context) error {
	asked := time.Now()
	lease, err := m.store.grant(ctx, m.cfg.TTL)
	if err != nil {
		return err
	}
	m.lease, m.asked = lease, asked
	m.record(nil)
	for {
		err := m.follow(ctx)
		if ctx.Err() != nil || fatal(err) || errors.Is(err, rpctypes.ErrLeaseNotFound) {
			return err
		}
		m.record(err)
		pause(ctx, retryAfter)
		if err := m.renew(ctx); errors.Is(err, rpctypes.ErrLeaseNotFound) {
			return err
		}
	}
}

func (m *Member) renew(ctx context.Context) error {
	asked := time.Now()
	err := m.store.renew(ctx, m.lease)
	if err == nil {
		m.asked = asked
		m.record(nil)
	}
	return err
}

// follow reads all keys and then their changes, and acts on them.
func (m *Member) follow(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	all, revision, err := m.store.read(ctx, m.view.Read())
	if err != nil {
		return err
	}
	m.view.Clear()
	for _, kv := range all {
		m.put(kv)
	}
	changes := m.store.watch(ctx, revision)
	tick := time.NewTicker(m.cfg.TTL / 4)
	defer tick.Stop()
	for {
		if err := m.act(ctx); err != nil {
			return err
		}
		if err := m.publish(); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
			if err := m.renew(ctx); err != nil {
				return err
			}
		case r, ok := <-changes:
			if !ok {
				return errors.New("the watch ended")
			}
			if err := r.Err(); err != nil {
				return err
			}
			m.apply(r.Events)
		}
	}
}

func (m *Member) apply(events []*clientv3.Event) {
	for _, e := range events {
		if e.Type == mvccpb.Event_DELETE {
			m.view.Drop(string(e.Kv.Key))
		} else {
			m.put(e.Kv)
		}
	}
}

func (m *Member) put(kv *mvccpb.KeyValue) {
	m.view.Put(string(kv.Key), kv.Value, kv.CreateRevision, kv.ModRevision, kv.Lease)
}
