package membership

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/rackweave/rackweave/service/api"
	"github.com/rackweave/rackweave/service/membership/view"
)

// Access is how etcd is reached.
type Access struct {
	Endpoints []string // URLs
	CA        string   // file with the certificates to trust, for https
	Cert, Key string   // files of this aggregator's own certificate; both or neither
	User      string
	Password  string
}

// How long etcd may take. A call to a server that is gone hangs until its context ends.
const (
	callWithin  = 2 * time.Second
	startWithin = 10 * time.Second
)

// ErrUnreachable is what errors wrap when etcd does not answer.
var ErrUnreachable = errors.New("etcd does not answer")

// ErrCredentials is what errors wrap when etcd refuses this aggregator.
var ErrCredentials = errors.New("etcd refuses these credentials")

// check returns what of the access cannot be.
func (a *Access) check() error {
	if len(a.Endpoints) == 0 {
		return fmt.Errorf("etcd: no endpoints: give URLs such as %s", DefaultServer)
	}
	for _, at := range a.Endpoints {
		if u, err := url.Parse(at); err != nil || u.Hostname() == "" || u.Scheme != "http" && u.Scheme != "https" {
			return fmt.Errorf("etcd cannot be at %q: give URLs such as %s, with commas between them, or embed", at, DefaultServer)
		}
	}
	switch {
	case (a.Cert == "") != (a.Key == ""):
		return errors.New("etcd: a certificate needs its key: give both files, or neither")
	case a.User != "" && a.Password == "":
		return fmt.Errorf("etcd: user %q without a password: give the file that holds it by --etcd-password-file", a.User)
	case a.User == "" && a.Password != "":
		return errors.New("etcd: a password without its user: give the user by --etcd-user")
	}
	return nil
}

// open returns a client, which has connected to nothing yet unless it authenticates by name.
func (a *Access) open() (*clientv3.Client, error) {
	c := clientv3.Config{
		Endpoints: a.Endpoints, DialTimeout: startWithin, DialKeepAliveTime: 5 * time.Second, DialKeepAliveTimeout: callWithin,
		Username: a.User, Password: a.Password, Logger: zap.NewNop(),
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
	refused := errors.Is(err, rpctypes.ErrAuthFailed) || errors.Is(err, rpctypes.ErrPermissionDenied) ||
		errors.Is(err, rpctypes.ErrUserEmpty) || errors.Is(err, rpctypes.ErrInvalidAuthToken)
	switch {
	case err == nil:
		return nil
	case refused:
		return fmt.Errorf("%w, at %s: %w: give the user, the password and the certificate that may use it", ErrCredentials, where, err)
	default:
		return fmt.Errorf("%w at %s: %w: start it there, give other endpoints, or let the first aggregators run it by --etcd embed",
			ErrUnreachable, where, err)
	}
}

// calls are what membership needs of etcd.
type calls interface {
	grant(ctx context.Context, ttl time.Duration) (clientv3.LeaseID, error)
	renew(ctx context.Context, lease clientv3.LeaseID) error
	revoke(lease clientv3.LeaseID) error
	// claim writes a key if it is as it was seen: its creation's revision, 0: there is none. It reports whether it was.
	claim(ctx context.Context, key, value string, created int64, lease clientv3.LeaseID) (bool, error)
	// decide writes the plan if the leader's claim is still the one with this token, and the plan still the one of this epoch.
	decide(ctx context.Context, value string, token, epoch int64) error
	list(ctx context.Context) (*clientv3.GetResponse, error)
	// watch tells what changes after a revision. A member of etcd that is cut off from the others ends it.
	watch(ctx context.Context, after int64) clientv3.WatchChan
}

// store is etcd.
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

func (s *store) claim(ctx context.Context, key, value string, created int64, lease clientv3.LeaseID) (bool, error) {
	ctx, cancel := within(ctx)
	defer cancel()
	r, err := s.client.Txn(ctx).If(clientv3.Compare(clientv3.CreateRevision(key), "=", created)).
		Then(clientv3.OpPut(key, value, clientv3.WithLease(lease))).Commit()
	return err == nil && r.Succeeded, err
}

func (s *store) decide(ctx context.Context, value string, token, epoch int64) error {
	ctx, cancel := within(ctx)
	defer cancel()
	_, err := s.client.Txn(ctx).If(
		clientv3.Compare(clientv3.CreateRevision(s.keys.Leader()), "=", token),
		clientv3.Compare(clientv3.ModRevision(s.keys.Plan()), "=", epoch),
	).Then(clientv3.OpPut(s.keys.Plan(), value)).Commit()
	return err
}

// maxKeys bounds what is read.
const maxKeys = 1024

func (s *store) list(ctx context.Context) (*clientv3.GetResponse, error) {
	ctx, cancel := within(ctx)
	defer cancel()
	return s.client.Get(ctx, s.keys.Prefix, clientv3.WithPrefix(), clientv3.WithLimit(maxKeys))
}

func (s *store) watch(ctx context.Context, after int64) clientv3.WatchChan {
	return s.client.Watch(clientv3.WithRequireLeader(ctx), s.keys.Prefix, clientv3.WithPrefix(), clientv3.WithRev(after+1))
}

func (s *store) revoke(lease clientv3.LeaseID) error {
	ctx, cancel := within(context.Background())
	defer cancel()
	_, err := s.client.Revoke(ctx, lease)
	return err
}
