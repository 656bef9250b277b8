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

// SetToken puts a token into the headers of a request.
func SetToken(h http.Header, token string) {
	if token != "" {
		h.Set("Authorization", bearer+token)
	}
}

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
	return connect.WithInterceptors(&identity{session, token})
}

type identity struct {
	session func() string
	token   string
}

func (i *identity) set(h http.Header) {
	SetToken(h, i.token)
	if i.session != nil {
		if s := i.session(); s != "" {
			h.Set(SessionHeader, s)
		}
	}
}

// WrapUnary implements connect.Interceptor.
func (i *identity) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, r connect.AnyRequest) (connect.AnyResponse, error) {
		i.set(r.Header())
		return next(ctx, r)
	}
}

// WrapStreamingClient implements connect.Interceptor.
func (i *identity) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return func(ctx context.Context, spec connect.Spec) connect.StreamingClientConn {
		c := next(ctx, spec)
		i.set(c.RequestHeader())
		return c
	}
}

// WrapStreamingHandler implements connect.Interceptor.
func (i *identity) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return next
}
