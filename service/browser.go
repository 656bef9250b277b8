package service

import (
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"strings"

	"connectrpc.com/connect"
	"github.com/rackweave/rackweave/service/rpc"
)

// misled returns an error if a request may come from a web page in a browser: it has an origin, or calls this host by a name that
// the page's owner may have led here. An open aggregator, which asks for no token, must not answer it.
func (s *Service) misled(r *http.Request) *connect.Error {
	if origin := r.Header.Get("Origin"); origin != "" {
		return rpc.Refuse(connect.CodePermissionDenied,
			"a call from a web page of origin %q: call without a browser, or serve with TLS and tokens", rpc.Printable(origin, rpc.MaxNameBytes))
	}
	if name := hostOf(r.Host); !s.isNamed(name) {
		return rpc.Refuse(connect.CodePermissionDenied,
			"the aggregator asks for no token and is not known as %q: use its address or its host's name, or serve with TLS and tokens",
			rpc.Printable(name, rpc.MaxNameBytes))
	}
	return nil
}

// hostOf returns the host of a request's Host header.
func hostOf(header string) string {
	name, _, err := net.SplitHostPort(header)
	if err != nil {
		name = strings.Trim(header, "[]")
	}
	return strings.ToLower(strings.TrimSuffix(name, "."))
}

// isNamed reports whether a name is an address, or one that no web page has: a name without a domain, the host's, or the one in
// the cluster's file.
func (s *Service) isNamed(name string) bool {
	if _, err := netip.ParseAddr(name); err == nil || !strings.Contains(name, ".") {
		return true
	}
	if own, err := os.Hostname(); err == nil && name == strings.ToLower(own) {
		return true
	}
	u, err := url.Parse(s.cluster.OwnURL())
	return err == nil && name == strings.ToLower(u.Hostname())
}
