package membership

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/url"
	"path"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/rackweave/rackweave/service/api"
	"github.com/rackweave/rackweave/service/etcd"
	"github.com/rackweave/rackweave/service/membership/view"
)

// Access describes the access to etcd.
type Access struct {
	Endpoints []string // URLs
	CA        string   // file with the certificates to trust, for https
	Cert, Key string   // files of this aggregator's own certificate, both or neither
}

// These bound the time of calls, because a call to a server that is gone hangs until its context ends.
const (
	callWithin  = 2 * time.Second
	startWithin = 10 * time.Second
)

// ErrUnreachable is wrapped by errors when etcd does not answer.
var ErrUnreachable = errors.New("etcd does not answer")

// ErrCredentials is wrapped by errors when etcd refuses this aggregator.
var ErrCredentials = errors.New("etcd refuses these credentials")

// check validates the access.
func (a *Access) check() error {
	if len(a.Endpoints) == 0 {
		return fmt.Errorf("etcd: no endpoints: give URLs such as %s", etcd.DefaultURL)
	}
	for _, at := range a.Endpoints {
		if u, err := url.Parse(at); err != nil || !reachable(u) {
			return fmt.Errorf("etcd cannot be at %q: give URLs such as %s, with commas between them, or embed", at, etcd.DefaultURL)
		}
	}
	if (a.Cert == "") != (a.Key == "") {
		return errors.New("etcd: a certificate needs its key: give both files, or neither")
	}
	return nil
}

func reachable(u *url.URL) bool {
	switch u.Scheme {
	case "http", "https":
		return u.Hostname() != ""
	case "unix":
		return u.Host == "" && path.IsAbs(u.Path)
	}
	return false
}

// open returns a client, which has connected to nothing yet.
func (a *Access) open() (*clientv3.Client, error) {
	c := clientv3.Config{
		Endpoints: a.Endpoints, DialTimeout: startWithin, DialKeepAliveTime: 5 * time.Second, DialKeepAliveTimeout: callWithin,
		Logger: zap.NewNop(),
	}
	if strings.HasPrefix(a.Endpoints[0], "https:") {
		trust, err := api.TrustOf(a.CA)
		if err != nil {
			return nil, fmt.Errorf("etcd: %w", err)
		}
		if a.Cert != "" {
			pair, err := tls.LoadX509KeyPair(a.Cert, a.Key)
			if err != nil {
				return nil, fmt.Errorf("etcd: certificate %s with key %s: %w", a.Cert, a.Key, err)
			}
			trust.Certificates = append(trust.Certificates, pair)
		}
		c.TLS = trust
	}
	client, err := clientv3.New(c)
	return client, a.explain(err)
}

// explain adds the remedy to an error of etcd's.
func (a *Access) explain(err error) error {
	where := strings.Join(a.Endpoints, ", ")
	switch {
	case err == nil:
		return nil
	case errors.Is(err, rpctypes.ErrPermissionDenied) || errors.Is(err, rpctypes.ErrUserEmpty):
		return fmt.Errorf("%w, at %s: %w: give the certificate of a user that may use it", ErrCredentials, where, err)
	}
	return fmt.Errorf("%w at %s: %w: start it there, give other endpoints, or let the first aggregators run it by --etcd embed",
		ErrUnreachable, where, err)
}

// contest lists the calls of etcd by which aggregators compete.
type contest interface {
	// claim writes a key if the revision of its creation is still created, which is 0 without a key.
	claim(ctx context.Context, key, value string, created int64, lease clientv3.LeaseID) error
	// decide writes the plan if the leader's claim is still the one with this token, and the plan still the one of this epoch.
	decide(ctx context.Context, value string, token, epoch int64) error
}

// store makes the calls of etcd.
type store struct {
	client *clientv3.Client
	keys   view.Keys
}

func within(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, callWithin)
}

func (s *store) grant(ctx context.Context, ttl time.Duration) (clientv3.LeaseID, error) {
	ctx, cancel := within(ctx)
	defer cancel()
	r, err := s.client.Grant(ctx, int64(ttl/time.Second))
	if err != nil {
		return 0, err
	}
	return r.ID, nil
}

func (s *store) renew(ctx context.Context, lease clientv3.LeaseID) error {
	ctx, cancel := within(ctx)
	defer cancel()
	_, err := s.client.KeepAliveOnce(ctx, lease)
	return err
}

// txn carries out operations if comparisons hold.
func (s *store) txn(ctx context.Context, cmps []clientv3.Cmp, ops ...clientv3.Op) (*clientv3.TxnResponse, error) {
	ctx, cancel := within(ctx)
	defer cancel()
	return s.client.Txn(ctx).If(cmps...).Then(ops...).Commit()
}

func (s *store) claim(ctx context.Context, key, value string, created int64, lease clientv3.LeaseID) error {
	_, err := s.txn(ctx, []clientv3.Cmp{clientv3.Compare(clientv3.CreateRevision(key), "=", created)},
		clientv3.OpPut(key, value, clientv3.WithLease(lease)))
	return err
}

func (s *store) decide(ctx context.Context, value string, token, epoch int64) error {
	_, err := s.txn(ctx, []clientv3.Cmp{
		clientv3.Compare(clientv3.CreateRevision(s.keys.Leader), "=", token),
		clientv3.Compare(clientv3.ModRevision(s.keys.Plan), "=", epoch),
	}, clientv3.OpPut(s.keys.Plan, value))
	return err
}

// remove removes a key if it is still as a revision wrote it.
func (s *store) remove(ctx context.Context, key string, modified int64) error {
	_, err := s.txn(ctx, []clientv3.Cmp{clientv3.Compare(clientv3.ModRevision(key), "=", modified)}, clientv3.OpDelete(key))
	return err
}

// lasts returns the granted time of a lease, or 0 if it has ended.
func (s *store) lasts(ctx context.Context, lease clientv3.LeaseID) (time.Duration, error) {
	ctx, cancel := within(ctx)
	defer cancel()
	r, err := s.client.TimeToLive(ctx, lease)
	if err != nil {
		return 0, err
	}
	return time.Duration(r.GrantedTTL) * time.Second, nil
}

// read returns the values of keys, and their revision.
func (s *store) read(ctx context.Context, keys []string) (all []*mvccpb.KeyValue, revision int64, err error) {
	gets := make([]clientv3.Op, len(keys))
	for i, key := range keys {
		gets[i] = clientv3.OpGet(key)
	}
	r, err := s.txn(ctx, nil, gets...)
	if err != nil {
		return nil, 0, err
	}
	for _, answer := range r.Responses {
		all = append(all, answer.GetResponseRange().Kvs...)
	}
	return all, r.Header.Revision, nil
}

// watch returns the changes after a revision. A member of etcd that is cut off from the others ends it.
func (s *store) watch(ctx context.Context, after int64) clientv3.WatchChan {
	return s.client.Watch(clientv3.WithRequireLeader(ctx), s.keys.Prefix, clientv3.WithPrefix(), clientv3.WithRev(after+1))
}

func (s *store) revoke(lease clientv3.LeaseID) error {
	ctx, cancel := within(context.Background())
	defer cancel()
	_, err := s.client.Revoke(ctx, lease)
	return err
}
