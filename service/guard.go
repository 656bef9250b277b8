package service

import (
	"context"
	"crypto/subtle"
	"net"
	"net/http"
	"os"
	"runtime/debug"
	"syscall"

	"connectrpc.com/connect"

	"github.com/rackweave/rackweave/service/api"
	"github.com/rackweave/rackweave/service/api/apiconnect"
	"github.com/rackweave/rackweave/service/door"
	"github.com/rackweave/rackweave/service/quota"
)

// strangersBody bounds the body of a call that needs no session, and of whatever else reaches the port.
const strangersBody = 16 << 10

// unknownBody bounds a body whose length is not told before it comes: what it may take is charged at once.
const unknownBody = 1 << 20

// maxMemberCalls bounds the calls of one worker that are under way.
const maxMemberCalls = 64

// memberCalls are the calls that need a session, with the most bytes that their bodies may have.
var memberCalls = map[string]int64{
	apiconnect.JobServiceWatchProcedure:       4 << 10,
	apiconnect.JobServiceConnectProcedure:     1 << 20,
	apiconnect.JobServiceResumeProcedure:      1 << 20,
	apiconnect.JobServiceRegisterProcedure:    maxMessageBytes,
	apiconnect.JobServiceBarrierProcedure:     4 << 10,
	apiconnect.JobServiceSaveProcedure:        4 << 10,
	apiconnect.JobServiceRestoreProcedure:     4 << 10,
	apiconnect.JobServiceReadStateProcedure:   4 << 10,
	apiconnect.JobServiceWriteStateProcedure:  maxMessageBytes,
	apiconnect.JobServiceCarryProcedure:       maxMessageBytes,
	apiconnect.JobServiceAnswerStateProcedure: maxMessageBytes,
	apiconnect.JobServiceReportLossProcedure:  4 << 10,
	apiconnect.JobServiceLeaveProcedure:       64 << 10,
}

// caller is who makes a call, known before its body is read.
type caller struct {
	admin  bool
	token  string
	member *member // by its session
	conn   *door.Conn
	call   *door.Call // while a stranger's
	owed   []func()   // gives back what the call was charged beside its body
}

type callerKey struct{}

// callerOf returns who makes a call. A call that no request brought comes from this process.
func callerOf(ctx context.Context) *caller {
	if c, ok := ctx.Value(callerKey{}).(*caller); ok {
		return c
	}
	return &caller{admin: true}
}

// becomes makes a stranger who has joined a member.
func (c *caller) becomes(m *member) {
	if c.call != nil {
		c.call.End()
	}
	if c.conn != nil {
		c.conn.Promote(m)
	}
}

// isRack makes a stranger whose seal shows that it is a rack's aggregator one that is not limited as strangers are.
func (c *caller) isRack(name string) {
	if c.member != nil || c.conn == nil {
		return
	}
	if c.call != nil {
		c.call.End()
	}
	c.conn.Promote("rack " + name)
}

// identify finds out who calls.
func (s *Service) identify(r *http.Request) *caller {
	c := &caller{token: api.Token(r.Header)}
	conn, _ := r.Context().Value(connKey{}).(net.Conn)
	if conn != nil {
		c.conn = door.Of(conn)
	}
	c.admin = s.ownUser(conn) || s.opts.AdminToken != "" && equal(c.token, s.opts.AdminToken)
	if id := r.Header.Get(api.SessionHeader); id != "" {
		s.mu.Lock()
		c.member = s.sessions[id]
		s.mu.Unlock()
	}
	return c
}

// guard finds out who calls and bounds the request, before h reads its body.
func (s *Service) guard(h http.Handler) http.Handler {
	errors := connect.NewErrorWriter(codecs...)
	turnAway := func(w http.ResponseWriter, r *http.Request, reason string, err *connect.Error) {
		s.refusals.count(reason)
		if errors.IsSupported(r) {
			errors.Write(w, r, err)
			return
		}
		http.Error(w, err.Message(), statusOf(err.Code()))
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := s.identify(r)
		most, needsSession := memberCalls[r.URL.Path]
		switch {
		case c.member != nil:
			if c.conn != nil {
				c.conn.Promote(c.member)
			}
			if c.member.calls.Add(1) > maxMemberCalls {
				c.member.calls.Add(-1)
				turnAway(w, r, "member_calls", connect.NewError(connect.CodeResourceExhausted, errBusyMember))
				return
			}
			defer c.member.calls.Add(-1)
		case c.conn != nil && !c.admin:
			if c.call = c.conn.Call(); c.call == nil {
				panic(http.ErrAbortHandler)
			}
			defer c.call.End()
		}
		if s.keys != nil && !openPaths[r.URL.Path] && !s.known(c) {
			turnAway(w, r, "token", connect.NewError(connect.CodeUnauthenticated, errNoToken))
			return
		}
		if needsSession && c.member == nil {
			turnAway(w, r, "session", connect.NewError(connect.CodeUnauthenticated, errNoSession))
			return
		}
		if !needsSession {
			most = strangersBody
		}
		most, refusal := bodyLimit(r, most)
		if refusal != nil {
			turnAway(w, r, "body", refusal)
			return
		}
		r.Body = http.MaxBytesReader(w, r.Body, most)
		if c.member != nil {
			x := quota.Amounts{quota.Memory: growth * most}
			if err := c.member.job.account.Charge(x); err != nil {
				turnAway(w, r, "quota", refuse(connect.CodeResourceExhausted, "a request of %d bytes: %w", most, err))
				return
			}
			defer c.member.job.account.Return(x)
		}
		defer c.settle()
		h.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), callerKey{}, c)))
	})
}

// bodyLimit returns how many bytes of a request's body are read, of a call that may have so many.
func bodyLimit(r *http.Request, most int64) (int64, *connect.Error) {
	switch {
	case r.ContentLength < 0:
		return min(most, unknownBody), nil
	case r.ContentLength > most:
		return 0, refuse(connect.CodeResourceExhausted, "a body of %d bytes: at most %d are taken", r.ContentLength, most)
	}
	return r.ContentLength, nil
}

// settle gives back what a call was charged, once its answer is written.
func (c *caller) settle() {
	for _, giveBack := range c.owed {
		giveBack()
	}
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

func equal(a, b string) bool { return subtle.ConstantTimeCompare([]byte(a), []byte(b)) == 1 }

// connKey is the key of a request's connection.
type connKey struct{}

// ownUser reports whether a connection is of the Unix socket, and of this process's user or root.
func (s *Service) ownUser(c net.Conn) bool {
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

// hostOnly lets requests through that reach an open aggregator, and the admin's.
func (s *Service) hostOnly(h http.Handler) http.Handler {
	if s.keys == nil {
		return h
	}
	return s.adminOnly(h)
}

// adminOnly lets only the admin's requests through.
func (s *Service) adminOnly(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !callerOf(r.Context()).admin {
			s.refusals.count("admin")
			http.Error(w, errNotAdmin.Error(), http.StatusForbidden)
			return
		}
		h.ServeHTTP(w, r)
	})
}

// recovered turns a panic in a call into an error. It fails the caller's job and no other.
func (s *Service) recovered(ctx context.Context, spec connect.Spec, _ http.Header, p any) error {
	s.log.Error("panic in a call", "procedure", spec.Procedure, "panic", p, "stack", string(debug.Stack()))
	err := refuse(connect.CodeInternal, "panic in %s: see the aggregator's log", spec.Procedure)
	if m := callerOf(ctx).member; m != nil {
		m.job.agg.Fail(-1, err.Unwrap())
	}
	return err
}
