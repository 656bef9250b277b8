package service

import (
	"crypto/tls"
	"fmt"
	"net"

	"connectrpc.com/connect"
	"connectrpc.com/grpchealth"

	"github.com/rackweave/rackweave/service/api"
	"github.com/rackweave/rackweave/service/api/apiconnect"
	"github.com/rackweave/rackweave/service/keys"
)

// lock closes an aggregator that other hosts reach: it makes what is missing of certificate and admin's token.
func (s *Service) lock() error {
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

// Fingerprint returns what clients pin; "": there is no TLS.
func (s *Service) Fingerprint() string {
	if s.tls == nil {
		return ""
	}
	return api.Fingerprint(s.tls.Certificates[0].Certificate[0])
}

// AdminFile returns the file that holds the admin's token; "": none was made.
func (s *Service) AdminFile() string { return s.adminFile }

// openPaths are what a closed aggregator answers without a token: whether it is there, and other racks, which prove themselves.
var openPaths = map[string]bool{
	"/" + grpchealth.HealthV1ServiceName + "/Check": true,
	apiconnect.RackServiceAskProcedure:              true,
}

// known reports whether a caller has shown a session or a token.
func (s *Service) known(c *caller) bool {
	if c.admin || c.member != nil {
		return true
	}
	for _, p := range s.opts.Jobs {
		if p.Token != "" && equal(c.token, p.Token) {
			return true
		}
	}
	_, ok := s.keys.Find(c.token)
	return ok
}

// policy returns what a job may have whose worker shows this token.
func (s *Service) policy(job string, by *caller) (JobPolicy, error) {
	p, ok := s.opts.policy(job)
	switch {
	case !ok:
	case s.keys == nil || len(s.opts.Jobs) > 0 || by.admin:
		return p, nil
	default:
		if t, found := s.keys.Find(by.token); found && t.Job == job {
			p.Token, p.Weight = by.token, t.Weight
			if t.Workers > 0 {
				p.Quota.Workers = t.Workers
			}
			if t.MemoryBytes > 0 {
				p.Quota.MemoryBytes = t.MemoryBytes
			}
			return p, nil
		}
	}
	return p, refuse(connect.CodePermissionDenied,
		"job %q may not run here: use the name of a job that the aggregator knows, and its token (see rackweave token)", job)
}
