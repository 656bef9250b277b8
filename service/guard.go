package service

import (
	"cmp"
	"context"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"runtime/debug"
	"strings"
	"syscall"

	"connectrpc.com/connect"

	"github.com/rackweave/rackweave/service/api"
	"github.com/rackweave/rackweave/service/door"
	"github.com/rackweave/rackweave/service/job"
	"github.com/rackweave/rackweave/service/quota"
	"github.com/rackweave/rackweave/service/rpc"
)

// strangersBody bounds the body of a call that needs no session, and of whatever else reaches the port.
const strangersBody = 16 << 10

// need is the caller that a request needs.
type need uint8

const (
	ofTenant need = iota // of a closed aggregator: one with a token that is known, or a session
	ofAnyone
	ofRack // an aggregator, whose seal the call checks
	ofMember
	ofObserver // a member, or a caller with the token of a job
	ofAdmin
)

// rule bounds the requests of a pattern of the mux. A pattern without a rule has the zero value.
type rule struct {
	of   need
	most int64 // bytes of the body. If 0, strangersBody.
}

// handle mounts a handler of requests that keep a rule.
func (s *Service) handle(pattern string, r rule, h http.Handler) {
	s.rules[pattern] = r
	s.mux.Handle(pattern, h)
}

// HandleAdmin mounts another handler on the service's port, for the admin. Call it before Serve.
func (s *Service) HandleAdmin(pattern string, h http.Handler) {
	s.handle(pattern, rule{of: ofAdmin}, h)
}

// unknownBody limits a body of unknown length, because the limit is charged at once.
const unknownBody = 1 << 20

// callCost is the memory of a call that is under way, in bytes: goroutines, a stream, a head.
const callCost = 16 << 10

// maxMemberCalls bounds the calls of one worker that are under way.
const maxMemberCalls = 64

// identify finds out who calls.
func (s *Service) identify(r *http.Request) *job.Caller {
	c := &job.Caller{Token: api.Token(r.Header)}
	conn, _ := r.Context().Value(connKey{}).(net.Conn)
	if conn != nil {
		c.Conn = door.Of(conn)
	}
	c.Admin = ownUser(conn) || s.opts.AdminToken != "" && rpc.Equal(c.Token, s.opts.AdminToken)
	if id := r.Header.Get(api.SessionHeader); id != "" {
		c.Member = s.jobs.Session(id)
		if s.beside.Known(id) {
			c.Dealt = id
		}
	}
	return c
}

// refusal is the error of a request that is turned away.
type refusal struct {
	reason string // as it is counted
	*connect.Error
}

var errorWriter = connect.NewErrorWriter(codecs...)

// guard finds out who calls and bounds the request, before its handler reads its body.
func (s *Service) guard(w http.ResponseWriter, r *http.Request) {
	s.calls.RLock()
	defer s.calls.RUnlock()
	if s.gone {
		http.Error(w, job.ErrShutdown.Error(), http.StatusServiceUnavailable)
		return
	}
	c := s.identify(r)
	defer c.Settle()
	_, pattern := s.mux.Handler(r)
	rule := s.rules[pattern]
	limit, most := cmp.Or(rule.most, strangersBody), r.ContentLength
	if most < 0 {
		most = min(limit, unknownBody)
	}
	no := s.count(c, rule.of)
	if no == nil {
		no = s.mayCall(c, r, rule.of)
	}
	if no == nil {
		no = charge(c, most, limit)
	}
	// The server of HTTP/1 answers before it reads the rest of the body, which is metered.
	if r.ProtoMajor == 1 && (r.ContentLength < 0 || no != nil && r.ContentLength > 0) { // it may be too long, or is not read
		w.Header().Set("Connection", "close")
	}
	if no == nil {
		r.Body = c.Conn.Body(http.MaxBytesReader(w, r.Body, most))
		s.mux.ServeHTTP(w, r.WithContext(c.With(r.Context())))
		return
	}
	s.refusals.Count(no.reason)
	if errorWriter.IsSupported(r) {
		errorWriter.Write(w, r, no.Error)
	} else {
		http.Error(w, no.Message(), statusOf(no.Code()))
	}
}

// count counts a call of a member, or of a stranger. It ends the connection of a stranger who calls too often.
func (s *Service) count(c *job.Caller, of need) *refusal {
	switch {
	case c.Member != nil:
		if c.Conn != nil {
			c.Conn.Promote(c.Member)
		}
		c.Owe(func() { c.Member.Calls.Add(-1) })
		if c.Member.Calls.Add(1) > maxMemberCalls {
			return &refusal{"member_calls", connect.NewError(connect.CodeResourceExhausted, errBusyMember)}
		}
	case c.Dealt != "":
		if c.Conn != nil {
			c.Conn.Promote(c.Dealt)
		}
	case c.Conn != nil && !c.Admin:
		if of == ofRack {
			c.Owe(func() { // without a valid seal the question was a stranger's
				if !c.Rack {
					c.Conn.Count()
				}
			})
		} else if !c.Conn.Count() {
			panic(http.ErrAbortHandler)
		}
		if c.Call = c.Conn.Call(); c.Call == nil {
			panic(http.ErrAbortHandler)
		}
		c.Owe(c.Call.End)
	}
	return nil
}

// mayCall refuses a caller other than the one that a request needs.
func (s *Service) mayCall(c *job.Caller, r *http.Request, of need) *refusal {
	switch closed := s.keys != nil; {
	case closed && of != ofAnyone && of != ofRack && !s.known(c):
		return &refusal{"token", connect.NewError(connect.CodeUnauthenticated, errNoToken)}
	case !closed && !c.Admin:
		if err := s.misled(r); err != nil {
			return &refusal{"browser", err}
		}
	}
	switch {
	case of == ofMember && c.Member == nil:
		return &refusal{"session", connect.NewError(connect.CodeUnauthenticated, errNoSession)}
	case of == ofObserver && c.Member == nil && !s.jobs.Observed(c):
		return &refusal{"token", connect.NewError(connect.CodePermissionDenied, errNoJob)}
	case of == ofAdmin && !c.Admin:
		return &refusal{"admin", connect.NewError(connect.CodePermissionDenied, errNotAdmin)}
	}
	return nil
}

// charge charges a member's job for a request, of whose body so many bytes are read. It refuses a longer one than the limit.
func charge(c *job.Caller, most, limit int64) *refusal {
	if most > limit {
		return &refusal{"body", rpc.Refuse(connect.CodeResourceExhausted, "a body of %d bytes: at most %d are taken", most, limit)}
	}
	if c.Member == nil {
		return nil
	}
	account, x := c.Member.Job.Account, quota.Amounts{quota.Memory: callCost + growth*most}
	switch err := account.Charge(x); {
	case errors.Is(err, quota.ErrOver): // the session ended with the job, since it was looked up
		return &refusal{"session", connect.NewError(connect.CodeUnauthenticated, errNoSession)}
	case err != nil:
		return &refusal{"quota", rpc.Refuse(connect.CodeResourceExhausted, "a request of %d bytes: %w", most, err)}
	}
	c.Owe(func() { account.Return(x) })
	return nil
}

func statusOf(c connect.Code) int {
	switch c {
	case connect.CodeUnauthenticated:
		return http.StatusUnauthorized
	case connect.CodePermissionDenied:
		return http.StatusForbidden
	}
	return http.StatusTooManyRequests
}

// connKey is the key of a request's connection.
type connKey struct{}

// ownUser reports whether a connection is of the Unix socket, and of this process's user or root.
func ownUser(c net.Conn) bool {
	u, ok := c.(*net.UnixConn)
	if !ok {
		return false
	}
	raw, err := u.SyscallConn()
	if err != nil {
		return false
	}
	own := false
	err = raw.Control(func(fd uintptr) {
		peer, err := syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED)
		own = err == nil && (peer.Uid == uint32(os.Geteuid()) || peer.Uid == 0)
	})
	return err == nil && own
}

// recovered turns a panic in a call into an error. It fails the caller's job and no other.
func (s *Service) recovered(ctx context.Context, spec connect.Spec, _ http.Header, p any) error {
	s.log.Error("panic in a call", "procedure", spec.Procedure, "panic", p, "stack", string(debug.Stack()))
	err := rpc.Refuse(connect.CodeInternal, "panic in %s: see the aggregator's log", spec.Procedure)
	if m := job.CallerOf(ctx).Member; m != nil {
		m.Job.Agg.Fail(-1, err.Unwrap())
	}
	return err
}

var (
	errNoSession = errors.New("no such session: give the one that Join returned in the header " + api.SessionHeader +
		"; it has ended, or the aggregator was restarted, if it was that: join again")
	errNoToken = errors.New("no token that is known here: give the job's, of rackweave token make JOB on this host, or the admin's: " +
		"by --token-file, RACKWEAVE_TOKEN, or Authorization: Bearer TOKEN")
	errNoJob      = errors.New("no job here has this token: give that of a job that runs, or the admin's")
	errBusyMember = errors.New("the worker has as many calls under way as it may: wait for some")
	errNotAdmin   = errors.New("only for the admin: give the admin's token, or call as the aggregator's user over its Unix socket")
)

// misled returns an error if a request may come from a web page in a browser: it has an origin, or calls this host by a name that
// the page's owner may have led here. An open aggregator, which asks for no token, must not answer it.
func (s *Service) misled(r *http.Request) *connect.Error {
	if origin := r.Header.Get("Origin"); origin != "" {
		return rpc.Refuse(connect.CodePermissionDenied,
			"a call from a web page of origin %q: call without a browser, or serve with TLS and tokens", rpc.Printable(origin, rpc.MaxNameBytes))
	}
	if name := hostOf(r.Host); !isNamed(name, s.cluster.OwnURL()) {
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
func isNamed(name, ownURL string) bool {
	if _, err := netip.ParseAddr(name); err == nil || !strings.Contains(name, ".") {
		return true
	}
	if own, err := os.Hostname(); err == nil && name == strings.ToLower(own) {
		return true
	}
	u, err := url.Parse(ownURL)
	return err == nil && name == strings.ToLower(u.Hostname())
}
