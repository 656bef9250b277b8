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
		err := m.hold(ctx)
		if m.lease != 0 && (ctx.Err() != nil || fatal(err)) {
			if err := m.store.revoke(m.lease); err != nil {
				m.cfg.Log.Debug("the claim stays until its lease ends", "err", err)
			}
		}
		switch {
		case ctx.Err() != nil:
			return nil
		case fatal(err):
			m.update(func() { m.refusal = err })
			return err
		}
		m.fails(err)
		pause(ctx, retryAfter)
	}
}

func fatal(err error) bool { return errors.Is(err, ErrTaken) || errors.Is(err, ErrDiffers) }

// hold follows the membership under one lease, until the lease is gone.
func (m *Member) hold(ctx context.Context) error {
	asked := time.Now()
	lease, err := m.store.grant(ctx, m.cfg.TTL)
	if err != nil {
		return err
	}
	m.lease = lease
	m.answers(asked)
	for {
		err := m.follow(ctx)
		if ctx.Err() != nil || fatal(err) || errors.Is(err, rpctypes.ErrLeaseNotFound) {
			return err
		}
		m.fails(err)
		pause(ctx, retryAfter)
		asked := time.Now()
		if err := m.store.renew(ctx, m.lease); errors.Is(err, rpctypes.ErrLeaseNotFound) {
			return err
		} else if err == nil {
			m.answers(asked)
		}
	}
}

// follow reads all keys, then what changes, and does what is due.
func (m *Member) follow(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	all, err := m.store.list(ctx)
	if err != nil {
		return err
	}
	m.view.Clear()
	for _, kv := range all.Kvs {
		m.view.Put(string(kv.Key), kv.Value, kv.CreateRevision, kv.ModRevision)
	}
	changes := m.store.watch(ctx, all.Header.Revision)
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
			asked := time.Now()
			if err := m.store.renew(ctx, m.lease); err != nil {
				return err
			}
			m.answers(asked)
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
			m.view.Put(string(e.Kv.Key), e.Kv.Value, e.Kv.CreateRevision, e.Kv.ModRevision)
		}
	}
}
