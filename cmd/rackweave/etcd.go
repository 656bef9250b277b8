package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/rackweave/rackweave/launch"
	"github.com/rackweave/rackweave/service/etcd"
	"github.com/rackweave/rackweave/service/membership"
	"github.com/rackweave/rackweave/service/racks"
)

// etcdOptions are serve's flags about etcd.
type etcdOptions struct {
	where   string
	ttl     time.Duration
	goOn    time.Duration
	standby bool
	access  membership.Access
	server  etcd.Config
}

const embedded = "embed"

func etcdFlags(cmd *cobra.Command, o *etcdOptions) {
	f := cmd.Flags()
	f.StringVar(&o.where, "etcd", "", "keep in etcd which aggregator serves which rack of --cluster: its URLs, or embed to run it here")
	f.DurationVar(&o.ttl, "etcd-ttl", membership.DefaultTTL, "how long the rack stays this aggregator's when etcd does not hear of it")
	f.DurationVar(&o.goOn, "go-on-after", membership.DefaultGoOnAfter,
		"how long a rack may have no aggregator until jobs begin without it, in a cluster of on-loss: go-on")
	f.BoolVar(&o.standby, "standby", false, "wait while another aggregator serves the rack")
	f.StringVar(&o.access.CA, "etcd-ca", "", "certificates that etcd's must be signed by, PEM file")
	f.StringVar(&o.access.Cert, "etcd-cert", "", "certificate to show to etcd, PEM file")
	f.StringVar(&o.access.Key, "etcd-key", "", "its key, PEM file")
	f.StringVar(&o.server.Dir, "etcd-dir", "", "directory of the embedded etcd's data")
	f.StringVar(&o.server.URL, "etcd-listen", "", "URL at which the embedded etcd serves (default: a socket in --etcd-dir; with --etcd-members: "+etcd.DefaultURL+")")
	f.StringVar(&o.server.Peer, "etcd-peer", "", "URL at which it serves the other embedded ones (with --etcd-members by default "+etcd.DefaultPeer+")")
	f.StringVar(&o.server.Members, "etcd-members", "", "all embedded ones, as RACK=PEER,… (default: this one alone; use one or three)")
}

// member is this aggregator's membership, with the etcd that may run here for it.
type member struct {
	*membership.Member
	server  *launch.Server // nil: it runs elsewhere
	closing chan struct{}  // of the server
	url     string         // of this aggregator, if the cluster's file says it
	standby bool
}

// open begins what the flags ask for. It returns nil if the cluster's file lists the servers of the racks.
func (o *etcdOptions) open(ctx context.Context, c *racks.Cluster, log *slog.Logger, insecure bool) (m *member, err error) {
	if o.where == "" {
		if o.standby {
			return nil, errors.New("a standby without etcd: give --etcd")
		}
		return nil, nil
	}
	if c == nil {
		return nil, fmt.Errorf("etcd %s without a cluster: give the file that lists its racks by --cluster", o.where)
	}
	m = &member{standby: o.standby}
	if !o.standby { // which is elsewhere
		m.url = c.Racks[c.Index()].URL
	}
	cfg := membership.Config{Cluster: c, Access: o.access, TTL: o.ttl, GoOnAfter: o.goOn, Standby: o.standby, Log: log}
	cfg.Access.Endpoints = strings.Split(o.where, ",")
	if o.where == embedded {
		cfg.Access.Endpoints = []string{etcd.DefaultURL} // until it serves
	}
	if o.goOn <= 0 {
		return nil, fmt.Errorf("--go-on-after %v: use a time above 0, such as %v", o.goOn, membership.DefaultGoOnAfter)
	}
	if err := cfg.Check(); err != nil {
		return nil, err
	}
	if o.where == embedded {
		o.server.Name, o.server.Cluster, o.server.Insecure = c.Own, c.Name, insecure
		o.server.CA, o.server.Cert, o.server.Key = o.access.CA, o.access.Cert, o.access.Key
		log.Info("starting etcd", "data", o.server.Dir)
		if m.server, err = etcd.Start(o.server); err != nil {
			return nil, err
		}
		log.Info("etcd serves", "at", m.server.URL)
		m.closing = make(chan struct{})
		go func() {
			select {
			case <-m.server.Ended():
				log.Error("etcd has ended: jobs that run go on, and others wait until this aggregator is started again")
			case <-m.closing:
			}
		}()
		cfg.Access.Endpoints = []string{m.server.URL}
	}
	if m.Member, err = membership.Open(ctx, cfg); err != nil {
		m.close()
		return nil, err
	}
	c.Members = m.Member
	return m, nil
}

func (m *member) close() {
	if m.Member != nil {
		m.Member.Close()
	}
	if m.server != nil {
		close(m.closing)
		m.server.Stop()
	}
}

// keep holds the rack until ctx ends. If the rack is another's, end is told why.
func (m *member) keep(ctx context.Context, url string, end func(error)) (wait func()) {
	if m == nil {
		return func() {}
	}
	if m.url != "" {
		url = m.url
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := m.Run(ctx, url); err != nil {
			end(err)
		}
	}()
	return func() { <-done }
}

// settle waits until the rack is this aggregator's by the plan, or it stands by, or etcd does not say, or ctx ends.
func (m *member) settle(ctx context.Context) {
	if m == nil {
		return
	}
	for {
		changed := m.Changed()
		s := m.Standing()
		if s.Refusal == nil || !s.Store.Reachable || m.standby && errors.Is(s.Refusal, membership.ErrTaken) {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}
