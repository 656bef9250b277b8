package api

import (
	"context"
	"net/http"
	"strings"

	"connectrpc.com/connect"
)

// SessionHeader is the header in which a worker's session travels.
const SessionHeader = "Rackweave-Session"

const bearer = "Bearer "

// Token returns the token in the headers of a request.
func Token(h http.Header) string {
	token, ok := strings.CutPrefix(h.Get("Authorization"), bearer)
	if !ok {
		return ""
	}
	return token
}

// Identify returns a client option that identifies the caller by a session, empty until there is one, and by a token.
func Identify(session func() string, token string) connect.ClientOption {
	set := func(h http.Header) {
		if token != "" {
			h.Set("Authorization", bearer+token)
		}
		if s := session(); s != "" {
			h.Set(SessionHeader, s)
		}
	}
	unary := func(next connect.UnaryFunc) connect.UnaryFunc {
		return func(ctx context.Context, r connect.AnyRequest) (connect.AnyResponse, error) {
			set(r.Header())
			return next(ctx, r)
		}
	}
	return connect.WithInterceptors(&identity{unary, set})
}

// identity sets headers of streams, too.
type identity struct {
	connect.UnaryInterceptorFunc
	set func(http.Header)
}

// WrapStreamingClient implements connect.Interceptor.
func (i *identity) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return func(ctx context.Context, spec connect.Spec) connect.StreamingClientConn {
		c := next(ctx, spec)
		i.set(c.RequestHeader())
		return c
	}
}
