package service

import (
	"cmp"
	"crypto/tls"
	"fmt"
	"net"

	"connectrpc.com/connect"

	"github.com/rackweave/rackweave/service/api"
	"github.com/rackweave/rackweave/service/job"
	"github.com/rackweave/rackweave/service/keys"
	"github.com/rackweave/rackweave/service/rpc"
)

// openKeys opens the certificate and the keys of an aggregator that other hosts reach, and makes what is missing of certificate and
// admin's token.
func (s *Service) openKeys() error {
	if s.opts.TLSCert != "" {
		cert, err := tls.LoadX509KeyPair(s.opts.TLSCert, s.opts.TLSKey)
		if err != nil {
			return fmt.Errorf("TLS certificate %s with key %s: %w", s.opts.TLSCert, s.opts.TLSKey, err)
		}
		s.useCertificate(cert)
	}
	if at, ok := s.Addr().(*net.TCPAddr); s.opts.Insecure || ok && at.IP.IsLoopback() {
		return nil
	}
	folder := s.opts.Keys
	if folder == "" {
		folder = keys.Folder()
	}
	k, err := keys.Open(folder)
	if err != nil {
		return fmt.Errorf("%w: give another by --keys, or serve without TLS and tokens by --insecure", err)
	}
	if s.tls == nil {
		cert, err := k.Certificate()
		if err != nil {
			return err
		}
		s.useCertificate(cert)
	}
	if s.opts.AdminToken == "" {
		token, path, err := k.Admin()
		if err != nil {
			return fmt.Errorf("admin's token: %w", err)
		}
		s.opts.AdminToken, s.adminFile = token, path
	}
	s.keys = k
	return nil
}

func (s *Service) useCertificate(cert tls.Certificate) {
	s.tls = &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12}
}

// Fingerprint returns the fingerprint that clients pin, or "" without TLS.
func (s *Service) Fingerprint() string {
	if s.tls == nil {
		return ""
	}
	return api.Fingerprint(s.tls.Certificates[0].Certificate[0])
}

// AdminFile returns the file that holds the admin's token; "": none was made.
func (s *Service) AdminFile() string { return s.adminFile }

// known reports whether a caller has shown a session or a token.
func (s *Service) known(c *job.Caller) bool {
	if c.Admin || c.Member != nil || c.Dealt != "" {
		return true
	}
	for _, token := range s.opts.Jobs {
		if token != "" && rpc.Equal(c.Token, token) {
			return true
		}
	}
	_, ok := s.keys.Find(c.Token)
	return ok
}

// policy returns what a job may have whose worker shows this token.
func (s *Service) policy(name string, by *job.Caller) (p job.Policy, err error) {
	p.Quota = s.opts.Quota
	var ok bool
	if p.Token, ok = s.opts.Jobs[name]; ok || len(s.opts.Jobs) == 0 && (s.keys == nil || by.Admin) {
		return p, nil
	}
	if len(s.opts.Jobs) == 0 {
		if t, found := s.keys.Find(by.Token); found && t.Job == name {
			p.Token, p.Weight = by.Token, t.Weight
			p.Quota.Workers = cmp.Or(t.Workers, p.Quota.Workers)
			p.Quota.MemoryBytes = cmp.Or(t.MemoryBytes, p.Quota.MemoryBytes)
			return p, nil
		}
	}
	return p, rpc.Refuse(connect.CodePermissionDenied,
		"job %q may not run here: use the name of a job that the aggregator knows, and its token (see rackweave token)", name)
}
