package membership

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.etcd.io/etcd/server/v3/storage/wal"
)

// ServerConfig is a member of etcd that runs in this process.
type ServerConfig struct {
	Name string // of the member: the rack's
	Dir  string // of its data
	URL  string // where it serves clients; empty: DefaultServer
	Peer string // where it serves the other members; empty: DefaultPeer
	// Members are all members of etcd, as NAME=PEER,…; empty: this one alone. Two are worse than one: either lost stops both.
	Members string
	Cluster string // keeps the members of different clusters apart
	// Files. With a CA, clients and members must show a certificate of its.
	CA, Cert, Key string
	Insecure      bool // serve other hosts without certificates
}

// The URLs of a server whose configuration names none.
const (
	DefaultServer = "http://127.0.0.1:2379"
	DefaultPeer   = "http://127.0.0.1:2380"
)

// serverWithin is how long a server may take to begin. It waits for a majority of the members.
const serverWithin = time.Minute

// ErrServer is what every error about the embedded server wraps.
var ErrServer = errors.New("embedded etcd")

// Server is a running member.
type Server struct {
	etcd *embed.Etcd
	url  string
}

// StartServer starts a member, and returns when it serves.
func StartServer(c ServerConfig) (*Server, error) {
	cfg, err := c.config()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrServer, err)
	}
	if err := c.introduce(cfg); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrServer, err)
	}
	e, err := embed.StartEtcd(cfg)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrServer, c.explain(err))
	}
	s := &Server{e, cfg.AdvertiseClientUrls[0].String()}
	select {
	case <-e.Server.ReadyNotify():
		return s, nil
	case err := <-e.Err():
		s.Close()
		return nil, fmt.Errorf("%w: %w", ErrServer, err)
	case <-time.After(serverWithin):
		s.Close()
		return nil, fmt.Errorf("%w: no majority of the members %s within %v: start the others", ErrServer, cfg.InitialCluster, serverWithin)
	}
}

// A member may have been removed or added a moment ago, and not every other member knows it yet.
const (
	knownWithin = 2 * time.Second
	askAgain    = 200 * time.Millisecond
)

// What another member knows of this one.
type known int

const (
	silent  known = iota // it does not answer
	fresh                // this one is of the cluster's first members, and has not served so far
	awaited              // it was added in place of one whose data were lost
	gone                 // it was removed, or has served before
)

// introduce settles how a member without data begins, by what the others know of it. One that they have known before must not come
// without its data, as it would vote anew; and one that they have removed would begin a cluster that they are not of.
func (c *ServerConfig) introduce(cfg *embed.Config) error {
	if c.Members == "" || wal.Exist(filepath.Join(cfg.Dir, "member", "wal")) {
		return nil
	}
	own := []string{cfg.AdvertisePeerUrls[0].String()}
	var others []string
	for m := range strings.SplitSeq(c.Members, ",") {
		name, at, _ := strings.Cut(m, "=")
		if name == c.Name {
			own = append(own, at)
		} else {
			others = append(others, at)
		}
	}
	by, err := transport.NewTransport(cfg.PeerTLSInfo, callWithin)
	if err != nil {
		return nil // starting says why
	}
	defer by.CloseIdleConnections()
	for end := time.Now().Add(knownWithin); ; time.Sleep(askAgain) {
		said := make([]known, len(others))
		var wg sync.WaitGroup
		for i, at := range others {
			wg.Go(func() { said[i] = ask(by, at, own) })
		}
		wg.Wait()
		is := slices.Contains(said, gone)
		switch {
		case is && time.Now().Before(end):
		case slices.Contains(said, awaited):
			cfg.ClusterState = embed.ClusterStateFlagExisting
			return nil
		case is:
			return c.replace(fmt.Errorf("member %s at %s was removed or has served before", c.Name, own[0]))
		default:
			return nil
		}
	}
}

// ask asks a member what it knows of the one with these peer URLs.
func ask(by *http.Transport, at string, own []string) known {
	there, err := etcdserver.GetClusterFromRemotePeers(nil, []string{at}, by)
	if err != nil {
		return silent
	}
	says := gone
	for _, m := range there.Members() {
		switch {
		case !slices.ContainsFunc(m.PeerURLs, func(u string) bool { return slices.Contains(own, u) }):
		case m.Name == "": // those of the first members are known from the start
			return awaited
		case len(m.ClientURLs) == 0: // it tells them when it serves
			says = fresh
		}
	}
	return says
}

// explain adds the remedy to an error of a server that does not start.
func (c *ServerConfig) explain(err error) error {
	if !strings.Contains(err.Error(), "has already been bootstrapped") {
		return err
	}
	return c.replace(err)
}

// replace adds to an error how a member whose data are lost is replaced.
func (c *ServerConfig) replace(err error) error {
	return fmt.Errorf("%w, and its data are not in %s: at another member, remove it (etcdctl member remove ID), add it (etcdctl member add %s --peer-urls=%s), and start it again",
		err, c.Dir, c.Name, cmp.Or(c.Peer, DefaultPeer))
}

// URL is where it serves clients.
func (s *Server) URL() string { return s.url }

// Close stops the member. Close its clients first.
func (s *Server) Close() { s.etcd.Close() }

func (c *ServerConfig) config() (*embed.Config, error) {
	if c.Dir == "" {
		return nil, errors.New("no directory for its data: give one by --etcd-dir")
	}
	if c.CA != "" && c.Cert == "" {
		return nil, errors.New("a CA without this member's certificate and key: give all three files")
	}
	client, err := c.listen(cmp.Or(c.URL, DefaultServer))
	if err != nil {
		return nil, err
	}
	peer, err := c.listen(cmp.Or(c.Peer, DefaultPeer))
	if err != nil {
		return nil, err
	}
	if err := c.checkMembers(); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(c.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("directory %s: %w: give one that can be written", c.Dir, err)
	}
	cfg := embed.NewConfig()
	cfg.Name, cfg.Dir, cfg.InitialClusterToken = c.Name, filepath.Join(c.Dir, "data"), "rackweave-"+c.Cluster
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = []url.URL{*client}, []url.URL{*client}
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = []url.URL{*peer}, []url.URL{*peer}
	cfg.InitialCluster = cmp.Or(c.Members, c.Name+"="+peer.String())
	cfg.LogLevel, cfg.LogOutputs = "warn", []string{filepath.Join(c.Dir, "etcd.log")}
	cfg.AutoCompactionMode, cfg.AutoCompactionRetention = "revision", "1000"
	if c.Cert != "" {
		files := transport.TLSInfo{CertFile: c.Cert, KeyFile: c.Key, TrustedCAFile: c.CA, ClientCertAuth: c.CA != ""}
		cfg.ClientTLSInfo, cfg.PeerTLSInfo = files, files
	}
	return cfg, cfg.Validate()
}

// checkMembers names the member that cannot be.
func (c *ServerConfig) checkMembers() error {
	if c.Members == "" {
		return nil
	}
	own := false
	for m := range strings.SplitSeq(c.Members, ",") {
		name, at, _ := strings.Cut(m, "=")
		if u, err := url.Parse(at); name == "" || err != nil || u.Port() == "" || u.Scheme != "http" && u.Scheme != "https" {
			return fmt.Errorf("member %q of %q: use RACK=PEER, such as %s=%s", m, c.Members, c.Name, DefaultPeer)
		}
		own = own || name == c.Name
	}
	if !own {
		return fmt.Errorf("members %q lack this rack: add %s=PEER, such as %s=%s", c.Members, c.Name, c.Name, DefaultPeer)
	}
	return nil
}

// listen checks where the member listens. Whoever reaches it can end the cluster's membership, so strangers must not.
func (c *ServerConfig) listen(at string) (*url.URL, error) {
	u, err := url.Parse(at)
	if err != nil || u.Port() == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, fmt.Errorf("it cannot listen at %q: use a URL such as %s", at, DefaultServer)
	}
	if (u.Scheme == "https") != (c.Cert != "") {
		return nil, fmt.Errorf("%s and certificate %q: https needs one, http takes none", at, c.Cert)
	}
	ip := net.ParseIP(u.Hostname())
	if ip == nil {
		return nil, fmt.Errorf("it cannot listen at %q: give an IP address", at)
	}
	if !ip.IsLoopback() && c.CA == "" && !c.Insecure {
		return nil, fmt.Errorf("other hosts could use it at %s without certificates: give a CA, a certificate and a key, or serve insecurely",
			at)
	}
	return u, nil
}
