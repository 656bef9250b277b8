package service

import (
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"runtime/debug"
	"syscall"

	"connectrpc.com/connect"

	"github.com/rackweave/rackweave/service/api"
	"github.com/rackweave/rackweave/service/api/apiconnect"
	"github.com/rackweave/rackweave/service/door"
	"github.com/rackweave/rackweave/service/job"
	"github.com/rackweave/rackweave/service/quota"
	"github.com/rackweave/rackweave/service/rpc"
)

// strangersBody bounds the body of a call that needs no session, and of whatever else reaches the port.
const strangersBody = 16 << 10

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
	}
	return c
}

// guard finds out who calls and bounds the request, before h reads its body.
func (s *Service) guard(h http.Handler) http.Handler {
	writer := connect.NewErrorWriter(codecs...)
	turnAway := func(w http.ResponseWriter, r *http.Request, reason string, err *connect.Error) {
		s.refusals.Count(reason)
		if r.ContentLength != 0 {
			answerFirst(w, r)
		}
		if writer.IsSupported(r) {
			writer.Write(w, r, err)
			return
		}
		http.Error(w, err.Message(), statusOf(err.Code()))
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := s.identify(r)
		most, needsSession := s.bodies[r.URL.Path]
		switch {
		case c.Member != nil:
			if c.Conn != nil {
				c.Conn.Promote(c.Member)
			}
			if c.Member.Calls.Add(1) > maxMemberCalls {
				c.Member.Calls.Add(-1)
				turnAway(w, r, "member_calls", connect.NewError(connect.CodeResourceExhausted, errBusyMember))
				return
			}
			defer c.Member.Calls.Add(-1)
		case c.Conn != nil && !c.Admin:
			if r.URL.Path == apiconnect.RackServiceAskProcedure {
				defer func() { // without a valid seal the question was a stranger's
					if !c.Rack {
						c.Conn.Count()
					}
				}()
			} else if !c.Conn.Count() {
				panic(http.ErrAbortHandler)
			}
			if c.Call = c.Conn.Call(); c.Call == nil {
				panic(http.ErrAbortHandler)
			}
			defer c.Call.End()
		}
		if s.access.keys != nil && !openPaths[r.URL.Path] && !s.known(c) {
			turnAway(w, r, "token", connect.NewError(connect.CodeUnauthenticated, errNoToken))
			return
		}
		if s.access.keys == nil && !c.Admin {
			if err := s.misled(r); err != nil {
				turnAway(w, r, "browser", err)
				return
			}
		}
		if needsSession && c.Member == nil {
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
		if r.ContentLength < 0 { // it may be too long
			answerFirst(w, r)
		}
		r.Body = c.Conn.Body(http.MaxBytesReader(w, r.Body, most))
		if c.Member != nil {
			x := quota.Amounts{quota.Memory: callCost + growth*most}
			switch err := c.Member.Job.Account.Charge(x); {
			case errors.Is(err, quota.ErrOver): // the session ended with the job, since it was looked up
				turnAway(w, r, "session", connect.NewError(connect.CodeUnauthenticated, errNoSession))
				return
			case err != nil:
				turnAway(w, r, "quota", rpc.Refuse(connect.CodeResourceExhausted, "a request of %d bytes: %w", most, err))
				return
			}
			defer c.Member.Job.Account.Return(x)
		}
		defer c.Settle()
		h.ServeHTTP(w, r.WithContext(c.With(r.Context())))
	})
}

// answerFirst lets the server answer a request of HTTP/1 before it reads the rest of the body, which is metered.
func answerFirst(w http.ResponseWriter, r *http.Request) {
	if r.ProtoMajor == 1 {
		w.Header().Set("Connection", "close")
	}
}

// bodyLimit returns how many bytes of a request's body are read, of a call that may have so many.
func bodyLimit(r *http.Request, most int64) (int64, *connect.Error) {
	switch {
	case r.ContentLength < 0:
		return min(most, unknownBody), nil
	case r.ContentLength > most:
		return 0, rpc.Refuse(connect.CodeResourceExhausted, "a body of %d bytes: at most %d are taken", r.ContentLength, most)
	}
	return r.ContentLength, nil
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

// hostOnly lets requests through that reach an open aggregator, and the admin's.
func (s *Service) hostOnly(h http.Handler) http.Handler {
	if s.access.keys == nil {
		return h
	}
	return s.adminOnly(h)
}

// adminOnly lets only the admin's requests through.
func (s *Service) adminOnly(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !job.CallerOf(r.Context()).Admin {
			s.refusals.Count("admin")
			http.Error(w, errNotAdmin.Error(), http.StatusForbidden)
			return
		}
		h.ServeHTTP(w, r)
	})
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
	errBusyMember = errors.New("the worker has as many calls under way as it may: wait for some")
	errNotAdmin   = errors.New("only for the admin: give the admin's token, or call as the aggregator's user over its Unix socket")
)
