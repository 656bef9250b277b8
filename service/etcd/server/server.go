// Package server is a member of etcd in this process.
package server

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.etcd.io/etcd/server/v3/storage/wal"

	"github.com/rackweave/rackweave/service/etcd"
)

// serverWithin bounds the start of a server, which waits for a majority of the members.
const serverWithin = time.Minute

// Server is a running member.
type Server struct {
	Etcd *embed.Etcd
	URL  string // for clients
}

// config is a member's configuration.
type config etcd.Config

// Start starts a member, and returns when it serves.
func Start(of etcd.Config) (*Server, error) {
	c := (*config)(&of)
	cfg, err := c.embed()
	if err != nil {
		return nil, err
	}
	if err := c.introduce(cfg); err != nil {
		return nil, err
	}
	e, err := embed.StartEtcd(cfg)
	switch {
	case err != nil && strings.Contains(err.Error(), "has already been bootstrapped"):
		return nil, c.replace(err)
	case err != nil:
		return nil, err
	}
	s := &Server{e, cfg.AdvertiseClientUrls[0].String()}
	select {
	case <-e.Server.ReadyNotify():
		return s, nil
	case err := <-e.Err():
		s.Close()
		return nil, err
	case <-time.After(serverWithin):
		s.Close()
		return nil, fmt.Errorf("no majority of the members %s within %v: start the others", cfg.InitialCluster, serverWithin)
	}
}

// These are the times of questions to other members. A member may have been removed or added a moment ago, and not every other
// member knows it yet.
const (
	callWithin  = 2 * time.Second
	knownWithin = 2 * time.Second
	askAgain    = 200 * time.Millisecond
)

// known is another member's knowledge of this one.
type known int

const (
	silent  known = iota // it does not answer
	fresh                // this one is of the cluster's first members, and has not served so far
	awaited              // it was added in place of one whose data were lost
	gone                 // it was removed, or has served before
)

// introduce decides how a member without data begins, by the knowledge of the others. One that has served before must not begin
// without its data, because it would vote anew, and one that they have removed would begin a cluster of its own.
func (c *config) introduce(cfg *embed.Config) error {
	if c.Members == "" || wal.Exist(filepath.Join(cfg.Dir, "member", "wal")) {
		return nil
	}
	own := []string{cfg.AdvertisePeerUrls[0].String()}
	var others []string
	for m := range strings.SplitSeq(c.Members, ",") {
		if name, at, _ := strings.Cut(m, "="); name == c.Name {
			own = append(own, at)
		} else {
			others = append(others, at)
		}
	}
	by, err := transport.NewTransport(cfg.PeerTLSInfo, callWithin)
	if err != nil {
		return nil // starting reports the error
	}
	defer by.CloseIdleConnections()
	for end := time.Now().Add(knownWithin); ; time.Sleep(askAgain) {
		knows := make([]known, len(others))
		var wg sync.WaitGroup
		for i, at := range others {
			wg.Go(func() { knows[i] = ask(by, at, own) })
		}
		wg.Wait()
		is := slices.Contains(knows, gone)
		switch {
		case is && time.Now().Before(end):
		case slices.Contains(knows, awaited):
			cfg.ClusterState = embed.ClusterStateFlagExisting
			return nil
		case is:
			return c.replace(fmt.Errorf("member %s at %s was removed or has served before", c.Name, own[0]))
		default:
			return nil
		}
	}
}

// ask returns a member's knowledge of the one with these peer URLs.
func ask(by *http.Transport, at string, own []string) known {
	there, err := etcdserver.GetClusterFromRemotePeers(nil, []string{at}, by)
	if err != nil {
		return silent
	}
	knows := gone
	for _, m := range there.Members() {
		switch {
		case !slices.ContainsFunc(m.PeerURLs, func(u string) bool { return slices.Contains(own, u) }):
		case m.Name == "": // the first members have names from the start
			return awaited
		case len(m.ClientURLs) == 0: // it has them when it serves
			knows = fresh
		}
	}
	return knows
}

// replace adds to an error the way to replace a member whose data are lost.
func (c *config) replace(err error) error {
	return fmt.Errorf("%w, and its data are not in %s: at another member, remove it (etcdctl member remove ID), add it (etcdctl member add %s --peer-urls=%s), and start it again",
		err, c.Dir, c.Name, cmp.Or(c.Peer, etcd.DefaultPeer))
}

// Main is the program rackweave-etcd. It returns its exit status.
func Main(in io.Reader, out io.Writer) int {
	syscall.Umask(0o077) // sockets and data are this user's alone
	if err := run(in, out); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// run reads a member's configuration, prints its URL when it serves, and returns when its input ends.
func run(in io.Reader, out io.Writer) error {
	var c etcd.Config
	if err := json.NewDecoder(in).Decode(&c); err != nil {
		return fmt.Errorf("read the configuration: %w: rackweave serve --etcd embed starts this program and writes it", err)
	}
	s, err := Start(c)
	if err != nil {
		return err
	}
	defer s.Close()
	fmt.Fprintln(out, s.URL) // an aggregator that has gone closes the input
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = io.Copy(io.Discard, in)
	}()
	select {
	case <-ended:
		return nil
	case err := <-s.Etcd.Err():
		return fmt.Errorf("%s: %w", etcd.Program, err)
	}
}

// Close stops the member. Close its clients first.
func (s *Server) Close() { s.Etcd.Close() }

func (c *config) embed() (*embed.Config, error) {
	if c.Dir == "" {
		return nil, errors.New("no directory for its data: give one by --etcd-dir")
	}
	if c.CA != "" && c.Cert == "" {
		return nil, errors.New("a CA without this member's certificate and key: give all three files")
	}
	client, err := c.at(c.URL, "client", etcd.DefaultURL)
	if err != nil {
		return nil, err
	}
	peer, err := c.at(c.Peer, "peer", etcd.DefaultPeer)
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
	if peer.Scheme == "unix" { // etcd listens at the host of such a URL, and at an abstract socket where it has only a path
		cfg.ListenPeerUrls[0].Host, cfg.ListenPeerUrls[0].Path = peer.Path, ""
	}
	cfg.InitialCluster = cmp.Or(c.Members, c.Name+"="+peer.String())
	cfg.LogLevel, cfg.LogOutputs = "warn", []string{filepath.Join(c.Dir, "etcd.log")}
	cfg.AutoCompactionMode, cfg.AutoCompactionRetention = "revision", "1000"
	if c.Cert != "" {
		files := transport.TLSInfo{CertFile: c.Cert, KeyFile: c.Key, TrustedCAFile: c.CA, ClientCertAuth: c.CA != ""}
		cfg.ClientTLSInfo, cfg.PeerTLSInfo = files, files
	}
	return cfg, cfg.Validate()
}

// checkMembers validates the list of members.
func (c *config) checkMembers() error {
	if c.Members == "" {
		return nil
	}
	own := false
	for m := range strings.SplitSeq(c.Members, ",") {
		name, at, _ := strings.Cut(m, "=")
		if u, err := url.Parse(at); name == "" || err != nil || u.Port() == "" || u.Scheme != "http" && u.Scheme != "https" {
			return fmt.Errorf("member %q of %q: use RACK=PEER, such as %s=%s", m, c.Members, c.Name, etcd.DefaultPeer)
		}
		own = own || name == c.Name
	}
	if !own {
		return fmt.Errorf("members %q lack this rack: add %s=PEER, such as %s=%s", c.Members, c.Name, c.Name, etcd.DefaultPeer)
	}
	return nil
}

// maxSocket is the longest path of a Unix socket (unix(7)).
const maxSocket = 107

// at returns the address at which the member serves: a given URL, or a socket in its directory if it is alone, which only its user
// reaches, or the usual URL.
func (c *config) at(given, what, usual string) (*url.URL, error) {
	if given != "" || c.Members != "" {
		return c.listen(cmp.Or(given, usual))
	}
	dir, err := filepath.Abs(c.Dir)
	if err != nil {
		return nil, err
	}
	socket := filepath.Join(dir, what)
	if len(socket) > maxSocket {
		return nil, fmt.Errorf("the socket %s has a path of more than %d characters: give a shorter --etcd-dir", socket, maxSocket)
	}
	return &url.URL{Scheme: "unix", Path: socket}, nil
}

// listen validates the address at which the member listens. A client can end the cluster's membership, so strangers must not reach
// it.
func (c *config) listen(at string) (*url.URL, error) {
	u, err := url.Parse(at)
	if err != nil || u.Port() == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, fmt.Errorf("it cannot listen at %q: use a URL such as %s", at, etcd.DefaultURL)
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
